"""Ways to read and change metadata: clock, transactions, locks, changes, audit, rights,
pages.
"""
