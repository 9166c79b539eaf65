"""Portal users and API keys: accounts, rights, saved filters."""
