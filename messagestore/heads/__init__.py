"""Heads of queues: what is durable, who waits for more, partitions ahead of them."""
