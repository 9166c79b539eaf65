"""Settings of topics, groups, subscriptions, nodes and API keys. Those of a delivery are
in `Delivery`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metadata.errors import FieldError, Invalid
from metadata.rules import mail
from metadata.rules.addresses import MAX_TEXT, check_hosts
from metadata.rules.groups.delivery import Delivery
from metadata.rules.groups.sharing import MAX_RUN_MESSAGES
from metadata.rules.membership.eligibility import parse_networks
from metadata.rules.nodes import NodeState
from metadata.rules.setting_types import (
    Choice,
    Flag,
    Kind,
    Numbers,
    Setting,
    Text,
    Whole,
    declared_settings,
    setting,
)
from metadata.rules.tls import MAX_PATH, MODES, TlsMode
from metadata.rules.topics.states import Keyed, OnUnknown

Fields = Mapping[str, Kind | Setting]
NO_LIMIT = "no limit"
MAX_ID = (1 << 63) - 1
DAYS = 3650


def check_addresses(value: str) -> None:
    """Raise ValueError unless a text lists addresses and networks."""
    try:
        parse_networks(value)
    except ValueError as error:
        remedy = "write addresses or networks such as 10.0.0.0/8, separated by commas"
        raise ValueError(f"{error}: {remedy}") from error


def check_emails(value: str) -> None:
    """Raise ValueError unless a text lists e-mail addresses."""
    invalid = [
        address for address in mail.parse_addresses(value) if not mail.is_address(address)
    ]
    if invalid:
        raise ValueError(
            f"{invalid[0][:100]!r} is not an e-mail address; separate several by commas"
        )


@dataclass(frozen=True, kw_only=True)
class OwnerSettings:
    owners: str = setting(
        "",
        Text(1000),
        "Owners",
        "Names of the users who may manage it, separated by commas.",
    )
    department: str = setting("", Text(200), "Department")
    alarm_emails: str = setting(
        "",
        Text(1000, check_emails),
        "Alarm e-mails",
        "Addresses that receive its alarms, separated by commas.",
    )
    description: str = setting("", Text(10_000, lines=True), "Description")


@dataclass(frozen=True, kw_only=True)
class RateSettings:
    """Rate limits of sends, through all brokers together (metadata.rules.rates.Rates)."""

    max_messages_per_s: int | None = setting(
        None,
        Whole(1, 1_000_000_000, "messages/s", null=NO_LIMIT),
        "Send rate limit",
        "Limit for all brokers together.",
    )
    max_bytes_per_s: int | None = setting(
        None,
        Whole(1, 1 << 50, "bytes/s", null=NO_LIMIT),
        "Send rate limit",
        "Limit for message bodies, for all brokers together.",
    )


@dataclass(frozen=True, kw_only=True)
class TopicSettings(RateSettings, OwnerSettings):
    retention_days: int = setting(
        7, Whole(1, DAYS, "days"), "Retention", "Time to keep messages, read or not."
    )
    keep_unread_days: int = setting(
        30,
        Whole(0, DAYS, "days"),
        "Retention of unread messages",
        "Time to keep messages that an active group has not read; 0: no longer than read messages.",
    )
    retention_bytes: int | None = setting(
        None,
        Whole(1 << 20, 1 << 60, "bytes", null=NO_LIMIT),
        "Retention size",
        "Maximum size of the stored messages. MySQL and MariaDB drop whole partitions and always "
        "keep the current one. The first partitions of a queue hold 100,000 messages each.",
    )
    keyed: str = setting(
        Keyed.STRICT,
        Choice(
            {
                Keyed.STRICT: "wait until the queue opens",
                Keyed.AVAILABLE: "go to another queue",
            }
        ),
        "Keyed sends to a closed queue",
    )
    read_only: bool = setting(
        False,
        Flag(),
        "Read-only",
        "Sends are refused. What was accepted before, such as delayed messages, is still "
        "delivered.",
    )
    on_unknown: str = setting(
        OnUnknown.FAIL,
        Choice(
            {
                OnUnknown.FAIL: "the client raises an error",
                OnUnknown.RESEND: "the client sends again, which may store a duplicate",
            }
        ),
        "Sends with an unknown outcome",
    )
    key_index: bool = setting(
        False,
        Flag(),
        "Key index",
        "Find messages by key with an index, which sends have to maintain. A change is made "
        "in the background, queue by queue, while the topic is in use.",
    )


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """Limits on the members of a group that own queues."""

    max_active_members: int | None = setting(
        None,
        Whole(1, 1_000_000, null=NO_LIMIT),
        "Maximum active members",
        "Members that may own queues at the same time. Further members stand by.",
    )
    allow_addresses: str = setting(
        "",
        Text(2000, check_addresses, null="all"),
        "Allowed addresses",
        "Addresses or networks whose members may own queues, such as 10.0.0.0/8, separated "
        "by commas.",
    )
    deny_addresses: str = setting(
        "",
        Text(2000, check_addresses, null="none"),
        "Denied addresses",
        "Addresses or networks whose members may not own queues, separated by commas. They take "
        "precedence over allowed addresses.",
    )


@dataclass(frozen=True, kw_only=True)
class ShareSettings:
    """Leases of a share group; other groups ignore them."""

    lease_ms: int = setting(
        30_000,
        Whole(5_000, 3_600_000, "ms"),
        "Lease",
        "In share groups: time after which messages that a member neither finished nor renewed are "
        "delivered to another one.",
    )
    run_messages: int = setting(
        10,
        Whole(1, MAX_RUN_MESSAGES),
        "Messages of a lease",
        "In share groups: maximum number of messages that are leased together.",
    )
    max_deliveries: int = setting(
        5,
        Whole(0, 100),
        "Maximum deliveries",
        "In share groups: deliveries of a message after which it becomes a dead letter; 0: "
        "no limit.",
    )


@dataclass(frozen=True, kw_only=True)
class GroupSettings(ShareSettings, LimitSettings, OwnerSettings):
    stopped: bool = setting(False, Flag(), "Paused", "Nothing is delivered to the group.")
    session_timeout_ms: int = setting(
        15_000,
        Whole(2_000, 300_000, "ms"),
        "Session timeout",
        "Time without a heartbeat after which a member loses its queues.",
    )
    alarm_lag: int | None = setting(
        None,
        Whole(1, 1 << 60, "messages", null="the server's default"),
        "Lag alarm threshold",
        "Unread messages in one topic that raise an alarm.",
    )
    alarm_lag_s: int | None = setting(
        None,
        Whole(1, DAYS * 86_400, "s", null="the server's default"),
        "Lag age alarm threshold",
        "Age of the oldest unread message in one topic that raises an alarm.",
    )


@dataclass(frozen=True, kw_only=True)
class PauseSettings:
    stopped: bool = setting(
        False, Flag(), "Paused", "The topic is not delivered to the group."
    )
    stopped_queues: tuple[int, ...] = setting(
        (),
        Numbers(MAX_ID, ids=True),
        "Paused queues",
        "Queues that are not delivered.",
    )


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    state: str = setting(
        NodeState.READ_WRITE,
        Choice(
            {
                NodeState.READ_WRITE: "open",
                NodeState.READ_ONLY: "read-only: sends go to other nodes",
                NodeState.OFFLINE: "offline: no sends, no reads",
            }
        ),
        "State",
    )
    dedicated: bool = setting(False, Flag(), "Use for new queues only when named")
    capacity_gb: int | None = setting(
        None,
        Whole(1, 10_000_000, "GB", null="not known"),
        "Capacity",
        "On MySQL and MariaDB, free space is not watched without a capacity.",
    )
    host: str = setting(
        "",
        Text(MAX_TEXT, check=check_hosts),
        "Addresses",
        "Its server, or all members of a cluster, or a primary and its replicas: HOST or "
        "HOST:PORT, with commas. Their order means nothing.",
    )
    replica_host: str = setting(
        "",
        Text(MAX_TEXT, check=check_hosts),
        "Host of its replica",
        "Pulls are served from the replica while the node is down. "
        "It must have the same database and account.",
    )
    replica_port: int | None = setting(
        None, Whole(0, 65_535, null="none"), "Port of its replica"
    )
    tls: str = setting(
        TlsMode.OFF,
        Choice(MODES),
        "TLS",
        "Encryption of connections to the node and its replica. A change is tried before "
        "it is saved.",
    )
    tls_ca: str = setting(
        "",
        Text(MAX_PATH, null="the CAs of the system"),
        "CA file",
        "Certificates that verify accepts, in PEM, at the same path on all brokers.",
    )


TOPIC = declared_settings(TopicSettings)
LIMITS = declared_settings(LimitSettings)
SHARE = declared_settings(ShareSettings)
GROUP = declared_settings(GroupSettings)
DELIVERY = declared_settings(Delivery)
SUBSCRIPTION = {**declared_settings(PauseSettings), **DELIVERY}
KEY = declared_settings(RateSettings)
NODE = declared_settings(NodeSettings)


def check_settings(fields: Fields, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` if every setting exists and accepts its value.

    Raises Invalid with an error for each that does not.

    >>> check_settings(SUBSCRIPTION, {"stopped": True})
    {'stopped': True}
    """
    errors = [
        FieldError(name, problem)
        for name, value in values.items()
        if (problem := _find_problem(fields, name, value))
    ]
    if errors:
        raise Invalid(
            "; ".join(f"{error.field}: {error.message}" for error in errors), errors=errors
        )
    return dict(values)


def _find_problem(fields: Fields, name: str, value: Any) -> str | None:
    if name not in fields:
        return f"is not a setting here; there are {', '.join(fields)}"
    field = fields[name]
    return (field.kind if isinstance(field, Setting) else field).problem(value)
