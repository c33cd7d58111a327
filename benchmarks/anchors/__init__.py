"""The group `anchors`: turns, limits, cancel and steps, next to peers that have the like, on the same work."""
