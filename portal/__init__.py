"""HTML for people. For now: Django admin, every model listed, searchable and read-only."""
