"""Reports of a consumer about itself, and traces of a sample of its messages.

Consumers work without them.
"""
