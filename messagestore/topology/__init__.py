"""Topics, queues, subscriptions and members: changes of metadata and nodes together."""
