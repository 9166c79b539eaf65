"""Maps the rows to a document of definitions, with remarks on properties that the document
cannot express.

Column names are those of the other product. `topic_type` 1 is a topic, 2 the retry topic of
a group and a topic. A group of `mode` 2 broadcasts: each of its consumers reads its own
copy of the group, whose `origin_name` is the name of the group. `delay_process_time` is in
seconds, although the column's comments name milliseconds: the clients count in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from catmq_site.pmq.tables import Row, Tables, number, text
from metadata.config import config
from metadata.errors import Invalid
from metadata.grouping import grouped
from metadata.rules import mail
from metadata.rules.definitions import VERSION
from metadata.rules.groups.delivery import check_tag_filter
from metadata.rules.groups.states import GroupMode, Start
from metadata.rules.membership.eligibility import parse_networks
from metadata.rules.setting_types import Kind, Whole
from metadata.rules.settings import DELIVERY, GROUP, TOPIC
from metadata.rules.topics.names import check_name
from metadata.users.accounts import owner_names

NORMAL, RETRY = 1, 2
CLUSTERING, BROADCASTING = 1, 2
WRITABLE = 1
# Settings of a subscription: their column there, and the factor to our unit.
SUBSCRIPTION_COLUMNS = {
    "retries": ("retry_count", 1),
    "threads": ("thread_size", 1),
    "max_poll_records": ("pull_batch_size", 1),
    "handler_batch": ("consumer_batch_size", 1),
    "delay_s": ("delay_process_time", 1),
    "handler_timeout_ms": ("time_out", 1_000),
}
COLUMNS_OFF_AT_ZERO = ("delay_process_time", "time_out")
Subject = tuple[str, str]  # kind and name
MODES = {CLUSTERING: GroupMode.CLUSTERING, BROADCASTING: GroupMode.BROADCASTING}


class Remark(NamedTuple):
    """A remark about a topic, group or subscription."""

    kind: str
    name: str
    sentence: str


@dataclass(frozen=True)
class Position:
    """Progress of a group in a topic there: the sum of its last consumed ids, and the
    number of its readers.
    """

    group: str
    topic: str
    queues: int
    consumed: int
    readers: int


@dataclass
class Definitions:
    """The document, the objects that are left out of it, and remarks for the user."""

    document: dict[str, Any] = field(default_factory=dict)
    left_out: list[Remark] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict, repr=False)  # send tokens by topic
    positions: list[Position] = field(default_factory=list)


class Mapping:
    """Maps the rows once. `users` are the names of accounts of this installation."""

    def __init__(self, tables: Tables, users: Collection[str]) -> None:
        self._tables = tables
        self._users = users
        self.definitions = Definitions()
        self._topics: dict[int, str] = {}
        self._groups: dict[int, str] = {}
        # By topic type and group id.
        self._subscriptions = grouped(
            ((number(row, "topic_type", NORMAL), row["consumer_group_id"]), row)
            for row in tables.subscriptions
        )

    def run(self) -> Definitions:
        # In this order: a subscription needs the topics and groups that were not left out.
        self.definitions.document = {
            "version": VERSION,
            "topics": list(self._map_topics()),
            "groups": list(self._map_groups()),
            "subscriptions": list(self._map_subscriptions()),
        }
        self.definitions.positions = list(self._map_positions())
        return self.definitions

    def _leave_out(self, kind: str, name: str, sentence: str) -> None:
        self.definitions.left_out.append(Remark(kind, name, sentence))

    def _add_remark(self, kind: str, name: str, sentence: str) -> None:
        self.definitions.remarks.append(Remark(kind, name, sentence))

    def _map_topics(self) -> Iterable[dict[str, Any]]:
        queues_of_topic = grouped((row["topic_id"], row) for row in self._tables.queues)
        for row in self._tables.topics:
            name, queues = text(row, "name"), queues_of_topic.get(row["id"], [])
            if number(row, "topic_type", NORMAL) == RETRY:
                self._leave_out(
                    "topic", name, "is a retry topic: each subscription gets its own here"
                )
                continue
            if not self._check_name("topic", name):
                continue
            self._topics[row["id"]] = name
            if token := text(row, "token"):
                self.definitions.tokens[name] = token
            if number(row, "consumer_flag", 1) == 0:
                groups = text(row, "consumer_group_names") or "none"
                self._add_remark(
                    "topic",
                    name,
                    f"only these groups may subscribe there: {groups}; here rights say so",
                )
            if number(row, "normal_flag", 1) == 0:
                self._add_remark(
                    "topic",
                    name,
                    "has nodes of its own there; here its queues are spread over all nodes",
                )
            days = self._number_within(
                ("topic", name), row, "save_day_num", TOPIC["retention_days"].kind
            )
            # Only queues that are writable there, from 1 to the limit here.
            writable = sum(number(q, "read_only", WRITABLE) == WRITABLE for q in queues)
            queue_count = min(max(writable, 1), config.max_topic_queues)
            if queue_count != len(queues):
                sentence = (
                    f"has {len(queues)} queues there, {writable} of them open for sends, "
                    f"and gets {queue_count}"
                )
                self._add_remark("topic", name, sentence)
            yield {
                "name": name,
                "queues": queue_count,
                **({"retention_days": days} if days is not None else {}),
                **self._map_owners("topic", name, row, "emails"),
            }

    def _check_name(self, kind: str, name: str) -> bool:
        try:
            check_name(kind, name)
        except Invalid as error:
            self._leave_out(kind, name, error.errors[0].message)
            return False
        return True

    def _map_owners(self, kind: str, name: str, row: Row, emails: str) -> dict[str, Any]:
        """Return owners, department, alarm addresses and description."""
        owners = owner_names(text(row, "owner_ids") or text(row, "owner_names"))
        if unknown_owners := [owner for owner in owners if owner not in self._users]:
            self._add_remark(
                kind, name, f"owners without an account here: {', '.join(unknown_owners)}"
            )
        # Import must not add recipients that the portal would refuse.
        allowed: list[str] = []
        refused: list[str] = []
        for address in mail.parse_addresses(text(row, emails)):
            is_allowed = mail.is_address(address) and mail.is_allowed_recipient(
                address, config.mail_domains
            )
            (allowed if is_allowed else refused).append(address)
        if refused:
            self._add_remark(
                kind,
                name,
                f"alarm addresses that are not allowed here: {', '.join(refused)}",
            )
        return {
            "owners": ", ".join(owners),
            "department": text(row, "dpt_name"),
            "alarm_emails": ", ".join(allowed),
            "description": text(row, "remark"),
        }

    def _number_within(
        self, subject: Subject, row: Row, column: str, kind: Kind, *, factor: int = 1
    ) -> Any:
        """Return a number within the range of a setting, None for NULL. A number out of
        range gets a remark.
        """
        if row.get(column) is None or not isinstance(kind, Whole):
            return None
        scaled = int(row[column]) * factor
        value = min(max(scaled, kind.minimum), kind.maximum)
        if value != scaled:
            sentence = (
                f"{column} is {row[column]} there; the nearest that is allowed is taken"
            )
            self._add_remark(*subject, sentence)
        return value

    def _map_groups(self) -> Iterable[dict[str, Any]]:
        # Copies get a remark for each group, not for each consumer.
        copies: Counter[str] = Counter()
        for row in self._tables.groups:
            name, origin = text(row, "name"), text(row, "origin_name")
            mode, env = number(row, "mode", CLUSTERING), text(row, "sub_env") or "default"
            # Instances of broadcasting groups need no copies here.
            if mode == BROADCASTING and origin and origin != name:
                copies[origin] += 1
            elif origin and origin != name:
                self._leave_out(
                    "group", name, f"is the copy of group {origin} for environment {env}"
                )
            elif mode not in MODES:
                self._leave_out(
                    "group",
                    name,
                    f"is of mode {mode} (proxy): nothing here calls consumers by HTTP",
                )
            elif self._check_name("group", name):
                self._groups[row["id"]] = name
                yield self._map_group(row, name, mode)
        for origin, count in sorted(copies.items()):
            sentence = (
                f"has {count} copies for its consumers there, left out: instances need "
                "none here"
            )
            self._add_remark("group", origin, sentence)

    def _map_group(self, row: Row, name: str, mode: int) -> dict[str, Any]:
        group = {
            "name": name,
            "mode": MODES[mode],
            **self._map_owners("group", name, row, "alarm_emails"),
        }
        for setting, column in (
            ("allow_addresses", "ip_white_list"),
            ("deny_addresses", "ip_black_list"),
        ):
            group[setting] = self._map_addresses(name, row, column)
        if number(row, "consumer_quality", 0) > 0:
            kind = GROUP["max_active_members"].kind
            group["max_active_members"] = self._number_within(
                ("group", name), row, "consumer_quality", kind
            )
        lags = [
            lag
            for subscription in self._subscriptions.get((NORMAL, row["id"]), [])
            if (lag := number(subscription, "max_lag", 0)) > 0
        ]
        if number(row, "alarm_flag", 1) == 0:
            self._add_remark(
                "group",
                name,
                "has no lag alarms there; here the threshold of the server holds",
            )
        elif lags:
            group["alarm_lag"] = min(lags)
            if len(set(lags)) > 1:
                sentence = (
                    f"has lag thresholds {min(lags)} to {max(lags)} there; here the "
                    "first holds for all"
                )
                self._add_remark("group", name, sentence)
        return group

    def _map_addresses(self, name: str, row: Row, column: str) -> str:
        valid, invalid = [], []
        for network in text(row, column).replace(";", ",").replace(",", " ").split():
            try:
                parse_networks(network)
            except ValueError:
                invalid.append(network)
            else:
                valid.append(network)
        if invalid:
            # An empty list of allowed addresses admits every address, so the remark warns
            # of it.
            opens_group = not valid and column == "ip_white_list"
            consequence = ": all addresses may read" if opens_group else ""
            self._add_remark(
                "group",
                name,
                f"{column} names what is no address, left out: {', '.join(invalid)}{consequence}",
            )
        return ", ".join(valid)

    def _map_subscriptions(self) -> Iterable[dict[str, Any]]:
        columns = [column for column, _factor in SUBSCRIPTION_COLUMNS.values()]
        for group_id, name in self._groups.items():
            # A retry topic has no settings of its own here: a remark names those there.
            for row in self._subscriptions.get((RETRY, group_id), []):
                numbers = {column: number(row, column, 0) for column in columns}
                settings = [
                    f"{column} {value}" for column, value in numbers.items() if value > 0
                ]
                tags = text(row, "tag")
                if settings or tags:
                    all_settings = ", ".join(settings) + (f", tag {tags}" if tags else "")
                    self._add_remark(
                        "subscription",
                        f"{name}/{text(row, 'topic_name')}",
                        "settings of retries are not taken over, those of the topic hold: "
                        f"{all_settings}",
                    )
            for row in self._subscriptions.get((NORMAL, group_id), []):
                topic = self._topics.get(row["topic_id"])
                pair = f"{name}/{topic or text(row, 'topic_name')}"
                if topic is None:
                    self._leave_out(
                        "subscription", pair, "its topic is left out, or is no more"
                    )
                    continue
                tags = text(row, "tag")
                try:
                    check_tag_filter(tags.strip(","))
                except ValueError as error:
                    sentence = (
                        f"its tag filter {tags!r} cannot be meant ({error}): subscribe by "
                        "hand"
                    )
                    self._leave_out("subscription", pair, sentence)
                else:
                    yield self._map_subscription(row, pair, group=name, topic=topic)

    def _map_subscription(
        self, row: Row, pair: str, *, group: str, topic: str
    ) -> dict[str, Any]:
        tags = text(row, "tag").strip(",")
        subscription: dict[str, Any] = {
            "group": group,
            "topic": topic,
            "start": Start.EARLIEST,
            "tags": tags,
        }
        for setting, (column, factor) in SUBSCRIPTION_COLUMNS.items():
            is_off = column in COLUMNS_OFF_AT_ZERO and number(row, column, 0) <= 0
            subject, kind = ("subscription", pair), DELIVERY[setting].kind
            if is_off:
                continue
            value = self._number_within(subject, row, column, kind, factor=factor)
            if value is not None:
                subscription[setting] = value
        if "delay_s" in subscription:
            sentence = (
                f"is delayed by {subscription['delay_s']} s: clients there count "
                "delay_process_time in seconds"
            )
            self._add_remark("subscription", pair, sentence)
        return subscription

    def _map_positions(self) -> Iterable[Position]:
        """Yield the position of each group and topic, with a remark if queues are stopped
        there.
        """
        rows = grouped(
            ((self._groups[row["consumer_group_id"]], self._topics[row["topic_id"]]), row)
            for row in self._tables.offsets
            if number(row, "topic_type", NORMAL) == NORMAL
            and row["consumer_group_id"] in self._groups
            and row["topic_id"] in self._topics
        )
        for (group, topic), offsets in sorted(rows.items(), key=lambda item: item[0]):
            stopped = sum(number(row, "stop_flag", 0) == 1 for row in offsets)
            if stopped:
                sentence = (
                    f"is stopped there in {stopped} of {len(offsets)} queues; here it "
                    "begins running"
                )
                self._add_remark("subscription", f"{group}/{topic}", sentence)
            consumed = sum(number(row, "offset", 0) for row in offsets)
            readers = {text(row, "consumer_name") for row in offsets} - {""}
            yield Position(group, topic, len(offsets), consumed, len(readers))
