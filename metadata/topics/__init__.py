"""Topics: their rows, the nodes of their queues, former routings, send tokens, producers."""
