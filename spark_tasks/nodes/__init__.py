"""Nodes as Spark reads them: connections, packets, columns, read plans."""
