"""Questions to several database servers at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from metadata.rules.addresses import Address
from metadata.rules.cluster_members import Member

# For the other servers, once an answer decides. Servers that work answer within milliseconds,
# and one that is frozen or cut off must not delay the choice of another one.
GRACE_S = 0.3
LATE = "it did not answer as fast as the others"


def ask_all(
    places: Sequence[Address],
    ask: Callable[[Address], Member | str],
    *,
    decides: Callable[[Member], bool] | None = None,
) -> tuple[list[Member], dict[Address, str]]:
    """Return the servers that answered, in order, and why each of the others did not.

    `ask` returns what a server says of itself, or why it did not answer. After an answer
    for which `decides` returns True, servers that need longer than GRACE_S are left out.
    Their threads end by themselves, after the time limit of `ask`.
    """
    pool = ThreadPoolExecutor(len(places), thread_name_prefix="survey")
    futures: dict[Future[Member | str], Address] = {
        pool.submit(ask, place): place for place in places
    }
    answers: dict[Address, Member | str] = {}
    pending, ends_at = set(futures), float("inf")
    while pending and (left_s := ends_at - time.monotonic()) > 0:
        done, pending = wait(
            pending,
            timeout=None if ends_at == float("inf") else left_s,
            return_when=FIRST_COMPLETED,
        )
        for future in done:
            answer = answers[futures[future]] = future.result()
            if decides and isinstance(answer, Member) and decides(answer):
                ends_at = min(ends_at, time.monotonic() + GRACE_S)
    pool.shutdown(wait=False)
    members, reasons = [], {}
    for place in places:
        answer = answers.get(place, LATE)
        if isinstance(answer, Member):
            members.append(answer)
        else:
            reasons[place] = answer
    return members, reasons
