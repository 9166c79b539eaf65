"""Doctor: a report of all faults of an installation, with their remedies."""
