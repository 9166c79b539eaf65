"""Did the metadata database's clock jump? Asked before something is deleted because of its
age.

The clocks of database, nodes and this machine often are one, so that comparing them shows
nothing. But a machine also counts the seconds since its start, which nobody sets: between
two looks both have to move alike.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from metadata.db.clock import database_now
from metadata.db.transactions import transactional
from metadata.models import ClockMark
from metadata.rules.topics.retention import jump_problem

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# goes on while the machine sleeps
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@transactional
def check_clock(*, confirm: bool) -> str | None:
    """Return why the clock is not to be trusted: it jumped ahead since this machine's last
    look; else None.

    It stays so until it has jumped back, or somebody looks with `confirm`, because the
    clock is right.
    """
    host, boot = socket.gethostname()[:200], _boot()
    now, elapsed_s = database_now(), time.clock_gettime(_SINCE_BOOT)
    mark = ClockMark.objects.select_for_update().filter(host=host).first()
    if mark is not None and mark.boot == boot and not confirm:
        problem = jump_problem(
            passed_s=(now - mark.at).total_seconds(), elapsed_s=elapsed_s - mark.elapsed_s
        )
        if problem is not None:
            return problem
    ClockMark.objects.update_or_create(
        host=host, defaults={"boot": boot, "elapsed_s": elapsed_s, "at": now}
    )
    return None


def _boot() -> str:
    return BOOT_ID.read_text().strip()[:100] if BOOT_ID.exists() else ""
