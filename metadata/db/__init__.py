"""How metadata is read and changed: transactions, row locks, the change log, rights, the
audit log, the database's clock, leases, and pages of lists.
"""
