"""Pages of jobs, the data pipeline and reports."""
