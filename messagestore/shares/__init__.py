"""Share groups: lease runs of messages to members, and record what the members finish."""
