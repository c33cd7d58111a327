"""The group `growth`: what a verb costs as something grows that it does not touch. Each module registers its cases."""

from benchmarks.growth import body, depth, groups, leases, limits, priorities, queues, sessions

__all__ = ["body", "depth", "groups", "leases", "limits", "priorities", "queues", "sessions"]
