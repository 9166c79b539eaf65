"""Share groups: lease runs of messages to members, and record finished messages."""
