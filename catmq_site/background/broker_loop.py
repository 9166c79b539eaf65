"""Renews the registration of this broker, pass by pass, and applies the answers."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from brokerapi.http import draining
from catmq_site import credentials
from catmq_site.background import broker_memory
from messagestore.nodes import registry
from messagestore.pool import node_pools
from metadata.actors import job
from metadata.brokers import discovery, registration, snapshot_acks
from metadata.cache import snapshot
from metadata.errors import MetadataUnavailable
from metadata.rules.membership.brokers import BrokerState

log = logging.getLogger(__name__)
COMPLAIN_EVERY_S = 60.0  # between two log lines about a name that another broker uses


@dataclass(slots=True)
class BrokerLoop:
    """Keeps this broker's row and the list of all brokers fresh, and applies the state in
    the row.

    While metadata is unreachable, the last list stays and the broker keeps its state.
    """

    identity: registration.BrokerIdentity
    ack: snapshot_acks.SnapshotAck
    last_complaint: str = ""
    complained_at: float = float("-inf")
    is_unreachable: bool = False
    other_urls: tuple[str, ...] | None = None  # that credentials.env has

    def run_once(self) -> None:
        """Send a heartbeat, or record the stop if the broker stops."""
        try:
            if draining.is_stopping():
                registration.record_stop(identity=self.identity)
                return
            registration_state = registration.heartbeat(
                identity=self.identity, held=broker_memory.is_registered()
            )
            # Record up to which change this worker uses nothing older: moving a node waits
            # for that.
            change = snapshot.current().version[1]
            if node_pools.drop_outdated():
                registry.report_heads()
                self.ack.acknowledge(identity=self.identity, change=change)
        except MetadataUnavailable as error:
            if not self.is_unreachable:
                log.warning("Broker registration failed, will retry: %s", error.detail)
            # The next pass is the retry; log only the first failure.
            self.is_unreachable = True
            return
        self.is_unreachable = False
        if registration_state.registered:
            broker_memory.mark_registered()
        self._update_credentials()
        if registration_state.state == BrokerState.OUT:
            draining.disable()
        else:
            draining.enable()
        complaint, now = registration_state.complaint, time.monotonic()
        if complaint and (
            complaint != self.last_complaint or now - self.complained_at > COMPLAIN_EVERY_S
        ):
            log.error("This broker is not registered, so no client finds it: %s", complaint)
            self.complained_at = now
        self.last_complaint = complaint

    def _update_credentials(self) -> None:
        """Write the URLs of the other brokers to credentials.env if they have changed."""
        other_urls = discovery.other_urls(self.identity.name, actor=job("brokers"))
        if other_urls == self.other_urls:
            return
        # A failed write is not repeated until the brokers change: the file still names this
        # broker, and clients discover the others through it.
        self.other_urls = other_urls
        try:
            credentials.list_other_brokers(other_urls)
        except OSError as error:
            log.warning("credentials.env does not list the other brokers: %s", error)

    def finish(self) -> None:
        """Record the stop if that was not done, and drop the list of brokers, which is not
        refreshed any more.
        """
        try:
            if draining.is_stopping():
                registration.record_stop(identity=self.identity)
        finally:
            registration.evict()
