"""Their rows as a document of definitions, with remarks on what it cannot say.

Names of columns are theirs. `topic_type` 1 is a topic, 2 the retry topic of a group and a
topic. A group of
`mode` 2 broadcasts: each of its consumers reads a copy of the group, whose `origin_name` is
the group's.
`delay_process_time` is in seconds, although comments of the column say milliseconds:
clients count so.
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
from metadata.rules.membership.eligibility import parse_networks
from metadata.rules.setting_types import Kind, Whole
from metadata.rules.settings import DELIVERY, GROUP, TOPIC
from metadata.rules.topics.names import check_name
from metadata.users.accounts import owner_names

NORMAL, RETRY = 1, 2
CLUSTERING, BROADCASTING = 1, 2
WRITABLE = 1
# Settings of a subscription by their columns, and what they are multiplied by.
NUMBERS = {
    "retries": ("retry_count", 1),
    "threads": ("thread_size", 1),
    "max_poll_records": ("pull_batch_size", 1),
    "handler_batch": ("consumer_batch_size", 1),
    "delay_s": ("delay_process_time", 1),
    "handler_timeout_ms": ("time_out", 1_000),
}
OFF_AT_ZERO = ("delay_process_time", "time_out")
About = tuple[str, str]  # kind and name
MODES = {CLUSTERING: "clustering", BROADCASTING: "broadcasting"}


class Remark(NamedTuple):
    """A sentence about a topic, group or subscription."""

    kind: str
    name: str
    said: str


@dataclass(frozen=True)
class Position:
    """Progress of a group in a topic there: the sum of its last consumed ids, and who
    reads.
    """

    group: str
    topic: str
    queues: int
    consumed: int
    readers: int


@dataclass
class Found:
    """The document, what is left out of it, and what a person should know of the rest."""

    document: dict[str, Any] = field(default_factory=dict)
    left_out: list[Remark] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict, repr=False)  # send tokens by topic
    positions: list[Position] = field(default_factory=list)


class Mapping:
    """Maps the rows once; `users` are the accounts of this installation."""

    def __init__(self, tables: Tables, users: Collection[str]) -> None:
        self._tables = tables
        self._users = users
        self.found = Found()
        self._topics: dict[int, str] = {}
        self._groups: dict[int, str] = {}
        self._subscriptions = grouped(
            (row["consumer_group_id"], row)
            for row in tables.subscriptions
            if number(row, "topic_type", NORMAL) == NORMAL
        )

        self._retries = grouped(
            (row["consumer_group_id"], row)
            for row in tables.subscriptions
            if number(row, "topic_type", NORMAL) == RETRY
        )

    def run(self) -> Found:
        document = self.found.document = {
            "version": VERSION,
            "topics": [],
            "groups": [],
            "subscriptions": [],
        }
        document["topics"] = list(self._all_topics())
        document["groups"] = list(self._all_groups())
        document["subscriptions"] = list(self._all_subscriptions())
        self.found.positions = list(self._positions())
        return self.found

    def _leave(self, kind: str, name: str, said: str) -> None:
        self.found.left_out.append(Remark(kind, name, said))

    def _note(self, kind: str, name: str, said: str) -> None:
        self.found.remarks.append(Remark(kind, name, said))

    def _all_topics(self) -> Iterable[dict[str, Any]]:
        queues = grouped((row["topic_id"], row) for row in self._tables.queues)
        for row in self._tables.topics:
            name = text(row, "name")
            if number(row, "topic_type", NORMAL) == RETRY:
                self._leave(
                    "topic", name, "is a retry topic: each subscription gets its own here"
                )
            elif self._is_name("topic", name):
                self._topics[row["id"]] = name
                yield self._topic(row, name, queues.get(row["id"], []))

    def _is_name(self, kind: str, name: str) -> bool:
        try:
            check_name(kind, name)
        except Invalid as error:
            self._leave(kind, name, error.errors[0].message)
            return False
        return True

    def _topic(self, row: Row, name: str, queues: list[Row]) -> dict[str, Any]:
        if token := text(row, "token"):
            self.found.tokens[name] = token
        if number(row, "consumer_flag", 1) == 0:
            groups = text(row, "consumer_group_names") or "none"
            self._note(
                "topic",
                name,
                f"only these groups may subscribe there: {groups}; here rights say so",
            )
        if number(row, "normal_flag", 1) == 0:
            self._note(
                "topic",
                name,
                "has nodes of its own there; here its queues are spread over all nodes",
            )
        days = self._within(
            ("topic", name), row, "save_day_num", TOPIC["retention_days"].kind
        )
        return {
            "name": name,
            "queues": self._count(name, queues),
            **({"retention_days": days} if days is not None else {}),
            **self._owned("topic", name, row, "emails"),
        }

    def _count(self, name: str, queues: list[Row]) -> int:
        """Return the number of queues: those that can be written, at least one, at most
        what is allowed.
        """
        open_ones = sum(number(row, "read_only", WRITABLE) == WRITABLE for row in queues)
        wanted = min(max(open_ones, 1), config.max_topic_queues)
        if wanted != len(queues):
            said = (
                f"has {len(queues)} queues there, {open_ones} of them open for sends, "
                f"and gets {wanted}"
            )
            self._note("topic", name, said)
        return wanted

    def _owned(self, kind: str, name: str, row: Row, emails: str) -> dict[str, Any]:
        """Return owners, department, alarm addresses and description."""
        owners = owner_names(text(row, "owner_ids") or text(row, "owner_names"))
        if strangers := [one for one in owners if one not in self._users]:
            self._note(
                kind, name, f"owners without an account here: {', '.join(strangers)}"
            )
        good: list[str] = []
        bad: list[str] = []
        for one in mail.parse_addresses(text(row, emails)):
            fits = mail.is_address(one) and mail.is_allowed_recipient(
                one, config.mail_domains
            )
            (good if fits else bad).append(one)
        if bad:
            self._note(
                kind, name, f"alarm addresses that are not allowed here: {', '.join(bad)}"
            )
        return {
            "owners": ", ".join(owners),
            "department": text(row, "dpt_name"),
            "alarm_emails": ", ".join(good),
            "description": text(row, "remark"),
        }

    def _within(
        self, about: About, row: Row, column: str, kind: Kind, *, factor: int = 1
    ) -> Any:
        """Return a number in the range of a setting, None for NULL; a remark says if it is
        another one.
        """
        if row.get(column) is None or not isinstance(kind, Whole):
            return None
        given = int(row[column]) * factor
        value = min(max(given, kind.minimum), kind.maximum)
        if value != given:
            said = f"{column} is {row[column]} there; the nearest that is allowed is taken"
            self._note(*about, said)
        return value

    def _all_groups(self) -> Iterable[dict[str, Any]]:
        copies: Counter[str] = Counter()
        for row in self._tables.groups:
            name, origin = text(row, "name"), text(row, "origin_name")
            mode, env = number(row, "mode", CLUSTERING), text(row, "sub_env") or "default"
            if mode == BROADCASTING and origin and origin != name:
                copies[origin] += 1
            elif origin and origin != name:
                self._leave(
                    "group", name, f"is the copy of group {origin} for environment {env}"
                )
            elif mode not in MODES:
                self._leave(
                    "group",
                    name,
                    f"is of mode {mode} (proxy): nothing here calls consumers by HTTP",
                )
            elif self._is_name("group", name):
                self._groups[row["id"]] = name
                yield self._group(row, name, mode)
        for origin, count in sorted(copies.items()):
            said = f"has {count} copies for its consumers there, left out: instances need none here"
            self._note("group", origin, said)

    def _group(self, row: Row, name: str, mode: int) -> dict[str, Any]:
        made = {
            "name": name,
            "mode": MODES[mode],
            **self._owned("group", name, row, "alarm_emails"),
        }
        for setting, column in (
            ("allow_addresses", "ip_white_list"),
            ("deny_addresses", "ip_black_list"),
        ):
            made[setting] = self._addresses(name, row, column)
        if number(row, "consumer_quality", 0) > 0:
            allowed = GROUP["max_active_members"].kind
            made["max_active_members"] = self._within(
                ("group", name), row, "consumer_quality", allowed
            )
        lags = [
            lag
            for one in self._subscriptions.get(row["id"], [])
            if (lag := number(one, "max_lag", 0)) > 0
        ]
        if number(row, "alarm_flag", 1) == 0:
            self._note(
                "group",
                name,
                "has no lag alarms there; here the threshold of the server holds",
            )
        elif lags:
            made["alarm_lag"] = min(lags)
            if len(set(lags)) > 1:
                said = (
                    f"has lag thresholds {min(lags)} to {max(lags)} there; here the "
                    "first holds for all"
                )
                self._note("group", name, said)
        return made

    def _addresses(self, name: str, row: Row, column: str) -> str:
        good, bad = [], []
        for one in text(row, column).replace(";", ",").replace(",", " ").split():
            try:
                parse_networks(one)
            except ValueError:
                bad.append(one)
            else:
                good.append(one)
        if bad:
            rest = (
                ""
                if good
                else ": all addresses may read"
                if column == "ip_white_list"
                else ""
            )
            self._note(
                "group",
                name,
                f"{column} names what is no address, left out: {', '.join(bad)}{rest}",
            )
        return ", ".join(good)

    def _all_subscriptions(self) -> Iterable[dict[str, Any]]:
        for group_id, name in self._groups.items():
            for row in self._retries.get(group_id, []):
                self._note_retries(name, row)
            for row in self._subscriptions.get(group_id, []):
                topic = self._topics.get(row["topic_id"])
                pair = f"{name}/{topic or text(row, 'topic_name')}"
                if topic is None:
                    self._leave(
                        "subscription", pair, "its topic is left out, or is no more"
                    )
                elif self._is_filter(pair, text(row, "tag")):
                    yield self._subscription(row, pair, group=name, topic=topic)

    def _note_retries(self, group: str, row: Row) -> None:
        """Note the settings of a group's retry topic, which has none of its own here."""
        given = [(column, number(row, column, 0)) for column, _factor in NUMBERS.values()]
        settings = ", ".join(f"{column} {value}" for column, value in given if value > 0)
        tags = text(row, "tag")
        settings += f", tag {tags}" if tags else ""
        if settings:
            remark = f"settings of retries are not taken over, those of the topic hold: {settings}"
            self._note("subscription", f"{group}/{text(row, 'topic_name')}", remark)

    def _is_filter(self, pair: str, tags: str) -> bool:
        try:
            check_tag_filter(tags.strip(","))
        except ValueError as error:
            said = f"its tag filter {tags!r} cannot be meant ({error}): subscribe by hand"
            self._leave("subscription", pair, said)
            return False
        return True

    def _subscription(
        self, row: Row, pair: str, *, group: str, topic: str
    ) -> dict[str, Any]:
        tags = text(row, "tag").strip(",")
        made: dict[str, Any] = {
            "group": group,
            "topic": topic,
            "start": "earliest",
            "tags": tags,
        }
        for setting, (column, factor) in NUMBERS.items():
            zero = column in OFF_AT_ZERO and number(row, column, 0) <= 0
            about, kind = ("subscription", pair), DELIVERY[setting].kind
            value = None if zero else self._within(about, row, column, kind, factor=factor)
            if value is not None:
                made[setting] = value
        if "delay_s" in made:
            said = (
                f"is delayed by {made['delay_s']} s: clients there count "
                "delay_process_time in seconds"
            )
            self._note("subscription", pair, said)
        return made

    def _positions(self) -> Iterable[Position]:
        """Return where groups stand, and note which queues are stopped there."""
        rows = grouped(
            ((self._groups[row["consumer_group_id"]], self._topics[row["topic_id"]]), row)
            for row in self._tables.offsets
            if number(row, "topic_type", NORMAL) == NORMAL
            and row["consumer_group_id"] in self._groups
            and row["topic_id"] in self._topics
        )
        for (group, topic), mine in sorted(rows.items(), key=lambda one: one[0]):
            stopped = sum(number(row, "stop_flag", 0) == 1 for row in mine)
            if stopped:
                said = (
                    f"is stopped there in {stopped} of {len(mine)} queues; here it "
                    "begins running"
                )
                self._note("subscription", f"{group}/{topic}", said)
            consumed = sum(number(row, "offset", 0) for row in mine)
            readers = {text(row, "consumer_name") for row in mine} - {""}
            yield Position(group, topic, len(mine), consumed, len(readers))
