"""Commands on topics, groups, nodes and brokers."""
