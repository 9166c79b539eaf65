"""The talk of one worker with the registry of brokers, pass by pass, and its consequences."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from brokerapi.http import draining
from catmq_site.background import broker_memory
from messagestore.nodes import registry
from messagestore.pool import node_pools
from metadata.brokers import registration, snapshot_acks
from metadata.cache import snapshot
from metadata.errors import MetadataUnavailable

log = logging.getLogger(__name__)
COMPLAIN_EVERY_S = 60.0  # about a name that another broker has


@dataclass(slots=True)
class BrokerLoop:
    """Keeps the broker's row fresh and the list of all brokers in memory; does what the row
    says.

    While metadata is away the last list stays, and the broker is in or out as it was.
    """

    identity: registration.BrokerIdentity
    ack: snapshot_acks.SnapshotAck
    complained: str = ""
    complained_at: float = float("-inf")
    away: bool = False

    def run_once(self) -> None:
        """One heartbeat; a good-bye instead if the broker stops."""
        try:
            if draining.is_stopping():
                registration.record_stop(identity=self.identity)
                return
            known = registration.heartbeat(
                identity=self.identity, held=broker_memory.registered()
            )
            self._acknowledge()
        except MetadataUnavailable as error:
            if not self.away:
                log.warning("Broker registration failed, will retry: %s", error.detail)
            self.away = True
            return
        self.away = False
        self._follow(known)

    def _acknowledge(self) -> None:
        """Tell up to which change this worker uses nothing older: who moves a node waits
        for that.
        """
        change = snapshot.current().version[1]
        if node_pools.is_current():
            registry.report_heads()
            self.ack.acknowledge(identity=self.identity, change=change)

    def _follow(self, known: registration.Registration) -> None:
        if known.registered:
            broker_memory.note_registered()
        if known.state == "out":
            draining.disable()
        else:
            draining.enable()
        self._complain(known.complaint)

    def _complain(self, complaint: str) -> None:
        now = time.monotonic()
        if complaint and (
            complaint != self.complained or now - self.complained_at > COMPLAIN_EVERY_S
        ):
            log.error("This broker is not registered, so no client finds it: %s", complaint)
            self.complained_at = now
        self.complained = complaint

    def finish(self) -> None:
        """The good-bye, if there was none, and the end of the list that nobody keeps fresh
        now.
        """
        try:
            if draining.is_stopping():
                registration.record_stop(identity=self.identity)
        finally:
            registration.evict()
