"""Alarms, health checks, counters and the history of figures."""
