"""Jobs: functions that get a `Job`. They are started as processes of their own; see
jobs/__main__.py.
"""
