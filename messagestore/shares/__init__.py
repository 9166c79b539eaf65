"""Share groups: runs of messages leased to members, what they finish, and what becomes of the rest."""
