"""Modes, states and choices of groups. Their values are stored and sent."""

from __future__ import annotations

from enum import StrEnum


class GroupMode(StrEnum):
    CLUSTERING = "clustering"  # each queue is read by one member
    BROADCASTING = "broadcasting"  # each member reads all queues
    SHARE = "share"  # members lease messages


class SubscriptionState(StrEnum):
    CREATING = "creating"  # until the reader rows exist on all nodes
    READY = "ready"
    DELETING = "deleting"  # until the reader rows are deleted


class Start(StrEnum):
    """Message at which the readers of a new subscription start."""

    EARLIEST = "earliest"
    LATEST = "latest"  # only messages sent after the subscription


class RedriveTarget(StrEnum):
    GROUP = "group"  # the group's own retry topic
    TOPIC = "topic"  # the topic, where every group gets the messages


class RedriveState(StrEnum):
    RUNNING = "running"  # continued by any broker
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class HandlingOutcome(StrEnum):
    """Outcome of a sampled attempt to handle a message."""

    HANDLED = "handled"
    FAILED = "failed"
    DELIVERED = "delivered"  # the result is unknown
