"""nursery.py: starts members by fork, so that a join costs milliseconds and not the CPU of
all imports.

A line on stdin is {"argv": what member.py takes, "err": a file}; the answer is its process
id. A member dies with its nursery.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

from tests.acceptance.programs import member

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves until the end of stdin."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leaves no zombies
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.dup2(os.open(order["err"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), 2)
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(1, 0)
            member.main(order["argv"])
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
