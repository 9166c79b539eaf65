"""The background threads of a consumer: membership, fetching, handling, failures, commits."""
