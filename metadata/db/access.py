"""Access checks: rights are glob patterns over names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from fnmatch import fnmatchcase

from metadata.actors import Actor
from metadata.errors import Forbidden, Invalid

RIGHTS = ("produce", "consume", "browse", "manage", "admin")
TRUSTED = ("command", "job")
# what an owner may do with what is theirs
OWNED = ("manage", "produce", "consume", "browse")
EVERYTHING = "*"  # the pattern, and the name of what no pattern of some names reaches
# of users in the portal: names, states, figures, and messages without what they say
LOOK = "look"


def may(actor: Actor, right: str, name: str, *, what: str = "topic") -> bool:
    """Return True if the actor has `right` on what is called `name`; `admin` includes every
    other right.

    Patterns speak of topics and groups alike; who owns the topic `orders` has no right on a
    group `orders`.
    """
    if actor.kind in TRUSTED:
        return True
    patterns = (*actor.rights.get(right, ()), *actor.rights.get("admin", ()))
    if any(matches(name, pattern) for pattern in patterns):
        return True
    return right in OWNED and name in actor.owns.get(what, ())


def matches(name: str, pattern: str) -> bool:
    """Return True if a pattern reaches a name. Only `*` reaches everything: `?` means names
    of one letter.

    >>> matches("team-a", "team-*"), matches("*", "*"), matches("*", "?"), matches("*", "[!a]*")
    (True, True, False, False)
    """
    return pattern == EVERYTHING if name == EVERYTHING else fnmatchcase(name, pattern)


def may_everything(actor: Actor) -> bool:
    return may(actor, "admin", EVERYTHING)


def require_everything(actor: Actor, name: str, *, what: str) -> None:
    """Raise Forbidden unless the actor has `admin` on everything, whatever `what` is
    called.

    A node holds every team's messages and a broker serves every team, so a right on some
    names cannot do.
    """
    if not may_everything(actor):
        raise Forbidden(
            f"{actor.kind} {actor.name} lacks the right admin on *, which {what} {name} needs."
        )


def require_ownership(actor: Actor, name: str, *, what: str = "topic") -> None:
    """Raise Forbidden unless the actor may do all that owners of `name` may: nobody gives
    away more.
    """
    for right in OWNED:
        if not may(actor, right, name, what=what):
            raise Forbidden(
                f"{actor.kind} {actor.name} lacks the right {right} on {what} {name}, "
                "which its owners get: "
                "who names owners needs admin on it, or is an owner."
            )


def require(actor: Actor, right: str, name: str, *, what: str = "topic") -> None:
    """Raise Forbidden, naming right and resource; `what` is topic, group, node, key …"""
    if not may(actor, right, name, what=what):
        raise Forbidden(
            f"{actor.kind} {actor.name} lacks the right {right} on {what} {name}."
        )


def require_any(
    actor: Actor, rights: Sequence[str], name: str, *, what: str = "topic"
) -> None:
    """Raise Forbidden, naming the rights and the resource, unless the actor has one of
    them.
    """
    if not any(may(actor, right, name, what=what) for right in rights):
        named = " or ".join(rights)
        raise Forbidden(
            f"{actor.kind} {actor.name} lacks the right {named} on {what} {name}."
        )


def require_failure_origin(
    actor: Actor, right: str, name: str, origin: tuple[str, str] | None
) -> None:
    """Raise Forbidden unless a right on a failure topic's name also reaches its group or
    topic (`origin`).

    The name is `<group>_<topic>_fail`, and says nothing of where the group ends: `pay_*` is
    meant for what the team `pay_` has, and matches what the group `pay` failed at in any
    topic, too. A right that gives the whole name is meant so. `origin` is None for all
    other topics, which need nothing more.
    """
    if origin is None or name in (
        *actor.rights.get(right, ()),
        *actor.rights.get("admin", ()),
    ):
        return
    group, topic = origin
    if not (may(actor, right, topic) or may(actor, right, group, what="group")):
        raise Forbidden(
            f"{actor.kind} {actor.name} lacks the right {right} on group {group} or topic "
            f"{topic}, whose "
            f"failed messages are in {name}."
        )


def require_grantable(actor: Actor, rights: Mapping[str, Sequence[str]]) -> None:
    """Raise Forbidden unless the actor may give these rights away.

    Whoever has `admin` on everything may give anything; others only the patterns that they
    have `admin` on themselves, letter by letter: whether one pattern covers another is not
    asked.
    """
    own = actor.rights.get("admin", ())
    if may_everything(actor):
        return
    for right, patterns in rights.items():
        for pattern in patterns:
            if pattern not in own:
                raise Forbidden(
                    f"{actor.kind} {actor.name} may not give the right {right} on "
                    f"{pattern} or take it: "
                    f"its own admin patterns are {', '.join(own) or 'none'}."
                )


def may_grant(actor: Actor, rights: Mapping[str, Sequence[str]]) -> bool:
    try:
        require_grantable(actor, rights)
    except Forbidden:
        return False
    return True


def may_see(actor: Actor, name: str) -> bool:
    """Return True if lists show `name` to the actor: any right will do."""
    return any(may(actor, right, name) for right in (*RIGHTS, LOOK))


def require_any_right(actor: Actor, group: str) -> None:
    """Raise Forbidden unless the actor has any right on a group."""
    if not may_see(actor, group):
        require(actor, "consume", group, what="group")


def require_look(actor: Actor, topic: str, origin: tuple[str, str] | None) -> bool:
    """Raise Forbidden unless the actor may look at a topic's messages; whether it may read
    them whole.

    `origin`: as in `require_failed`.
    """
    # users see the outside of all
    looks = suppress(Forbidden) if LOOK in actor.rights else nullcontext()
    if may(actor, "browse", topic):
        with looks:
            require_failure_origin(actor, "browse", topic, origin)
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
            raise Invalid.field(
                f"rights.{right}", f"is not a right; there are {', '.join(RIGHTS)}"
            )
        if not patterns or not all(
            isinstance(one, str) and 0 < len(one) <= 210 for one in patterns
        ):
            raise Invalid.field(
                f"rights.{right}", 'needs a list of name patterns such as ["orders*"]'
            )
    return rights
