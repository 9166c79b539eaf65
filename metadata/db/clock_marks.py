"""Detection of jumps of the metadata database's clock, before anything is deleted because
of its age.

Database, nodes and this process often run on one machine, so a comparison of their clocks
shows nothing. But a machine also counts the seconds since its start, and this count cannot
be set. Between two checks both must advance by the same time.
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
# CLOCK_BOOTTIME also counts while the machine sleeps.
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@transactional
def check_clock(*, confirm: bool) -> str | None:
    """Return the reason why the clock cannot be trusted: it jumped ahead since this
    machine's last check. None if it can.

    The reason remains until the clock has jumped back, or an operator calls this with
    `confirm` because the clock is right.
    """
    host = socket.gethostname()[:200]
    boot = BOOT_ID.read_text().strip()[:100] if BOOT_ID.exists() else ""
    now, elapsed_s = database_now(), time.clock_gettime(_SINCE_BOOT)
    mark = ClockMark.objects.select_for_update().filter(host=host).first()
    # Seconds since another start of the machine cannot be compared.
    if mark is not None and mark.boot == boot and not confirm:
        problem = jump_problem(
            passed_s=(now - mark.at).total_seconds(), elapsed_s=elapsed_s - mark.elapsed_s
        )
        if problem is not None:
            # The mark is kept, so that the next check finds the same jump.
            return problem
    ClockMark.objects.update_or_create(
        host=host, defaults={"boot": boot, "elapsed_s": elapsed_s, "at": now}
    )
    return None
