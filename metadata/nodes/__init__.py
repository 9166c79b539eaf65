"""Nodes: registry, failovers, sizes."""
