"""The command `catmq`.

There is a module for each noun, which declares its commands and their arguments (see
verbs.py). Results are written to standard output by `output`; progress, notes and errors to
standard error.
"""

from __future__ import annotations

from catmq_client.cli.main import main

__all__ = ["main"]
