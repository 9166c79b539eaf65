"""The command `catmq`: one module per noun, with `add` for its arguments and one function a
command.

Results go to standard output through `output`; progress, notes and errors go to standard
error.
"""

from __future__ import annotations

from catmq_client.cli.main import main

__all__ = ["main"]
