"""Reading without a group: browsing, search, reports, plans for jobs, checks of health."""
