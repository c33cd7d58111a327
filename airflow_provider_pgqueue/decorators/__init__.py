"""Tasks that are functions."""
