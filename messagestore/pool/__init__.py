"""Connections to nodes: pools, circuits, and guards against slow or wrong servers."""
