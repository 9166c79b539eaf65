"""The checks of OpenTelemetry run in a virtualenv of their own, which has it."""

collect_ignore = ["span_checks.py"]
