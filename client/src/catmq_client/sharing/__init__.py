"""Consumption in a share group: leased runs, the renewal of their leases, and reports of
results.
"""
