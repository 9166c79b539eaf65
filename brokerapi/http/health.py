"""Readiness of this process for sends and pulls, and what is missing."""

from __future__ import annotations

from typing import Literal

import msgspec

from brokerapi.http import draining
from messagestore.heads import corruption
from messagestore.nodes import registry
from metadata.brokers import registration
from metadata.cache import snapshot
from metadata.errors import MetadataUnavailable

MOST_NAMED = 10  # named one by one; the metrics count all
# a snapshot is renewed every 0.2 s; older than this, metadata does not answer
STALE_S = 5.0


class Health(msgspec.Struct, kw_only=True):
    """`because` says in words what is missing."""

    status: Literal["ok", "degraded", "unready"]
    because: list[str]


def readiness() -> Health:
    """ok, degraded (some sends or pulls work, or there is no node yet) or unready (none
    do).
    """
    if draining.refusal_reason():
        complaint = (
            [registration.registration_problem()]
            if registration.registration_problem()
            else []
        )
        return Health(status="unready", because=[draining.refusal_reason(), *complaint])
    try:
        known = snapshot.current()
    except MetadataUnavailable as error:
        return Health(
            status="unready",
            because=[f"there is no snapshot of the metadata: {error.detail}"],
        )
    if not known.nodes:
        # Not unready: whoever waits for readiness before the first node is registered must
        # not wait for ever.
        return Health(status="degraded", because=["no node is registered"])
    if all(node.state == "offline" for node in known.nodes.values()):
        return Health(status="unready", because=["all nodes are offline"])
    latencies = registry.latencies()
    silent = sorted(name for name, seconds in latencies.items() if seconds is None)
    quarantined = registry.quarantined()
    because = [f"node {name} does not answer" for name in silent if name not in quarantined]
    because += [
        f"node {name} is not served: {why}" for name, why in sorted(quarantined.items())
    ]
    because += registry.wrong_epochs()
    because += [f"queue {queue} is corrupt" for queue in corruption.current()[:MOST_NAMED]]
    if snapshot.age_s() > STALE_S:
        because.append(
            f"the metadata database has not answered for {snapshot.age_s():.0f} s"
        )
    if registration.registration_problem():
        because.append(
            f"this broker is not registered: {registration.registration_problem()}"
        )
    if silent and len(silent) == len(latencies):
        return Health(status="unready", because=because)
    return Health(status="degraded" if because else "ok", because=because)
