"""The read plan of a topic, as the broker tells it, with the accounts with which this job
reads the nodes.

A plan holds passwords. They stand in `Address` alone, which never shows them, and leave the
driver only inside the pickled partitions of a read.
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

PATIENCE_S = 30.0  # for a broker that is away


class Span(NamedTuple):
    """Offsets first … end - 1."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Address:
    """A node, and the account with which it is read."""

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
    """A queue: where it is, and the offsets low … head - 1 without the gaps."""

    queue: int
    number: int
    table: str
    low: int
    head: int
    gaps: tuple[Span, ...]
    node: Address


@dataclass(frozen=True, slots=True)
class Plan:
    """A topic's queues, by number."""

    topic: str
    queues: tuple[PlannedQueue, ...]

    def queue(self, queue: int) -> PlannedQueue:
        """The queue with this id. Raises OptionError."""
        for one in self.queues:
            if one.queue == queue:
                return one
        mine = ", ".join(str(one.queue) for one in self.queues)
        raise OptionError(
            f"{queue} is not a queue of topic {self.topic}; its queues are {mine}"
        )


def transport(url: str | None = None) -> HttpTransport:
    """The way to the brokers: `url` or CATMQ_URL, with CATMQ_API_KEY. Raises OptionError."""
    where = url or os.environ.get("CATMQ_URL", "")
    if not where:
        raise OptionError("no broker is named: set CATMQ_URL, or option url")
    if not os.environ.get("CATMQ_API_KEY"):
        raise OptionError(
            "set CATMQ_API_KEY, in the driver's environment, to a key of the broker"
        )
    return HttpTransport(where.split(","))


def fetch(
    topic: str,
    *,
    url: str | None = None,
    queues: Collection[int] = (),
    environ: Mapping[str, str] = os.environ,
) -> Plan:
    """The plan of a topic, or of some of its queues: nodes of others may be away.

    Raises JobError: the broker refuses or is away, a node is away or has no account.
    """
    way = transport(url)
    path = path_of("topics", topic=topic) + "/read-plan"
    try:
        params = {"queues": ",".join(map(str, queues))} if queues else None
        answer = request_until(way, "GET", path, params=params, within_s=PATIENCE_S)
    except CatmqError as error:
        raise JobError(
            f"the read plan of topic {topic} cannot be had: {error.detail}"
        ) from None
    finally:
        way.close()
    nodes = {one["name"]: _address(one, environ) for one in answer["nodes"]}
    planned = [
        PlannedQueue(
            **{name: one[name] for name in ("queue", "number", "table", "low", "head")},
            gaps=tuple(Span(*gap) for gap in one["gaps"]),
            node=nodes[one["node"]],
        )
        for one in answer["queues"]
    ]
    return Plan(topic, tuple(sorted(planned, key=lambda one: one.number)))


def _address(node: Mapping[str, Any], environ: Mapping[str, str]) -> Address:
    """Return a node's address; one without a reader account must be named in the
    environment.

    Raises NodeError, also if this release cannot read the tables of the node.
    """
    needed = node.get("min_release", "")  # a broker of 0.1 does not tell
    if is_older(VERSION, needed):
        raise NodeError(
            f"node {node['name']} needs CatMQ >= {needed}, this is {VERSION}: install that "
            "release here"
        )
    place = {
        name: node[name]
        for name in ("name", "engine", "host", "port", "database", "identity")
    }
    # an older broker has neither
    place |= {"tls": node.get("tls", "off"), "tls_ca": node.get("tls_ca", "")}
    if node["username"] or node["engine"] == "sqlite":
        return Address(**place, username=node["username"], password=node["password"])
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
        place["tls"], place["tls_ca"] = tls.of_query(
            url.query, (place["tls"], place["tls_ca"])
        )
    except ValueError as error:
        raise OptionError(f"{variable} {error}") from None
    place |= {
        "host": url.hostname,
        "port": url.port or 3306,
        "database": url.path.lstrip("/"),
    }
    return Address(
        **place, username=unquote(url.username or ""), password=unquote(url.password or "")
    )
