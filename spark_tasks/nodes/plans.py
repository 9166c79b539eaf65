"""The read plan of a topic, from the broker, and the accounts with which a job reads nodes.

A plan contains passwords. Only `Address` holds them, and its repr leaves them out. They
leave the driver only within the pickled partitions of a read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from catmq_client import HttpTransport
from catmq_client.admin.calls import path_of
from catmq_client.errors import CatmqError
from catmq_client.http.transport import request_until
from catmq_client.version import VERSION, is_older
from spark_tasks.errors import JobError, NodeError, OptionError
from spark_tasks.nodes import tls

PATIENCE_S = 30.0  # for an unavailable broker


class Span(NamedTuple):
    """The offsets first … end - 1."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node is, and the account that reads it."""

    name: str
    engine: str
    host: str
    port: int
    database: str
    identity: str
    username: str = field(repr=False)
    password: str = field(repr=False)
    tls: str = "off"
    tls_ca: str = ""


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """Where a queue is stored, and its offsets low … head - 1 without the gaps."""

    queue: int
    number: int
    table: str
    low: int
    head: int
    gaps: tuple[Span, ...]
    node: Address


@dataclass(frozen=True, slots=True)
class Plan:
    """The queues of a topic, ordered by number."""

    topic: str
    queues: tuple[PlannedQueue, ...]

    def queue(self, queue: int) -> PlannedQueue:
        """Return the queue with this id. Raises OptionError."""
        for planned_queue in self.queues:
            if planned_queue.queue == queue:
                return planned_queue
        queue_ids = ", ".join(str(planned.queue) for planned in self.queues)
        raise OptionError(
            f"{queue} is not a queue of topic {self.topic}; its queues are {queue_ids}"
        )


def open_transport(url: str | None = None) -> HttpTransport:
    """Return a transport to the brokers of `url` or CATMQ_URL. Raises OptionError."""
    urls = url or os.environ.get("CATMQ_URL", "")
    if not urls:
        raise OptionError("no broker is named: set CATMQ_URL, or option url")
    if not os.environ.get("CATMQ_API_KEY"):
        raise OptionError(
            "set CATMQ_API_KEY, in the driver's environment, to a key of the broker"
        )
    return HttpTransport(urls.split(","))


def fetch(
    topic: str,
    *,
    url: str | None = None,
    queues: Collection[int] = (),
    environ: Mapping[str, str] = os.environ,
) -> Plan:
    """Fetch the read plan of a topic. With `queues`, nodes of other queues may be
    unavailable.

    Raises JobError if the broker refuses or is unavailable, or a node is unavailable or has
    no account.
    """
    broker = open_transport(url)
    path = path_of("topics", topic=topic) + "/read-plan"
    try:
        params = {"queues": ",".join(map(str, queues))} if queues else None
        answer = request_until(broker, "GET", path, params=params, within_s=PATIENCE_S)
    except CatmqError as error:
        raise JobError(
            f"the read plan of topic {topic} cannot be had: {error.detail}"
        ) from None
    finally:
        broker.close()
    nodes = {node["name"]: _address(node, environ) for node in answer["nodes"]}
    planned = [
        PlannedQueue(
            **{name: row[name] for name in ("queue", "number", "table", "low", "head")},
            gaps=tuple(Span(*gap) for gap in row["gaps"]),
            node=nodes[row["node"]],
        )
        for row in answer["queues"]
    ]
    return Plan(
        topic, tuple(sorted(planned, key=lambda planned_queue: planned_queue.number))
    )


def _address(node: Mapping[str, Any], environ: Mapping[str, str]) -> Address:
    """Return the address of a node, from the plan or from the environment.

    If the plan contains no account, the environment must name an account. Raises NodeError
    without an account, and if this release cannot read the node's tables.
    """
    min_release = node.get("min_release", "")  # brokers of 0.1 do not send it
    if is_older(VERSION, min_release):
        raise NodeError(
            f"node {node['name']} needs CatMQ >= {min_release}, this is {VERSION}: install that "
            "release here"
        )
    fields = {
        name: node[name]
        for name in ("name", "engine", "host", "port", "database", "identity")
    }
    # Older brokers send neither.
    fields |= {"tls": node.get("tls", "off"), "tls_ca": node.get("tls_ca", "")}
    if node["username"] or node["engine"] == "sqlite":
        return Address(**fields, username=node["username"], password=node["password"])
    variable = f"CATMQ_NODE_{node['name'].upper().replace('-', '_').replace('.', '_')}_URL"
    url = urlsplit(environ.get(variable, ""))
    if not url.hostname:
        raise NodeError(
            f"node {node['name']} has no reader account, or none for keys without admin on "
            f"*: set {variable} "
            "in the driver's environment to mysql://user:password@host:3306/database, or "
            "run manage.py "
            f"set_reader {node['name']} USER and use a key with admin on *"
        )
    try:
        fields["tls"], fields["tls_ca"] = tls.parse_query(
            url.query, (fields["tls"], fields["tls_ca"])
        )
    except ValueError as error:
        raise OptionError(f"{variable} {error}") from None
    fields |= {
        "host": url.hostname,
        "port": url.port or 3306,
        "database": url.path.lstrip("/"),
    }
    return Address(
        **fields, username=unquote(url.username or ""), password=unquote(url.password or "")
    )
