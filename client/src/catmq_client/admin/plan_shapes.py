"""The shapes of a read plan, as a broker answers it."""

from __future__ import annotations

from typing import TypedDict


class PlannedQueue(TypedDict):
    """Location of a queue: offsets low … head - 1 of its table, without the gaps (from, to exclusive)."""

    queue: int
    number: int
    node: str
    table: str
    low: int
    head: int
    gaps: list[list[int]]


class PlannedNode(TypedDict):
    """A node as jobs reach it; user name and password are empty if it has no reader account."""

    name: str
    engine: str
    host: str
    port: int
    database: str
    identity: str
    username: str
    password: str


class ReadPlan(TypedDict):
    """Location of a topic's messages. It holds passwords: keep it out of logs."""

    topic: str
    queues: list[PlannedQueue]
    nodes: list[PlannedNode]
