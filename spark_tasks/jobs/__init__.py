"""Jobs: functions that take a `Job`. Each runs in a process of its own; see
jobs/__main__.py.
"""
