"""Nodes: registration, checks, promotion to a replica, disks."""
