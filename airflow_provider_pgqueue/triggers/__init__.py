"""The triggers that wait for messages in the triggerer."""
