"""For the tests of those who use the queue: a pytest plugin and the private PostgreSQL that it starts."""


class SetupError(Exception):
    """Something that the user can fix is in the way; the message says what and how."""
