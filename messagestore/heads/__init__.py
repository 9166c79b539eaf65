"""Log end offsets of queues: durable heads, pulls that wait for them, partitions ahead of
them.
"""
