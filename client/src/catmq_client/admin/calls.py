"""Parts of a management call: path, parameters, pages, the messages of an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from catmq_client.errors import Conflict, NotFound, OptionError, Unavailable
from catmq_client.http import wire
from catmq_client.http.transport import Transport, api_path, repeat_call

T = TypeVar("T")

# Longest wait, in seconds, for a resource that another process is creating.
MADE_WITHIN_S = 15.0
# Rows per request; the API's limit.
PAGE = 1000
# Up to 210 characters: failure topics have longer names than users may choose.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,209}", re.ASCII)
NAME_RULE = "use letters, digits, '.', '_', '-', the first a letter or digit"
# The default name of a broker is host:port.
BROKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,209}", re.ASCII)
BROKER_RULE = NAME_RULE.replace("'-',", "'-', ':',")


class Calls:
    """Base of the classes of calls over a transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._call = transport.request

    def _pages(
        self, path: str, plural: str, *, limit: int = PAGE, **filters: object
    ) -> Iterator[Any]:
        """Yield the rows of all pages of a list. Filters that are None are left out."""
        params: dict[str, object] = {"limit": limit, **drop_none(filters)}
        while True:
            answer = self._call("GET", path, params=params)
            yield from answer[plural]
            if answer.get("next") is None:
                return
            params["after"] = answer["next"]


def create_if_missing(
    create: Callable[[], object], *, within_s: float = MADE_WITHIN_S
) -> None:
    """Call `create`, which creates a topic, group or subscription, unless it exists.

    Another process may be creating it now. Its calls then answer Unavailable, or NotFound
    for its topic, and are repeated for `within_s` seconds.
    """
    try:
        call_when_ready(create, within_s=within_s)
    except Conflict as error:
        if error.code != "already_exists":
            raise


def call_when_ready(call: Callable[[], T], *, within_s: float = MADE_WITHIN_S) -> T:
    """Return the value of a call on a resource that another process may be creating now."""
    return repeat_call(
        call,
        within_s=within_s,
        should_repeat=lambda error, _: isinstance(error, NotFound | Unavailable),
    )


def drop_none(settings: dict[str, object]) -> dict[str, Any]:
    """Return the settings that have a value. The others keep the broker's default."""
    return {name: value for name, value in settings.items() if value is not None}


def path_of(collection: str, **names: str) -> str:
    """Return the path of a resource.

    `path_of("groups", group="g", subscriptions="t")` is `/api/v1/groups/g/subscriptions/t`.
    Raises OptionError for an invalid name: `.` and `..` would change the path on its way.
    """
    parts: list[str] = []
    for field, name in names.items():
        pattern, rule = (
            (BROKER_NAME, BROKER_RULE) if field == "broker" else (NAME, NAME_RULE)
        )
        if not pattern.fullmatch(name):
            kind = field.removesuffix("s") if field != "subscriptions" else "topic"
            raise OptionError(f"{kind}: {name!r} is not a valid name: {rule}")
        parts += [field, name] if parts else [collection, name]
    return api_path(*parts)


def with_body_bytes(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with `body_bytes`, its decoded body."""
    return {**message, "body_bytes": wire.body_of(message)}
