"""Access checks. A right is a set of glob patterns over names of topics and groups.

Parameters: `name` the name of an object, `what` its kind (topic,
group, node, key …), which appears in errors and selects the names that an owner owns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from fnmatch import fnmatchcase

from metadata.actors import Actor
from metadata.errors import Forbidden, Invalid
from metadata.rules.rights import GRANTABLE, OWNED, TRUSTED, Right

# As a pattern: all names. As a name: an object that a right on some names does not include.
EVERYTHING = "*"


def may(actor: Actor, right: Right, name: str, *, what: str = "topic") -> bool:
    """Return True if the actor has `right` on `name`. `admin` includes every other right.

    A pattern matches topics and groups alike. Ownership does not: the owner of a topic
    `orders` has no right on a group `orders`.
    """
    if actor.kind in TRUSTED:
        return True
    patterns = (*actor.rights.get(right, ()), *actor.rights.get(Right.ADMIN, ()))
    if any(matches(name, pattern) for pattern in patterns):
        return True
    return right in OWNED and name in actor.owns.get(what, ())


def matches(name: str, pattern: str) -> bool:
    """Return True if a pattern matches a name. Only the pattern `*` matches EVERYTHING.

    >>> matches("team-a", "team-*"), matches("*", "*"), matches("*", "?"), matches("*", "[!a]*")
    (True, True, False, False)
    """
    return pattern == EVERYTHING if name == EVERYTHING else fnmatchcase(name, pattern)


def may_everything(actor: Actor) -> bool:
    """Return True if the actor has `admin` on everything."""
    return may(actor, Right.ADMIN, EVERYTHING)


def require_everything(actor: Actor, name: str, *, what: str) -> None:
    """Raise Forbidden unless the actor has `admin` on everything.

    For nodes and brokers: these hold messages of all teams and serve all teams, so a right
    on their name is not enough.
    """
    if not may_everything(actor):
        raise Forbidden(
            f"{actor.kind} {actor.name} lacks the right admin on *, which {what} {name} needs."
        )


def require_ownership(actor: Actor, name: str, *, what: str = "topic") -> None:
    """Raise Forbidden unless the actor has all rights of an owner of `name`. Else naming an
    owner would grant rights that the actor does not have.
    """
    for right in OWNED:
        if not may(actor, right, name, what=what):
            raise Forbidden(
                f"{actor.kind} {actor.name} lacks the right {right} on {what} {name}, "
                "which its owners get: "
                "who names owners needs admin on it, or is an owner."
            )


def require(actor: Actor, right: Right, name: str, *, what: str = "topic") -> None:
    """Raise Forbidden, with right and object, unless the actor has the right."""
    if not may(actor, right, name, what=what):
        raise Forbidden(
            f"{actor.kind} {actor.name} lacks the right {right} on {what} {name}."
        )


def require_any(
    actor: Actor, rights: Sequence[Right], name: str, *, what: str = "topic"
) -> None:
    """Raise Forbidden, with rights and object, unless the actor has any of the rights."""
    if not any(may(actor, right, name, what=what) for right in rights):
        alternatives = " or ".join(rights)
        raise Forbidden(
            f"{actor.kind} {actor.name} lacks the right {alternatives} on {what} {name}."
        )


def require_failure_origin(
    actor: Actor, right: Right, name: str, origin: tuple[str, str] | None
) -> None:
    """Raise Forbidden if the actor has a right on a failure topic only because a pattern
    happens to match its name.

    The name is `<group>_<topic>_fail`, so it does not show where the group's name ends. The
    pattern `pay_*`, meant for names of the team `pay_`, also matches the failure topics of
    the group `pay`. So the actor needs the right on the group or the topic (`origin`), or
    on the failure topic's exact name. `origin` is None for all other topics, which need no
    further check.
    """
    if origin is None or name in (
        *actor.rights.get(right, ()),
        *actor.rights.get(Right.ADMIN, ()),
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
    """Raise Forbidden unless the actor may grant or revoke these rights.

    An actor with `admin` on everything may grant all. Others may grant only patterns that
    are literally among their own `admin` patterns: it is not decided whether a pattern
    includes another.
    """
    admin_patterns = actor.rights.get(Right.ADMIN, ())
    if may_everything(actor):
        return
    for right, patterns in rights.items():
        for pattern in patterns:
            if pattern not in admin_patterns:
                raise Forbidden(
                    f"{actor.kind} {actor.name} may not give the right {right} on "
                    f"{pattern} or take it: "
                    f"its own admin patterns are {', '.join(admin_patterns) or 'none'}."
                )


def may_grant(actor: Actor, rights: Mapping[str, Sequence[str]]) -> bool:
    """Return True if the actor may grant these rights (see require_grantable)."""
    try:
        require_grantable(actor, rights)
    except Forbidden:
        return False
    return True


def may_see(actor: Actor, name: str) -> bool:
    """Return True if lists show `name` to the actor, which needs any right on it."""
    return any(may(actor, right, name) for right in Right)


def require_any_right(actor: Actor, group: str) -> None:
    """Raise Forbidden unless the actor has any right on a group."""
    if not may_see(actor, group):
        require(actor, Right.CONSUME, group, what="group")


def require_look(actor: Actor, topic: str, origin: tuple[str, str] | None) -> bool:
    """Return True if the actor may read a topic's messages with their bodies, False if only
    without. Raises Forbidden if neither.

    `origin`: as in `require_failure_origin`.
    """
    # Portal users see messages without bodies anyway, so a refusal of the bodies is no error.
    refusal = suppress(Forbidden) if Right.LOOK in actor.rights else nullcontext()
    if may(actor, Right.BROWSE, topic):
        with refusal:
            require_failure_origin(actor, Right.BROWSE, topic, origin)
            return True
    if not may(actor, Right.LOOK, topic):
        require(actor, Right.BROWSE, topic)
    return False


def check_rights(rights: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return `rights`. Raises Invalid, which names the field, for an unknown right or one
    without patterns.
    """
    if not rights:
        raise Invalid.field("rights", f"give at least one of {', '.join(GRANTABLE)}")
    for right, patterns in rights.items():
        if right not in GRANTABLE:
            raise Invalid.field(
                f"rights.{right}", f"is not a right; there are {', '.join(GRANTABLE)}"
            )
        if not patterns or not all(
            isinstance(pattern, str) and 0 < len(pattern) <= 210 for pattern in patterns
        ):
            raise Invalid.field(
                f"rights.{right}", 'needs a list of name patterns such as ["orders*"]'
            )
    return rights
