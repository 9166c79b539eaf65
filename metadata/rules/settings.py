"""Checks the settings of topics and groups: a table of fields, each with what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from metadata.errors import FieldError, Invalid
from metadata.rules import mail
from metadata.rules.groups.delivery import check_filter
from metadata.rules.membership.eligibility import networks

Check = Callable[[Any], str | None]  # what is wrong with a value, None if nothing
Fields = Mapping[str, Check]


def text(most: int) -> Check:
    """A text of at most `most` characters."""
    return lambda value: (
        None
        if isinstance(value, str) and len(value) <= most
        else f"must be a text of at most {most} characters"
    )


def whole(least: int, most: int, *, or_null: bool = False) -> Check:
    """A whole number between two others."""
    also = " or null" if or_null else ""

    def check(value: Any) -> str | None:
        if value is None and or_null:
            return None
        good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return None if good else f"must be a whole number from {least} to {most}{also}"

    return check


def one_of(*choices: str) -> Check:
    """One of some words."""
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def truth(value: Any) -> str | None:
    """True or false."""
    return None if isinstance(value, bool) else "must be true or false"


def addresses(most: int) -> Check:
    """A list of addresses and networks, as one text."""

    def check(value: Any) -> str | None:
        if (problem := text(most)(value)) is not None:
            return problem
        try:
            networks(value)
        except ValueError as error:
            return f"{error}: write addresses or networks such as 10.0.0.0/8, separated by commas"
        return None

    return check


def emails(most: int) -> Check:
    """A list of e-mail addresses, as one text."""

    def check(value: Any) -> str | None:
        if (problem := text(most)(value)) is not None:
            return problem
        wrong = [one for one in mail.addresses(value) if not mail.is_address(one)]
        return f"{wrong[0][:100]!r} is not an e-mail address; separate several by commas" if wrong else None

    return check


def ids(value: Any) -> str | None:
    """A list of different ids."""
    good = isinstance(value, list) and all(isinstance(one, int) and one is not True for one in value)
    return None if good and len(set(value)) == len(value) else "must be a list of different ids"


def tag_filter(value: Any) -> str | None:
    """Tags joined by || or commas, or a text for all messages: '' or *."""
    if (problem := text(1000)(value)) is not None:
        return problem
    try:
        check_filter(value)
    except ValueError as error:
        return f"{error}: write tags joined by ||, such as new || paid, or by commas; or * for all messages"
    return None


def delays(value: Any) -> str | None:
    """Some pauses in seconds."""
    good = isinstance(value, list) and 0 < len(value) <= 100 and all(DELAY(one) is None for one in value)
    return None if good else "must be a list of 1 to 100 whole numbers of seconds, each up to 31536000"


DELAY = whole(0, 365 * 86_400)  # s
PEOPLE: Fields = {
    "owners": text(1000),
    "department": text(200),
    "alarm_emails": emails(1000),
    "description": text(10_000),
}
RATES: Fields = {  # metadata.rules.rates.Rates
    "max_messages_per_s": whole(1, 1_000_000_000, or_null=True),
    "max_bytes_per_s": whole(1, 1 << 50, or_null=True),
}
TOPIC: Fields = {
    "keyed": one_of("strict", "available"),
    "on_unknown": one_of("fail", "resend"),
    "retention_days": whole(1, 3650),
    "keep_unread_days": whole(0, 3650),
    "retention_bytes": whole(1 << 20, 1 << 60, or_null=True),
    **RATES,
    **PEOPLE,
}
KEY: Fields = {**RATES}
LIMITS: Fields = {
    "allow_addresses": addresses(2000),
    "deny_addresses": addresses(2000),
    "max_active_members": whole(1, 1_000_000, or_null=True),
}
GROUP: Fields = {
    "session_timeout_ms": whole(2_000, 300_000),
    "stopped": truth,
    "alarm_lag": whole(1, 1 << 60, or_null=True),
    "alarm_lag_s": whole(1, 3650 * 86_400, or_null=True),
    **LIMITS,
    **PEOPLE,
}
DELIVERY: Fields = {  # metadata.rules.groups.delivery.Delivery
    "ordered": truth,
    "retries": whole(0, 1000),
    "retry_delays_s": delays,
    "dead_days": whole(1, 3650),
    "delay_s": DELAY,
    "tags": tag_filter,
    "handler_timeout_ms": whole(100, 86_400_000, or_null=True),
    "breaker_failures": whole(1, 1_000_000, or_null=True),
    "breaker_pause_s": whole(1, 86_400),
    "threads": whole(1, 1000, or_null=True),
    "handler_batch": whole(1, 1000, or_null=True),
    "max_poll_records": whole(1, 1000, or_null=True),
    "fetch_max_wait_ms": whole(0, 30_000, or_null=True),
}
SUBSCRIPTION: Fields = {"stopped": truth, "stopped_queues": ids, **DELIVERY}
NODE: Fields = {
    "state": one_of("read_write", "read_only", "offline"),
    "dedicated": truth,
    "capacity_gb": whole(1, 10_000_000, or_null=True),
    "replica_host": text(255),
    "replica_port": whole(0, 65_535, or_null=True),
}


def checked(fields: Fields, given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` if every field exists and takes its value; raises Invalid naming all that do not.

    >>> checked(SUBSCRIPTION, {"stopped": True})
    {'stopped': True}
    """
    errors = [
        FieldError(name, problem)
        for name, value in given.items()
        if (problem := _problem(fields, name, value))
    ]
    if errors:
        raise Invalid("; ".join(f"{one.field}: {one.message}" for one in errors), errors=errors)
    return dict(given)


def _problem(fields: Fields, name: str, value: Any) -> str | None:
    if name not in fields:
        return f"is not a setting here; there are {', '.join(fields)}"
    return fields[name](value)
