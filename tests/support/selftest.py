"""Plant defects in a clean run in turn, and check that each is reported by kind and
place.
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
from tests.support.verdicts import Finding

# verify examines a suspicious queue again after this pause; here nothing changes meanwhile
QUICK_S = 0.01


@dataclass(frozen=True)
class NamedDefect:
    """A reported defect. `judge`: the expected finding; `verify`: the finding of
    manage.py verify.
    """

    defect: Defect
    judge: Finding
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


def run_verify() -> dict[str, str]:
    """Return the findings of verify: kind → sentence."""
    with _quick():
        report = verify.verify(topics=[TOPIC], actor=ME, rows_per_s=0, digests=True)
    assert report.complete
    assert not report.unseen, [queue.unseen for queue in report.unseen]
    return {
        finding.kind: f"{finding.kind}, queue {queue.id} {finding.where}: {finding.what}"
        for queue in report.queues
        for finding in queue.findings
    }


def is_clean(run: CleanRun) -> None:
    """Raise AssertionError if the judge or verify finds anything."""
    verdicts.assert_no_findings(verdicts.find_faults(run.evidence()))
    findings = run_verify()
    assert not findings, list(findings.values())


def prove_all(run: CleanRun) -> Iterator[NamedDefect]:
    """Yield every defect, each planted in a run without any other fault. Raises
    AssertionError.
    """
    # A fault of the run itself would hide the planted defects.
    is_clean(run)
    for defect in defects.ALL:
        yield prove(run, defect)
        verdicts.assert_no_findings(verdicts.find_faults(run.evidence()))
    is_clean(run)


def prove(run: CleanRun, defect: Defect) -> NamedDefect:
    """Plant a defect, check its findings, and restore the run.

    Raises AssertionError unless it is reported as expected.
    """
    defect.act(run)
    try:
        findings = verdicts.find_faults(run.evidence())
        # verify cannot find what only journals show.
        by_verify = run_verify() if defect in defects.IN_TABLES else {}
    finally:
        # Also after an error, so that the next defect is the only fault of the run.
        run.restore()
    place = defect.place.format(a=run.a, b=run.b)
    expected_findings = [
        finding
        for finding in findings
        if finding.kind == defect.judge and finding.place.startswith(place)
    ]
    finding_list = "\n  ".join(map(str, findings)) or "nothing"
    assert expected_findings, (
        f"{defect.name}: not named {defect.judge} at {place!r}, but\n  {finding_list}"
    )
    # A judge that reports too much would pass every other check.
    unexpected_kinds = {finding.kind for finding in findings} - {defect.judge, *defect.also}
    assert not unexpected_kinds, (
        f"{defect.name}: also named {sorted(unexpected_kinds)}:\n  {finding_list}"
    )
    if defect.verify is None:
        assert not by_verify, (
            f"{defect.name}: verify is not said to know of it: {by_verify}"
        )
        return NamedDefect(defect, expected_findings[0], "")
    assert defect.verify in by_verify, (
        f"{defect.name}: verify found {list(by_verify.values())}"
    )
    return NamedDefect(defect, expected_findings[0], by_verify[defect.verify])
