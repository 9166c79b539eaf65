"""Runs all checks of the doctor at once, each in a thread with a time limit.

A database that hangs must neither hold up the report nor hide other findings. So a check
that does not end in time, or fails, is itself a finding. Its thread is abandoned: it ends
when the connection of its check times out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from django.db import close_old_connections
from msgspec import Struct

from messagestore.doctor.advice import Severity
from messagestore.doctor.findings import Finding, SubjectKind, finding
from metadata.errors import CatmqError

log = logging.getLogger(__name__)
LIMIT_S = 6.0  # of a check
# A finding is made of a whole list of checks, so that each list may be computed by a check.
Findings = Iterable[Finding]


class Check(Struct, frozen=True):
    """A check. `run` returns its findings; it may raise anything."""

    name: str
    run: Callable[[], Findings]
    limit_s: float = LIMIT_S


class _CheckThread(threading.Thread):
    """Runs a check and keeps its findings. A daemon, so that no process waits for it."""

    def __init__(self, check: Check) -> None:
        super().__init__(name=f"doctor {check.name}", daemon=True)
        self.check = check
        self.findings: list[Finding] | None = None

    def run(self) -> None:
        findings: list[Finding] = []
        try:
            # One at a time: a check that fails later keeps what it has found before.
            findings.extend(self.check.run())
        except Exception as error:
            if not isinstance(error, CatmqError):
                log.exception("The check %s failed", self.check.name)
            reason = error.detail if isinstance(error, CatmqError) else repr(error)
            findings.append(
                finding(
                    "check_failed",
                    SubjectKind.DOCTOR,
                    check=self.check.name,
                    reason=reason.rstrip("."),
                )
            )
        finally:
            # Django's connections belong to the thread.
            close_old_connections()
        self.findings = findings


def run_checks(checks: Sequence[Check]) -> list[Finding]:
    """Run checks at the same time. Return all findings, errors first."""
    threads = [_CheckThread(check) for check in checks]
    started_at = time.monotonic()
    for thread in threads:
        thread.start()
    findings: list[Finding] = []
    for thread in threads:
        check = thread.check
        thread.join(max(0.0, started_at + check.limit_s - time.monotonic()))
        # Read once: a late thread may set it at any time.
        results = thread.findings
        if results is None:
            values = {"check": check.name, "seconds": check.limit_s}
            results = [finding("check_timeout", SubjectKind.DOCTOR, **values)]
        findings += results
    return sorted(findings, key=lambda result: result.severity != Severity.ERROR)
