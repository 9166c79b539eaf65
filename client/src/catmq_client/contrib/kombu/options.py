"""The URL and the `broker_transport_options` of a transport, checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from catmq_client.errors import OptionError

PORT = 8000
SCHEMES = {"catmq": "http", "catmqs": "https"}
KEY_RULE = (
    "broker URL: write the API key behind a colon, catmq://:APIKEY@host, so that "
    "logs hide it"
)
# The name that begins the names of all topics, when the URL has none; also that of the
# share group.
VHOST = "celery"
MOST_PRIORITY = 9
# Options of kombu itself, and of Celery, which pass through here.
OF_KOMBU = frozenset(
    (
        "callback",
        "client_properties",
        "confirm_publish",
        "confirm_timeout",
        "connect_retries_timeout",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
        "polling_interval",
        "retry_policy",
        "socket_connect_timeout",
        "socket_keepalive",
        "socket_timeout",
    )
)
# What users of other transports will write.
_OTHER_NAMES = {
    "visibility_timeout": "did you mean lease_s? A lease is renewed while its worker lives",
    "deadletter_queue": "leave it out: what no queue gets is dropped, as in AMQP",
    "body_encoding": "leave it out: text stays text, and other bytes are Base64",
    "queue_order_strategy": "queues take turns; for priorities write priority_steps",
    "ack_linger_ms": "leave it out: what a worker acknowledges is told to a broker at once",
    "delete_topics": "leave it out: a deleted queue leaves its topic; catmq topic delete "
    "deletes that",
    "sep": "write priority_steps only: each step has a topic of its own",
    "global_keyprefix": "write the prefix as the path of the URL: catmq://broker:8000/prefix",
    "queue_name_prefix": "write the prefix as the path of the URL: catmq://broker:8000/prefix",
    "fanout_prefix": "leave it out: the name behind the / of the URL separates applications",
    "fanout_patterns": "leave it out: patterns always work",
    "region": "write the brokers in the URL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """`broker_transport_options`; units stand in the names."""

    # How long a message stays with a worker that died, s, 5-3,600. It is renewed while the
    # process lives.
    lease_s: int = 60
    # Until when the process renews a lease, s; then somebody else gets the message. None =
    # no limit.
    max_lease_s: int | None = None
    # A task with an eta or countdown is delayed by the brokers; False: a worker holds it
    # until then.
    native_eta: bool = True
    # Queues of the topic of a new queue.
    topic_queues: int = 4
    # Make topics, the share group and its subscriptions; False: they are there, made by an
    # operator.
    create_topics: bool = True
    # Priorities 0 (least) to 9 (most urgent): each step is a topic of its own, [0, 3, 6, 9]
    # or so. A message
    # goes to the highest step that is not above its priority. None = no priorities.
    priority_steps: tuple[int, ...] | None = None
    # A message rejected without requeue becomes a dead letter; False: it is dropped, as in
    # AMQP.
    dead_on_reject: bool = False
    # Deliveries after which a message becomes a dead letter: its worker died, or gave it
    # back, each time.
    # The default is that of RabbitMQ's quorum queues. 0 = no limit.
    max_deliveries: int = 20
    # How long a send may take, all tries included, s.
    send_timeout_s: int = 10
    # Of a TLS connection: False, or the path of a CA bundle, as in requests.
    verify: bool | str = True
    # The share group. None = the name behind the / of the URL.
    group: str | None = None

    def step(self, priority: int) -> int:
        """Return the step of a priority: the highest that is not above it, else the lowest."""
        steps = self.priority_steps or (0,)
        return max((step for step in steps if step <= priority), default=min(steps))


_RANGES: Mapping[str, tuple[int, int]] = {
    "lease_s": (5, 3_600),
    "max_lease_s": (1, 10_000_000),
    "topic_queues": (1, 1_000),
    "max_deliveries": (0, 100),
    "send_timeout_s": (1, 3_600),
}


def checked(given: Mapping[str, Any]) -> TransportOptions:
    """Return the options, or raise OptionError naming the wrong one and the remedy."""
    known = {field.name for field in fields(TransportOptions)}
    mine: dict[str, Any] = {}
    for name, value in given.items():
        if name in known:
            mine[name] = _value(name, value)
        elif name not in OF_KOMBU:
            raise OptionError(
                f"broker_transport_options: {name} is not an option: {_proposal(name, known)}"
            )
    return TransportOptions(**mine)


def _proposal(name: str, known: set[str]) -> str:
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return (
        f"did you mean {close[0]}?"
        if close
        else "the options are " + ", ".join(sorted(known))
    )


def _value(name: str, value: Any) -> Any:
    check: Callable[[str, Any], Any] = _CHECKS.get(name, _whole)
    return check(name, value)


def _wrong(name: str, value: Any, remedy: str) -> OptionError:
    return OptionError(f"broker_transport_options: {name}={value!r}: {remedy}")


def _whole(name: str, value: Any) -> int | None:
    least, most = _RANGES[name]
    if value is None and name == "max_lease_s":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise _wrong(name, value, f"write a whole number, {least} to {most}")
    if not least <= value <= most:
        raise _wrong(name, value, f"write a whole number, {least} to {most}")
    return int(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "write True or False")
    return value


def _steps(name: str, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    given = [*value] if isinstance(value, Sequence) and not isinstance(value, str) else []
    listed = [one for one in given if type(one) is int and 0 <= one <= MOST_PRIORITY]
    if not given or len(listed) < len(given):
        raise _wrong(
            name, value, "write a list of priorities from 0 to 9, such as [0, 3, 6, 9]"
        )
    return tuple(sorted(set(listed)))


def _verify(name: str, value: Any) -> bool | str:
    if not isinstance(value, bool | str):
        raise _wrong(
            name, value, "write True, False or the path of a file of CA certificates"
        )
    return value


def _group(name: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise _wrong(name, value, "write the name of a share group")
    return value


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "native_eta": _flag,
    "create_topics": _flag,
    "dead_on_reject": _flag,
    "priority_steps": _steps,
    "verify": _verify,
    "group": _group,
}


@dataclass(frozen=True, slots=True)
class Address:
    """A broker as a URL of kombu names it."""

    url: str
    api_key: str | None
    vhost: str


def address(url: str) -> Address:
    """Return the broker, API key and name prefix of a `catmq://` URL. Raises OptionError.

    >>> address("catmq://:key@broker:8000/shop")
    Address(url='http://broker:8000', api_key='key', vhost='shop')
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or PORT
    except ValueError as error:
        raise OptionError(
            f"broker URL: {error}: write catmq://:APIKEY@host:{PORT}/name"
        ) from error
    if parts.scheme not in SCHEMES:
        raise OptionError(
            f"broker URL: the scheme is {parts.scheme!r}: write catmq:// or catmqs:// (TLS)"
        )
    if parts.username:
        raise OptionError(KEY_RULE)
    host = f"[{host}]" if ":" in host else quote(host, safe=".-_")
    key = unquote(parts.password) if parts.password else None
    return Address(
        f"{SCHEMES[parts.scheme]}://{host}:{port}",
        key,
        unquote(parts.path.strip("/")) or VHOST,
    )
