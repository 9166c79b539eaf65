"""Lists of the portal: searched, sorted and paged by the database, in a constant number of
queries.
"""
