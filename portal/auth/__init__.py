"""Logins, rights, sessions, and errors as pages."""
