"""Nodes: registry, failovers, sizes, and the ids that nodes know after a restore."""
