"""Lists for people: searched, sorted and cut into pages by the database, in a constant number of queries."""
