"""Entries in the audit log, and alarms, about the server that metadata is written to.

If CATMQ_DATABASE_URL names several servers, each process follows the writer by itself
(catmq_site/mysql/servers.py). One process of all brokers writes the entries. They are the
only record: a row of its own would be in the same database.
"""

from __future__ import annotations

from catmq_site.mysql import servers
from metadata.actors import job
from metadata.db import audit
from metadata.db.transactions import transactional
from metadata.models import AuditLog
from metadata.monitoring import alarms
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import alarm_text
from metadata.rules.audit_verbs import Verb

KIND = "metadata"


class WriterNotes:
    """Compares the writer with the last entry. `hosts` is HOST of the metadata database."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._noted = ""  # the writer of the last entry, once it was read

    @transactional
    def run_once(self) -> None:
        """Write an entry and raise an alarm if the writer is another one.

        Raises MetadataUnavailable.
        """
        writer = servers.current_writer(self._hosts)
        if writer is None or (place := str(writer.address)) == self._noted:
            return
        entries = AuditLog.objects.filter(verb=Verb.FOLLOW, kind=KIND, name=KIND)
        last = entries.order_by("-id").first()
        former = last.after["writer"] if last is not None and last.after else None
        if former != place:
            audit.record(
                actor=job("metadata"),
                verb=Verb.FOLLOW,
                kind=KIND,
                name=KIND,
                before=None if former is None else {"writer": former},
                after={"writer": place},
            )
        if former not in (None, place):
            detail = alarm_text("metadata_moved", before=former, after=place)
            alarms.raise_alarm(kind=AlarmKind.METADATA_MOVED, name=KIND, detail=detail)
        self._noted = place
