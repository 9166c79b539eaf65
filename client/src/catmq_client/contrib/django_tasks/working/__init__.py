"""The worker: receives tasks, runs them, and keeps their rows."""
