"""Bytes and limits: requests read, answers written, errors answered, metrics exported."""
