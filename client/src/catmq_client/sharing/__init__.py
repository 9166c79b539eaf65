"""Reading as a member of a share group: leased runs, their renewal, and reports of what
became of them.
"""
