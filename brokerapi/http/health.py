"""Readiness of this process for sends and pulls, and the reasons why it is not ready."""

from __future__ import annotations

from typing import Literal

import msgspec

from brokerapi.http import draining
from messagestore.heads import corruption
from messagestore.nodes import registry
from metadata.brokers import registration
from metadata.cache import snapshot
from metadata.errors import MetadataUnavailable
from metadata.rules.nodes import NodeState

MOST_NAMED = 10  # corrupt queues in the answer; the metrics count all
# A snapshot is renewed every 0.2 s. If it is older than this, metadata does not answer.
STALE_S = 5.0


class Health(msgspec.Struct, kw_only=True):
    """`because` is a sentence about the missing part."""

    status: Literal["ok", "degraded", "unready"]
    because: list[str]


def readiness() -> Health:
    """Return ok, degraded (some sends or pulls work, or there is no node yet) or unready
    (none do).
    """
    if draining.refusal_reason():
        registration_problems = (
            [registration.registration_problem()]
            if registration.registration_problem()
            else []
        )
        return Health(
            status="unready", because=[draining.refusal_reason(), *registration_problems]
        )
    try:
        current = snapshot.current()
    except MetadataUnavailable as error:
        return Health(
            status="unready",
            because=[f"there is no snapshot of the metadata: {error.detail}"],
        )
    if not current.nodes:
        # Not unready: an installation script that waits for readiness before it registers
        # the first node must not hang.
        return Health(status="degraded", because=["no node is registered"])
    # Offline nodes are off by order, but without any other node nothing can be sent or
    # pulled.
    if all(node.state == NodeState.OFFLINE for node in current.nodes.values()):
        return Health(status="unready", because=["all nodes are offline"])
    # Probes of the background loop: /readyz itself connects to no node.
    latencies = registry.latencies()
    silent = sorted(name for name, seconds in latencies.items() if seconds is None)
    quarantined = registry.quarantined()
    reasons = [f"node {name} does not answer" for name in silent if name not in quarantined]
    reasons += [
        f"node {name} is not served: {reason}"
        for name, reason in sorted(quarantined.items())
    ]
    reasons += registry.wrong_epochs()
    reasons += [f"queue {queue} is corrupt" for queue in corruption.current()[:MOST_NAMED]]
    if snapshot.age_s() > STALE_S:
        reasons.append(
            f"the metadata database has not answered for {snapshot.age_s():.0f} s"
        )
    if registration.registration_problem():
        reasons.append(
            f"this broker is not registered: {registration.registration_problem()}"
        )
    # A single node that answers is enough to take traffic.
    if silent and len(silent) == len(latencies):
        return Health(status="unready", because=reasons)
    return Health(status="degraded" if reasons else "ok", because=reasons)
