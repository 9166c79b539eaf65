"""Statements on the tables of share groups: the position of each queue, and the leased
runs.
"""
