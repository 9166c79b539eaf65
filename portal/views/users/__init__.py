"""Pages of users, passwords and API keys."""
