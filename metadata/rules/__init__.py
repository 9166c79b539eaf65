"""Pure decisions: ids and numbers in, ids and numbers out; no database, no clock, no
randomness.
"""
