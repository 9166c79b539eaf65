"""`--wait`: a command returns when what it began is done; on a terminal a line tells how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable

from catmq_client.cli.output import Progress, note
from catmq_client.cli.stop import Stop, Stopped
from catmq_client.cli.verbs import Argument
from catmq_client.errors import AnswerLost, ConnectFailed, Unavailable

WAIT = Argument("--wait", "wait until it is done")
EVERY_S = 1.0

# Returns what is still to be done, as text; '' if nothing is.
Look = Callable[[], str]


def waited(look: Look, *, goes_on: str) -> bool:
    """Look again and again until all is done; False if a signal ended the wait.

    `goes_on`: what the end of the wait does not stop. Brokers and nodes that do not answer are waited for.
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
    except (ConnectFailed, AnswerLost, Unavailable) as error:
        return error.detail.partition("\n")[0]
