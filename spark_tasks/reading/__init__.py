"""The data source `catmq`: reads, streams, writes."""
