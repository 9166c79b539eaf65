"""Pages of nodes."""
