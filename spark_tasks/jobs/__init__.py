"""Jobs: one file each, with `run(job)`. They are started as processes of their own; see jobs/__main__.py."""
