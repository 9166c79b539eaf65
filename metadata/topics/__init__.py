"""Topics: rows, placement of queues, former routings."""
