"""Measures the queue compared with its peers: one server, the same settings, payload and clients, in turns."""
