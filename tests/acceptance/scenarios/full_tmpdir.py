"""The directory for temporary files of a node is full while large transactions go through
its binary log.

Whoever is told that there is no room tries again, and its sends go through once there is:
no 500, nothing that was refused is stored, nothing acknowledged is lost.
"""

from __future__ import annotations

import time

from tests.acceptance.scenarios.stage import Stage
from tests.acceptance.scenarios.trial import prepared, wait_until
from tests.support import mariadb
from tests.support.environment import free_port
from tests.support.fulltmp import FullTmp
from tests.support.pair import Pair
from tests.support.waiting import until

PAD = 6_000  # bytes in a header of each message of the bare sender


def run(stage: Stage, pair: Pair, *, full_s: float, times: int) -> None:
    """So many times full for so long."""
    place = FullTmp(stage.directory / "small-disk")
    options = (*mariadb.SMALL, *place.options)
    server = mariadb.start(
        place.home / "server", port=free_port(), options=options, environ=place.environ
    )
    try:
        with prepared(stage, pair, "tmpdir-full", database=server) as trial:
            trial.begin(senders=1, raw=2, pad=PAD)
            for number in range(1, times + 1):
                stage.note(f"line {number}: no room for temporary files for {full_s} s")
                before = place.refused()
                with place.full():
                    until(lambda before=before: place.refused() > before, limit_s=60)
                    wait_until(time.monotonic() + full_s)
                trial.more(5 * len(trial.crowd.ids))
            trial.finish()
            stage.say(f"{place.refused()} writes of temporary files were refused")
    finally:
        server.stop()
