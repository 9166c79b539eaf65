"""Settings of topics, groups, subscriptions and API keys: each is declared here or in `Delivery`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metadata.errors import FieldError, Invalid
from metadata.rules import mail
from metadata.rules.groups.delivery import Delivery
from metadata.rules.membership.eligibility import networks
from metadata.rules.setting_types import (
    Choice,
    Flag,
    Kind,
    Numbers,
    Setting,
    Text,
    Whole,
    declared,
    setting,
)

Fields = Mapping[str, Kind]
NO_LIMIT = "no limit"
MAX_ID = (1 << 63) - 1
DAYS = 3650


def check_addresses(value: str) -> None:
    """Raises ValueError unless a text lists addresses and networks."""
    try:
        networks(value)
    except ValueError as error:
        remedy = "write addresses or networks such as 10.0.0.0/8, separated by commas"
        raise ValueError(f"{error}: {remedy}") from error


def check_emails(value: str) -> None:
    """Raises ValueError unless a text lists e-mail addresses."""
    wrong = [one for one in mail.addresses(value) if not mail.is_address(one)]
    if wrong:
        raise ValueError(f"{wrong[0][:100]!r} is not an e-mail address; separate several by commas")


@dataclass(frozen=True, kw_only=True)
class OwnerSettings:
    """Owners of a topic or group."""

    owners: str = setting(
        "", Text(1000), "Owners", "User names, separated by commas: these users may manage it."
    )
    department: str = setting("", Text(200), "Department")
    alarm_emails: str = setting(
        "",
        Text(1000, check_emails),
        "Alarm e-mails",
        "Addresses that get its alarms, separated by commas.",
    )
    description: str = setting("", Text(10_000, lines=True), "Description")


@dataclass(frozen=True, kw_only=True)
class RateSettings:
    """Rate limits of sends, through all brokers together (metadata.rules.rates.Rates)."""

    max_messages_per_s: int | None = setting(
        None,
        Whole(1, 1_000_000_000, "messages/s", null=NO_LIMIT),
        "Send rate limit",
        "Through all brokers together.",
    )
    max_bytes_per_s: int | None = setting(
        None,
        Whole(1, 1 << 50, "bytes/s", null=NO_LIMIT),
        "Send rate limit",
        "Of bodies and headers, through all brokers together.",
    )


@dataclass(frozen=True, kw_only=True)
class TopicSettings(RateSettings, OwnerSettings):
    """Settings of a topic."""

    retention_days: int = setting(
        7, Whole(1, DAYS, "days"), "Retention", "Messages are kept for so long, read or not."
    )
    keep_unread_days: int = setting(
        30,
        Whole(0, DAYS, "days"),
        "Retention of unread messages",
        "For messages that an active group has not read; 0: no longer than the others.",
    )
    retention_bytes: int | None = setting(
        None,
        Whole(1 << 20, 1 << 60, "bytes", null=NO_LIMIT),
        "Retention size",
        "MySQL and MariaDB drop whole partitions, never the one that is written to: a queue keeps at least "
        "one, which holds 100,000 messages at first.",
    )
    keyed: str = setting(
        "strict",
        Choice({"strict": "wait for it", "available": "go to another queue"}),
        "Keyed messages whose queue is closed",
    )
    on_unknown: str = setting(
        "fail",
        Choice({"fail": "the client raises", "resend": "the client sends again, perhaps twice"}),
        "Sends of unknown outcome",
    )


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """Limits on the members of a group that own queues."""

    max_active_members: int | None = setting(
        None, Whole(1, 1_000_000, null=NO_LIMIT), "Maximum active members", "Further members stand by."
    )
    allow_addresses: str = setting(
        "",
        Text(2000, check_addresses, null="all"),
        "Allowed addresses",
        "Addresses or networks of members, such as 10.0.0.0/8, separated by commas.",
    )
    deny_addresses: str = setting(
        "",
        Text(2000, check_addresses, null="none"),
        "Denied addresses",
        "Addresses or networks, separated by commas; they go before the allowed ones.",
    )


@dataclass(frozen=True, kw_only=True)
class GroupSettings(LimitSettings, OwnerSettings):
    """Settings of a consumer group."""

    stopped: bool = setting(False, Flag(), "Paused", "The group reads nothing.")
    session_timeout_ms: int = setting(
        15_000,
        Whole(2_000, 300_000, "ms"),
        "Session timeout",
        "A member without a heartbeat for so long loses its queues.",
    )
    alarm_lag: int | None = setting(
        None,
        Whole(1, 1 << 60, "messages", null="as configured for all groups"),
        "Lag alarm threshold",
        "Unread messages in a topic.",
    )
    alarm_lag_s: int | None = setting(
        None,
        Whole(1, DAYS * 86_400, "s", null="as configured for all groups"),
        "Lag age alarm threshold",
        "Age of the oldest unread message in a topic.",
    )


@dataclass(frozen=True, kw_only=True)
class PauseSettings:
    """Pauses of a subscription."""

    stopped: bool = setting(False, Flag(), "Paused", "The group does not read this topic.")
    stopped_queues: tuple[int, ...] = setting(
        (),
        Numbers(MAX_ID, ids=True),
        "Paused queues",
        "Ids of queues, separated by commas: they are not read.",
    )


TOPIC = declared(TopicSettings)
LIMITS = declared(LimitSettings)
GROUP = declared(GroupSettings)
DELIVERY = declared(Delivery)
SUBSCRIPTION = {**declared(PauseSettings), **DELIVERY}
KEY = declared(RateSettings)
NODE: Fields = {
    "state": Choice(dict.fromkeys(("read_write", "read_only", "offline"), "")),
    "dedicated": Flag(),
    "capacity_gb": Whole(1, 10_000_000, "GB", null="not known"),
    "replica_host": Text(255),
    "replica_port": Whole(0, 65_535, null="none"),
}


def checked(fields: Mapping[str, Kind | Setting], given: Mapping[str, Any]) -> dict[str, Any]:
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


def _problem(fields: Mapping[str, Kind | Setting], name: str, value: Any) -> str | None:
    if name not in fields:
        return f"is not a setting here; there are {', '.join(fields)}"
    found = fields[name]
    return (found.kind if isinstance(found, Setting) else found).problem(value)
