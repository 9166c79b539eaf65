"""The Django setting CATMQ_OUTBOX, checked at each use."""

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
    # "commit": a key's messages are sent in the order in which their transactions commit;
    # send() locks the key's lane until the commit. "id": nothing is locked, and messages are
    # sent in the order of the calls of send().
    order: str = "commit"
    # Notify the relay of each commit by a UDP datagram. False: the relay only polls.
    notify: bool = True
    # How long the inbox remembers a handled message, in days.
    inbox_days: int = 30
    # Limits of the brokers (their settings are CATMQ_MAX_BODY_BYTES and so on). A larger
    # message is refused by send() and not only by the broker. The outbox's own header counts.
    max_body_bytes: int = 1024 * 1024
    max_headers: int = 32
    max_headers_bytes: int = 8192


# By field: a predicate, and the requirement as an error message states it.
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
    """Return the settings. Raises ImproperlyConfigured, which names the invalid key."""
    # Read at each call, so that override_settings works in an application's tests.
    configured = getattr(settings, "CATMQ_OUTBOX", {})
    field_names = {field.name.upper(): field.name for field in fields(OutboxSettings)}
    for name, value in configured.items():
        if name not in field_names:
            raise ImproperlyConfigured(
                f"CATMQ_OUTBOX[{name!r}] is unknown; there are {', '.join(field_names)}"
            )
        is_valid, requirement = _CHECKS[field_names[name]]
        if not is_valid(value):
            raise ImproperlyConfigured(
                f"CATMQ_OUTBOX[{name!r}] {requirement}, not {value!r}"
            )
    return OutboxSettings(
        **{field_names[name]: value for name, value in configured.items()}
    )
