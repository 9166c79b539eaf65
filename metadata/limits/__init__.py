"""Limits on concurrent work in a process.

Not here: limits on messages and bytes a second (metadata/brokers/send_rate_limit.py) and on
the size of a request (metadata/config.py).
"""
