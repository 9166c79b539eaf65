"""Verbs on the tables of share groups: how far each queue was leased, and the leases."""
