"""How messages are consumed: leased, handled, and settled with their outcomes; Spark and the repair use it too."""
