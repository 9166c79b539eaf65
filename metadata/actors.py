"""Actor: the caller of a function that changes metadata. Access checks use its rights, the
audit log its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metadata.rules.rights import ActorKind


@dataclass(frozen=True, slots=True)
class Actor:
    """A portal user, an API key, a command on the server, or a job.

    `rights` maps a right (produce, consume, browse, manage, admin) to glob patterns over
    names. Commands and jobs need none. `owns` maps "topic" and "group" to the names of the
    topics and groups that list a user among their owners. `key_id` is the id of the ApiKey
    if the kind is "key".
    """

    kind: ActorKind
    name: str
    address: str = ""
    rights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    owns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    key_id: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def command(name: str) -> Actor:
    """Return the actor of a management command. It may do everything, because only users of
    the server can run it.
    """
    return Actor(kind=ActorKind.COMMAND, name=name)


def job(name: str) -> Actor:
    """Return the actor of a job, which may do everything."""
    return Actor(kind=ActorKind.JOB, name=name)
