"""Bytes and limits: requests read, answers written, errors told, figures shown."""
