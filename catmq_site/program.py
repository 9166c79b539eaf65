"""The program of a server: `catmq-server COMMAND`, in a checkout also `manage.py COMMAND` and
`script/server`. Every process of a server starts here, or is a child of such a process.

This module may not import other packages of the server at the top: `main` first checks that
they are its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from catmq_site import packages

USAGE = """usage: catmq-server COMMAND [OPTIONS]

  serve          run a server: broker, portal and jobs, until SIGTERM or Ctrl-C
  migrate        create or upgrade the metadata, as each start of `serve` does
  register-node  register a database as a node, which stores messages
  doctor         say what is wrong with this installation, and what to do
  qcluster       run the jobs alone, for brokers that run with --without-jobs
  help           list all commands; `help COMMAND` explains one

Settings are environment variables that begin with CATMQ_. The data directory is CATMQ_DATA_DIR,
by default {data_dir}: set it for `serve` and for all other commands alike.
"""
# Django has a command `migrate`, which `prepare` calls: it alone would leave a new
# installation without administrator, keys and schedules.
ALIASES = {"migrate": "prepare"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of the server. Return its exit code, or raise SystemExit with it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        packages.require_own_packages()
    except packages.ForeignPackage as error:
        sys.stderr.write(f"CatMQ cannot start. {error}\n")
        return 1
    from metadata import installation

    if words[:1] == ["serve"]:
        from catmq_site.server import supervisor

        return supervisor.main(words[1:])
    if not installation.IS_CHECKOUT:
        if not words or words[0] in ("-h", "--help"):
            sys.stdout.write(USAGE.format(data_dir=installation.DATA_DIR))
            return 0 if words else 2
        if words[0] == "--version":
            from metadata.release import VERSION

            sys.stdout.write(f"catmq-server {VERSION}\n")
            return 0
        words[0] = ALIASES.get(words[0], words[0])
    if words and not words[0].startswith("-"):
        words[0] = words[0].replace("-", "_")
    _run_management_command(installation.PROGRAM, words)
    return 0


def _run_management_command(program: str, words: list[str]) -> None:
    """Run a command of Django. Raises SystemExit if it fails."""
    if words[:1] == ["qcluster"]:
        # It runs for long and has a log, where other commands have a user.
        os.environ.setdefault("CATMQ_PROCESS", "jobs")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "catmq_site.settings")
    from metadata import private
    from metadata.config import config  # reads and checks the settings

    private.protect_or_exit(config.data_dir)
    from django.core.management import execute_from_command_line

    execute_from_command_line([program, *words])


if __name__ == "__main__":
    sys.exit(main())
