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

    `continues` is printed then: a sentence about the work, which the signal does not stop.
    An error of UNREACHABLE does not end the wait.
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
    """Call `act` until a signal comes, also while brokers do not answer. Return exit code 0.

    Pauses for `every_s` seconds after each call that returned False or could not reach a
    broker. The begin and the end of an outage are printed once. `begun` is True if the caller
    has reached a broker before; else an error of the first call is raised.
    """
    is_outage = False

    def act_once() -> bool:
        nonlocal is_outage, begun
        try:
            has_more = act()
        except UNREACHABLE as error:
            # A first failure may be a wrong URL, for which waiting does not help.
            if not begun:
                raise
            if not is_outage:
                cause, _, _ = error.detail.partition("\n")
                note(f"catmq: {cause}; waiting for it until Ctrl-C")
            is_outage = True
            return False
        if is_outage:
            note("catmq: it answers again")
        is_outage, begun = False, True
        return has_more

    return until_stopped(act_once, every_s=every_s)
