"""The setting CATMQ_OUTBOX of the application, checked when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    """Keys of CATMQ_OUTBOX, in capitals there."""

    # The brokers, one URL or a list; None = the environment's CATMQ_URL, separated by
    # commas.
    urls: str | list[str] | None = None
    # None = the environment's CATMQ_API_KEY.
    api_key: str | None = None
    # False, or the path of a CA bundle, as in requests.
    verify: bool | str = True
    # "commit": a key's messages are sent in the order of their transactions' commits, for
    # which send() locks
    # the key's lane until the commit. "id": nothing is locked; the order is that of the
    # calls of send().
    order: str = "commit"
    # Tell the relay of each commit by a datagram (UDP); False: it looks into the outbox by
    # itself.
    notify: bool = True
    # How long the inbox remembers a message, days.
    inbox_days: int = 30
    # Limits of the brokers, whose settings are CATMQ_MAX_BODY_BYTES and so on: a message
    # beyond them is
    # refused when it is sent, not when the relay carries it. The outbox's own header
    # counts.
    max_body_bytes: int = 1024 * 1024
    max_headers: int = 32
    max_headers_bytes: int = 8192


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "urls": (
        lambda value: isinstance(value, str | list | None),
        "must be a URL or a list of URLs",
    ),
    "api_key": (lambda value: isinstance(value, str | None), "must be text"),
    "verify": (
        lambda value: isinstance(value, bool | str),
        "must be True, False or a path",
    ),
    "order": (lambda value: value in ("commit", "id"), "must be 'commit' or 'id'"),
    "notify": (lambda value: isinstance(value, bool), "must be True or False"),
    **dict.fromkeys(
        ("inbox_days", "max_body_bytes", "max_headers", "max_headers_bytes"),
        (
            lambda value: type(value) is int and value >= 1,
            "must be a whole number, at least 1",
        ),
    ),
}


def current() -> OutboxSettings:
    """The settings now. Raises ImproperlyConfigured naming what is wrong."""
    given = getattr(settings, "CATMQ_OUTBOX", {})
    known = {field.name.upper(): field.name for field in fields(OutboxSettings)}
    for name, value in given.items():
        if name not in known:
            raise ImproperlyConfigured(
                f"CATMQ_OUTBOX[{name!r}] is unknown; there are {', '.join(known)}"
            )
        good, what = _CHECKS[known[name]]
        if not good(value):
            raise ImproperlyConfigured(f"CATMQ_OUTBOX[{name!r}] {what}, not {value!r}")
    return OutboxSettings(**{known[name]: value for name, value in given.items()})
