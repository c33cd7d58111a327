"""The group `anchors`: turns, limits, cancel, steps and batches, next to peers that have the like, on the same work."""
