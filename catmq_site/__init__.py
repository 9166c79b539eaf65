"""Where everything is put together: settings, routes, processes, loops, schedules, commands."""
