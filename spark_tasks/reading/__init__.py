"""The data source `catmq`: batch reads, streams, writes."""
