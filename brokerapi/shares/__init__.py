"""Share groups over HTTP: lease runs, report on them, and list the runs that are leased."""
