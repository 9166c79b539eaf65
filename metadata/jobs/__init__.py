"""Runs of jobs, the data pipeline, reports."""
