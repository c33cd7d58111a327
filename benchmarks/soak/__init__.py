"""Hours at half load, and whether memory, tables and latency stay what they were: `make soak HOURS=2`."""

NOTES = "SOAK_NOTES"
"""The environment variable that names the file with a line for each age: the time and the seconds."""
