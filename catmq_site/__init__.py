"""The composition root: settings, routes, processes, background loops, schedules, commands."""
