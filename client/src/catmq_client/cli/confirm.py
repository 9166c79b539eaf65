"""Asking before something is deleted."""

from __future__ import annotations

import sys

from catmq_client.cli.output import note


def confirmed(what: str, name: str, *, yes: bool) -> bool:
    """Return True if to delete: a person at a terminal types the name again, a script says --yes."""
    if yes:
        return True
    if not sys.stdin.isatty():
        note(f"catmq: nothing deleted: there is no terminal to ask at; say --yes to delete {what} {name}")
        return False
    sys.stderr.write(f"Delete {what} {name}? Type its name: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() == name:
        return True
    note("catmq: nothing deleted: the name differs")
    return False
