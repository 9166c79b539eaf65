"""Kinds of actors, and the rights that they have on names of topics and groups."""

from __future__ import annotations

from enum import StrEnum


class ActorKind(StrEnum):
    USER = "user"  # of the portal
    KEY = "key"  # an API key
    COMMAND = "command"  # a management command on the server
    JOB = "job"


class Right(StrEnum):
    PRODUCE = "produce"
    CONSUME = "consume"
    BROWSE = "browse"
    MANAGE = "manage"
    ADMIN = "admin"  # includes every other right
    # Names, states, figures, and messages without their bodies. Every portal user has it,
    # so it cannot be granted.
    LOOK = "look"


GRANTABLE = tuple(right for right in Right if right is not Right.LOOK)
# Actors that need no rights, because only users of the server can run them.
TRUSTED = (ActorKind.COMMAND, ActorKind.JOB)
# The rights of an owner on an owned topic or group.
OWNED = (Right.MANAGE, Right.PRODUCE, Right.CONSUME, Right.BROWSE)
