"""Consumption: membership, fetching, handling, failures, commits."""
