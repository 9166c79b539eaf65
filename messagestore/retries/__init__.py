"""Failed messages: copies for the next retry, dead letters, redrives."""
