"""People and API keys."""
