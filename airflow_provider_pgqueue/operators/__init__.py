"""Tasks that work with the queue."""
