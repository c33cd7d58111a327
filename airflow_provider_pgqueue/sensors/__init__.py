"""Tasks that wait for messages without holding a worker slot."""
