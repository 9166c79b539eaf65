"""Metadata: which topics, queues, groups, nodes and brokers exist, which group has read how
far, and every function that changes these records. Messages are in `messagestore`.
"""
