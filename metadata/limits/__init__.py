"""Limits on concurrent work in a process."""
