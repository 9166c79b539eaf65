"""Brokers: their registry, the metadata change each has followed, the send rate limit, and
fingerprints of their keys.
"""
