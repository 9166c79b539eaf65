"""Topics, queues, subscriptions and memberships, made in metadata and on the nodes
together.
"""
