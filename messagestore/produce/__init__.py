"""Sends: stored exactly once, now or later."""
