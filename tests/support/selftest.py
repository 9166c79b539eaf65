"""Plants defects in a clean run, one after the other, and shows that each is named by kind
and place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from messagestore import verify
from messagestore.verify import run as verify_run
from messagestore.verify import visit
from tests.support import defects, verdicts
from tests.support.clean_run import ME, TOPIC, CleanRun
from tests.support.defects import Defect
from tests.support.verdicts import Found

# what looks wrong to verify is looked at again after so long: nobody works meanwhile
QUICK_S = 0.01


@dataclass(frozen=True)
class Named:
    """The names of a defect. `judge`: the finding that had to come; `verify`: that of
    manage.py verify.
    """

    defect: Defect
    judge: Found
    verify: str

    def __str__(self) -> str:
        name = self.defect.name
        return f"{name}\n    judge   {self.judge}\n    verify  {self.verify or '-'}"


@contextmanager
def _quick() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(verify_run, "AGAIN_AFTER_S", QUICK_S))
        stack.enter_context(patch.object(visit, "PAUSE_S", QUICK_S))
        yield


def audited() -> dict[str, str]:
    """Return what verify finds: kind → sentence."""
    with _quick():
        report = verify.verify(topics=[TOPIC], actor=ME, rows_per_s=0, digests=True)
    assert report.complete
    assert not report.unseen, [one.unseen for one in report.unseen]
    return {
        one.kind: f"{one.kind}, queue {queue.id} {one.where}: {one.what}"
        for queue in report.queues
        for one in queue.findings
    }


def is_clean(run: CleanRun) -> None:
    """Raises AssertionError unless neither the judge nor verify finds anything."""
    verdicts.nothing(verdicts.found(run.evidence()))
    found = audited()
    assert not found, list(found.values())


def proved(run: CleanRun) -> Iterator[Named]:
    """Every defect, each planted in a run of which nothing else is wrong. Raises
    AssertionError.
    """
    is_clean(run)
    for defect in defects.ALL:
        yield prove(run, defect)
        verdicts.nothing(verdicts.found(run.evidence()))
    is_clean(run)


def prove(run: CleanRun, defect: Defect) -> Named:
    """Plants a defect, and takes it away again. Raises AssertionError unless it is named as
    it must be.
    """
    defect.act(run)
    try:
        found = verdicts.found(run.evidence())
        # Of what journals tell verify cannot know.
        by_verify = audited() if defect in defects.IN_TABLES else {}
    finally:
        run.restore()
    place = defect.place.format(a=run.a, b=run.b)
    mine = [
        one for one in found if one.kind == defect.judge and one.place.startswith(place)
    ]
    listed = "\n  ".join(map(str, found)) or "nothing"
    assert mine, f"{defect.name}: not named {defect.judge} at {place!r}, but\n  {listed}"
    strange = {one.kind for one in found} - {defect.judge, *defect.also}
    assert not strange, f"{defect.name}: also named {sorted(strange)}:\n  {listed}"
    if defect.verify is None:
        assert not by_verify, (
            f"{defect.name}: verify is not said to know of it: {by_verify}"
        )
        return Named(defect, mine[0], "")
    assert defect.verify in by_verify, (
        f"{defect.name}: verify found {list(by_verify.values())}"
    )
    return Named(defect, mine[0], by_verify[defect.verify])
