"""Rules of groups: delivery, failures, commits, progress."""
