"""The HTTP calls of PMQ's and CatMQ's Java clients, over the functions that all clients
use.

Their paths, fields and timings are fixed; docs/reference/java-clients.md lists them. What
such a client calls a consumer is a member of each of its groups, its poll is a heartbeat,
its offset version is our epoch, its message id is our offset + 1. It names no consumer when
it reads or commits, so the queue ids it gets contain the member, too (handles.py).
"""
