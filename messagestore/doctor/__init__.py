"""Doctor: one report of everything that is wrong with an installation, and what to do."""
