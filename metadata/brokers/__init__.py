"""Brokers: registry, what each has followed, limits on sending, fingerprints of keys."""
