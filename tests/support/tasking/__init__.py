"""Tasks for tests and their surroundings: a broker in memory, a relay, workers."""
