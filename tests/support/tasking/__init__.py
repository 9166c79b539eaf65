"""Tasks for tests, and what is around them: a broker in memory, a relay, workers."""
