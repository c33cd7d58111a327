"""Draws the pictures of the page for the documentation: `python -m tools.screenshots`."""
