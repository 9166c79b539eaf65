"""Who may do what: rights are glob patterns over names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from metadata.actors import Actor
from metadata.errors import Forbidden, Invalid

RIGHTS = ("produce", "consume", "browse", "manage", "admin")
TRUSTED = ("command", "job")
OWNED = ("manage", "produce", "consume", "browse")  # what an owner may do with what is theirs
LOOK = "look"  # of people in the portal: names, states, figures, and messages without what they say


def may(actor: Actor, right: str, name: str, *, what: str = "topic") -> bool:
    """Whether the actor has `right` on what is called `name`; `admin` includes every other right.

    Patterns speak of topics and groups alike; who owns the topic `orders` has no right on a group `orders`.
    """
    if actor.kind in TRUSTED:
        return True
    patterns = (*actor.rights.get(right, ()), *actor.rights.get("admin", ()))
    if any(fnmatchcase(name, pattern) for pattern in patterns):
        return True
    return right in OWNED and name in actor.owns.get(what, ())


def require(actor: Actor, right: str, name: str, *, what: str = "topic") -> None:
    """Raises Forbidden, naming right and resource; `what` is topic, group, node, key …"""
    if not may(actor, right, name, what=what):
        raise Forbidden(f"{actor.kind} {actor.name} lacks the right {right} on {what} {name}.")


def require_grantable(actor: Actor, rights: Mapping[str, Sequence[str]]) -> None:
    """Raises Forbidden unless the actor may give these rights away.

    Whoever has `admin` on everything may give anything; others only the patterns that they have `admin` on
    themselves, letter by letter: whether one pattern covers another is not asked.
    """
    own = actor.rights.get("admin", ())
    if actor.kind in TRUSTED or "*" in own:
        return
    for right, patterns in rights.items():
        for pattern in patterns:
            if pattern not in own:
                raise Forbidden(
                    f"{actor.kind} {actor.name} may not give the right {right} on {pattern}: "
                    f"its own admin patterns are {', '.join(own)}."
                )


def sees(actor: Actor, name: str) -> bool:
    """Whether lists show `name` to the actor: any right will do."""
    return any(may(actor, right, name) for right in (*RIGHTS, LOOK))


def require_look(actor: Actor, topic: str) -> bool:
    """Raises Forbidden unless the actor may look at a topic's messages; whether it may read them whole."""
    if may(actor, "browse", topic):
        return True
    if not may(actor, LOOK, topic):
        require(actor, "browse", topic)
    return False


def check_rights(rights: dict[str, list[str]]) -> dict[str, list[str]]:
    """`rights` if every right exists and has patterns; raises Invalid naming the field."""
    if not rights:
        raise Invalid.field("rights", f"give at least one of {', '.join(RIGHTS)}")
    for right, patterns in rights.items():
        if right not in RIGHTS:
            raise Invalid.field(f"rights.{right}", f"is not a right; there are {', '.join(RIGHTS)}")
        if not patterns or not all(isinstance(one, str) and 0 < len(one) <= 210 for one in patterns):
            raise Invalid.field(f"rights.{right}", 'needs a list of name patterns such as ["orders*"]')
    return rights
