"""The entry point of the doctor: which checks there are, and who may run them."""

from __future__ import annotations

import threading
import time

from django.db import DatabaseError

from messagestore.doctor import metadata_checks, node_checks, site_checks
from messagestore.doctor.checkup import Check, Findings, run_checks
from messagestore.doctor.findings import Report, SubjectKind, finding
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.errors import CatmqError, Code, NodeUnavailable

_running = threading.Lock()


def examine(*, actor: Actor) -> Report:
    """Run all checks, and return the report. It takes a few seconds, at most 10.

    Needs `admin` on everything. Nothing is changed but a table on each node, which is
    created and dropped to try the rights of its account. Raises NodeUnavailable(busy) while
    this process runs the checks already.
    """
    access.require_everything(actor, "*", what="installation")
    # Threads of checks that hang must not pile up when somebody asks repeatedly.
    if not _running.acquire(blocking=False):
        raise NodeUnavailable(
            "The checks are running already. Repeat it in a few seconds.",
            code=Code.BUSY,
            retry_after_ms=3000,
        )
    try:
        return _examine(actor)
    finally:
        _running.release()


def _examine(actor: Actor) -> Report:
    """Load what the list of checks depends on, then run the checks."""
    started_at = time.monotonic()
    checks: list[Check] = []

    def list_checks() -> Findings:
        """List the checks, which depend on the nodes and brokers in metadata."""
        try:
            # Only an answer of now counts: a broker may have a snapshot from before.
            snapshot.refresh()
            nodes = sorted(snapshot.current().nodes.values(), key=lambda node: node.name)
            checks.extend(
                [
                    *metadata_checks.list_checks(),
                    *node_checks.list_checks(nodes, actor=actor),
                    *site_checks.list_checks(),
                ]
            )
        # DatabaseError: the database answers, and lacks the tables.
        except (CatmqError, DatabaseError) as error:
            reason = str(error).rstrip(".")
            return [finding("metadata_away", SubjectKind.METADATA, reason=reason)]
        return []

    # In a thread of its own, too: a metadata database that hangs holds up the first query.
    first = run_checks([Check("metadata", list_checks, limit_s=3.0)])
    findings = first or run_checks(checks)
    return Report(
        tuple(findings),
        # Without the list of checks, no other check was made.
        checks=1 if first else len(checks) + 1,
        seconds=time.monotonic() - started_at,
    )
