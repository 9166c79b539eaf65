"""Consumer groups: subscriptions, layouts, ownership, commits, offset resets."""
