"""Processes of a server: supervisor, gunicorn with its worker, and the loops inside."""
