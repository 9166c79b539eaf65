"""Definitions over HTTP: export those of this installation, import those of another."""
