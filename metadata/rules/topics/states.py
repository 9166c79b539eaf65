"""Kinds, states and choices of topics and queues. Their values are stored and sent."""

from __future__ import annotations

from enum import StrEnum


class TopicKind(StrEnum):
    NORMAL = "normal"
    FAILURE = "failure"  # a retry topic: holds the failed messages of a group in a topic


class TopicState(StrEnum):
    CREATING = "creating"  # until all tables exist
    READY = "ready"
    DELETED = "deleted"


class Keyed(StrEnum):
    """What happens to a message with a key whose queue is closed."""

    STRICT = "strict"  # it waits until the queue opens
    AVAILABLE = "available"  # it goes to another queue


class OnUnknown(StrEnum):
    """What a client does about a send whose outcome stays unknown."""

    FAIL = "fail"
    RESEND = "resend"


class QueueState(StrEnum):
    """State of a queue. `queue_head.state` on the node decides; metadata has a copy."""

    CREATING = "creating"  # until the table exists
    READ_WRITE = "read_write"
    READ_ONLY = "read_only"  # closed for sends
    RETIRED = "retired"  # read by all groups; the table is dropped some days later


class KeyIndexState(StrEnum):
    """State of the index on the keys of a queue's messages."""

    NONE = "none"
    CHANGING = "changing"  # built or dropped now, or by a run that was interrupted
    READY = "ready"  # each partition of the table has it, so searches use it


# States in which messages of a queue can be read. Users set one of them.
READABLE_STATES = (QueueState.READ_ONLY, QueueState.READ_WRITE)
# States in which the table of a queue may be missing on its node.
STATES_WITHOUT_TABLE = (QueueState.CREATING, QueueState.RETIRED)
