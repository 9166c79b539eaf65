"""Share groups over HTTP: lease runs, report on them, and look at those that are out."""
