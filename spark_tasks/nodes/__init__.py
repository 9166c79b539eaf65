"""Nodes as Spark reads them: read plans, connections, result packets, columns."""
