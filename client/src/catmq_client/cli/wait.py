"""`--wait`: a command returns when what it began is done; on a terminal a line tells how
far it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from catmq_client.cli.output import Progress, note
from catmq_client.cli.stop import Stop, Stopped, until_stopped
from catmq_client.cli.verbs import Argument
from catmq_client.errors import AnswerLost, ConnectFailed, Unavailable

WAIT = Argument("--wait", "wait until it is done")
EVERY_S = 1.0
AWAY = (ConnectFailed, AnswerLost, Unavailable)

# Returns what is still to be done, as text; '' if nothing is.
Look = Callable[[], str]


def waited(look: Look, *, goes_on: str) -> bool:
    """Look again and again until all is done; False if a signal ended the wait.

    `goes_on`: what the end of the wait does not stop. Brokers and nodes that do not answer
    are waited for.
    """
    progress = Progress()
    with Stop() as stop:
        try:
            while rest := left(look):
                progress.tell(rest)
                with stop.waiting():
                    time.sleep(EVERY_S)
        except Stopped:
            progress.end()
            note(f"catmq: stopped waiting; {goes_on}")
            return False
        finally:
            progress.end()
            stop.disarm()
    return True


def left(look: Look) -> str:
    """Return what is still to be done, and whom one waits for if nobody can tell."""
    try:
        return look()
    except AWAY as error:
        return error.detail.partition("\n")[0]


def followed(act: Callable[[], bool], *, every_s: float, begun: bool = False) -> int:
    """Call `act` as `until_stopped` does, and wait for a broker that goes away meanwhile.

    Its absence and its return are told once. Unless it has `begun`, the first call must
    succeed.
    """
    away = False

    def again() -> bool:
        nonlocal away, begun
        try:
            more = act()
        except AWAY as error:
            if not begun:
                raise
            if not away:
                note(
                    f"catmq: {error.detail.partition(chr(10))[0]}; waiting for it until Ctrl-C"
                )
            away = True
            return False
        if away:
            note("catmq: it answers again")
        away, begun = False, True
        return more

    return until_stopped(again, every_s=every_s)
