"""Members of groups: registration, heartbeats, rebalances, hand-overs."""
