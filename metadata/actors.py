"""The caller: every mutating verb takes an Actor, access checks its rights, audit writes
its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["user", "key", "command", "job"]


@dataclass(frozen=True, slots=True)
class Actor:
    """A portal user, an API key, a command on the server, or a job.

    `rights` maps a right (produce, consume, browse, manage, admin) to glob patterns over
    names; commands and jobs need none. `owns` maps topic and group to the names of those
    that list a user among their owners. `key_id` is the ApiKey row when kind is "key".
    """

    kind: Kind
    name: str
    address: str = ""
    rights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    owns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    key_id: int | None = None


def command(name: str) -> Actor:
    """The actor of a management command: whoever may run it on the server may do
    everything.
    """
    return Actor(kind="command", name=name)


def job(name: str) -> Actor:
    return Actor(kind="job", name=name)
