"""The group `anchors`: turns, limits and cancel, next to peers that have the like, on the same work."""
