"""Runs of jobs, requests to the data pipeline, and reports."""
