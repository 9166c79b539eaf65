"""Every verb that touches a table of a node; the only package that runs statements.

A verb takes a `Session` (of `Node.reading` or `Node.writing`) and plain values, and answers
plain values (`shapes`). Time is always the node's own clock. The rules behind each
statement stand in docs/explanation/store.md.
"""
