"""Integrations of the client with frameworks; each package here needs its own optional
extra.
"""
