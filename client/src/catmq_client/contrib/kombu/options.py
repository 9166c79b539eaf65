"""Parsing and checking of the broker URL and of `broker_transport_options`."""

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
# The vhost of a URL without a path. It is the prefix of all topics and the name of the share
# group.
DEFAULT_VHOST = "celery"
MAX_PRIORITY = 9
# Options of kombu and Celery themselves. They are accepted and not used here.
KOMBU_OPTIONS = frozenset(
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
# Options of other transports, and what to write instead.
_REPLACEMENTS = {
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
    """`broker_transport_options`. A unit is the end of the option's name."""

    # Lease of a message, 5 to 3,600 s: after the death of a worker its messages are delivered
    # again when their leases end. The process renews the leases while it lives.
    lease_s: int = 60
    # A lease is not renewed beyond this. Then the message is delivered again. None = no limit.
    max_lease_s: int | None = None
    # True: brokers delay a task with an eta or countdown. False: a worker holds it until then.
    native_eta: bool = True
    # Number of the queues of a topic that is created.
    topic_queues: int = 4
    # Create missing topics, the share group and subscriptions. False: an operator creates
    # them.
    create_topics: bool = True
    # Steps of the priorities 0 (lowest) to 9 (most urgent), for example [0, 3, 6, 9]. Each
    # step has its own topic. A message goes to the highest step that is not above its
    # priority. None = no priorities.
    priority_steps: tuple[int, ...] | None = None
    # True: a message that is rejected without requeue becomes a dead letter. False: it is
    # dropped, as in AMQP.
    dead_on_reject: bool = False
    # A message becomes a dead letter after this many deliveries that ended with the death of
    # the worker or with a requeue. The default is that of RabbitMQ's quorum queues. 0 = no
    # limit.
    max_deliveries: int = 20
    # Time limit of a send, including its repetitions.
    send_timeout_s: int = 10
    # For TLS: False, or the path of a CA bundle, as in requests.
    verify: bool | str = True
    # Name of the share group. None = the URL's path.
    group: str | None = None

    def step(self, priority: int) -> int:
        """Return the highest step that is not above the priority, or else the lowest step."""
        steps = self.priority_steps or (0,)
        return max((step for step in steps if step <= priority), default=min(steps))


_RANGES: Mapping[str, tuple[int, int]] = {
    "lease_s": (5, 3_600),
    "max_lease_s": (1, 10_000_000),
    "topic_queues": (1, 1_000),
    "max_deliveries": (0, 100),
    "send_timeout_s": (1, 3_600),
}


def parse_options(values: Mapping[str, Any]) -> TransportOptions:
    """Return the options. Raises OptionError, which names the invalid option and the remedy."""
    names = {field.name for field in fields(TransportOptions)}
    own_values: dict[str, Any] = {}
    for name, value in values.items():
        if name in names:
            parse: Callable[[str, Any], Any] = _PARSERS.get(name, _parse_integer)
            own_values[name] = parse(name, value)
        elif name not in KOMBU_OPTIONS:
            similar = difflib.get_close_matches(name, sorted(names), n=1)
            remedy = (
                f"did you mean {similar[0]}?"
                if similar
                else "the options are " + ", ".join(sorted(names))
            )
            raise OptionError(
                f"broker_transport_options: {name} is not an option: "
                f"{_REPLACEMENTS.get(name, remedy)}"
            )
    return TransportOptions(**own_values)


def _value_error(name: str, value: Any, remedy: str) -> OptionError:
    return OptionError(f"broker_transport_options: {name}={value!r}: {remedy}")


def _parse_integer(name: str, value: Any) -> int | None:
    minimum, maximum = _RANGES[name]
    if value is None and name == "max_lease_s":
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != int(value) or not minimum <= value <= maximum:
        raise _value_error(name, value, f"write a whole number, {minimum} to {maximum}")
    return int(value)


def _parse_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _value_error(name, value, "write True or False")
    return value


def _parse_steps(name: str, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    steps = [*value] if isinstance(value, Sequence) and not isinstance(value, str) else []
    valid_steps = [
        step for step in steps if type(step) is int and 0 <= step <= MAX_PRIORITY
    ]
    if not steps or len(valid_steps) < len(steps):
        raise _value_error(
            name, value, "write a list of priorities from 0 to 9, such as [0, 3, 6, 9]"
        )
    return tuple(sorted(set(valid_steps)))


def _parse_verify(name: str, value: Any) -> bool | str:
    if not isinstance(value, bool | str):
        raise _value_error(
            name, value, "write True, False or the path of a file of CA certificates"
        )
    return value


def _parse_group(name: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise _value_error(name, value, "write the name of a share group")
    return value


# The options that are no integers.
_PARSERS: Mapping[str, Callable[[str, Any], Any]] = {
    "native_eta": _parse_flag,
    "create_topics": _parse_flag,
    "dead_on_reject": _parse_flag,
    "priority_steps": _parse_steps,
    "verify": _parse_verify,
    "group": _parse_group,
}


@dataclass(frozen=True, slots=True)
class Address:
    """A broker in a URL of kombu. `url` is its HTTP URL, `vhost` the path of kombu's URL."""

    url: str
    api_key: str | None
    vhost: str


def parse_address(url: str) -> Address:
    """Parse a `catmq://` or `catmqs://` URL. Raises OptionError.

    >>> parse_address("catmq://:key@broker:8000/shop")
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
    # kombu hides the password of a URL in its logs, but not the user name.
    if parts.username:
        raise OptionError(KEY_RULE)
    host = f"[{host}]" if ":" in host else quote(host, safe=".-_")
    key = unquote(parts.password) if parts.password else None
    return Address(
        f"{SCHEMES[parts.scheme]}://{host}:{port}",
        key,
        unquote(parts.path.strip("/")) or DEFAULT_VHOST,
    )
