"""Background work: what runs when (table.py), and the threads that run it."""
