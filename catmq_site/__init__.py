"""The composition root: settings, routes, processes, loops, schedules, commands."""
