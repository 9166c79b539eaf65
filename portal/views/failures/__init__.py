"""Pages of retries and dead letters."""
