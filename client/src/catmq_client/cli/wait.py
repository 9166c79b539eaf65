"""`--wait`: a command returns when the work it began is done. A terminal shows the
progress.
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
UNREACHABLE = (ConnectFailed, AnswerLost, Unavailable)

# Returns the remaining work as text, '' if it is done.
DescribeWork = Callable[[], str]


def wait_until_done(remaining_work: DescribeWork, *, continues: str) -> bool:
    """Wait until no work remains. Return False if a signal ended the wait.

    `continues` names the work that the signal does not stop. Brokers and nodes that do not
    answer are waited for.
    """
    progress = Progress()
    with Stop() as stop:
        try:
            while True:
                try:
                    text = remaining_work()
                except UNREACHABLE as error:
                    # The brokers do the work, so it continues while they cannot be reached
                    # from here.
                    text = error.detail.partition("\n")[0]
                if not text:
                    break
                progress.show(text)
                # A signal loses nothing here, so it ends the pause at once.
                with stop.waiting():
                    time.sleep(EVERY_S)
        except Stopped:
            progress.clear()
            note(f"catmq: stopped waiting; {continues}")
            return False
        finally:
            progress.clear()
            stop.disarm()
    return True


def repeat_until_stopped(
    act: Callable[[], bool], *, every_s: float, begun: bool = False
) -> int:
    """Call `act` as `until_stopped` does, and wait for a broker that does not answer.

    Its absence and its return are noted once. Unless `begun`, the first call must succeed.
    """
    is_away = False

    def act_once() -> bool:
        nonlocal is_away, begun
        try:
            more = act()
        except UNREACHABLE as error:
            # A first failure may be a wrong URL, for which waiting does not help.
            if not begun:
                raise
            if not is_away:
                note(
                    f"catmq: {error.detail.partition(chr(10))[0]}; waiting for it until Ctrl-C"
                )
            is_away = True
            return False
        if is_away:
            note("catmq: it answers again")
        is_away, begun = False, True
        return more

    return until_stopped(act_once, every_s=every_s)
