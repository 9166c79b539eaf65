"""Reading by groups: pulls, positions, lag, offset resets."""
