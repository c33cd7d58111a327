"""Measures the queue beside its peers: one server, the same settings, payload and clients, in turns."""
