"""Functions that run SQL statements on a node. No other package runs statements there.

A function takes a `Session` (from `Node.reading` or `Node.writing`) and plain values, and
returns plain values (shapes.py). Times are those of the node's own clock. The rules behind
each statement are in docs/explanation/store.md.
"""
