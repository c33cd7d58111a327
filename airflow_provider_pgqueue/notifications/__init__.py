"""Messages that callbacks publish."""
