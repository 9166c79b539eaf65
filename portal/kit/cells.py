"""Cells and labels that several pages share: states as badges, names as links, lag with
a tone.

Labels are looked up by the words stored in metadata. An unknown word is shown as it is.
"""

from __future__ import annotations

import re
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from metadata.cache import snapshot
from metadata.listing.operation_lists import AlarmRow
from metadata.listing.topic_lists import GroupRow, SubscriptionRow
from metadata.rules.alarm_rules import AlarmKind, parse_subject
from metadata.rules.alarm_texts import translate_detail
from metadata.rules.audit_verbs import Verb
from metadata.rules.disks import DiskState
from metadata.rules.groups.lag_trend import TrendState
from metadata.rules.groups.states import GroupMode, Start, SubscriptionState
from metadata.rules.jobs import JobState
from metadata.rules.membership.brokers import BrokerState
from metadata.rules.membership.process_report import SlowHandler
from metadata.rules.nodes import NodeState
from metadata.rules.rights import ActorKind
from metadata.rules.topics.states import QueueState, TopicKind
from portal.kit import progress
from portal.kit.pages import page_url
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    Text,
    badge,
    code,
    duration,
    number,
    spark,
)

# Labels and tones of states, modes and kinds. Equal values of several enums have one entry: a
# queue and a node that are "read_write" are both shown as open.
STATE_LABELS: dict[str, tuple[Text, str]] = {
    SubscriptionState.READY: (gettext_lazy("ready"), "ok"),
    SubscriptionState.CREATING: (gettext_lazy("creating"), "warn"),
    SubscriptionState.DELETING: (gettext_lazy("deleting"), "warn"),
    QueueState.READ_WRITE: (gettext_lazy("open"), "ok"),
    QueueState.READ_ONLY: (gettext_lazy("read-only"), "warn"),
    "draining": (gettext_lazy("draining"), "warn"),
    QueueState.RETIRED: (gettext_lazy("retired"), ""),
    NodeState.OFFLINE: (gettext_lazy("offline"), "bad"),
    JobState.RUNNING: (gettext_lazy("running"), "ok"),
    "stopped": (gettext_lazy("paused"), "warn"),
    JobState.FAILED: (gettext_lazy("failed"), "bad"),
    JobState.CANCELLED: (gettext_lazy("cancelled"), "warn"),
    JobState.DONE: (gettext_lazy("done"), "ok"),
    BrokerState.IN: (gettext_lazy("enabled"), "ok"),
    BrokerState.OUT: (gettext_lazy("drained"), "warn"),
    "alive": (gettext_lazy("alive"), "ok"),
    "dead": (gettext_lazy("no heartbeat"), "bad"),
    GroupMode.CLUSTERING: (gettext_lazy("clustering"), ""),
    GroupMode.BROADCASTING: (gettext_lazy("broadcasting"), ""),
    GroupMode.SHARE: (gettext_lazy("share"), ""),
    TopicKind.NORMAL: (gettext_lazy("normal"), ""),
    TopicKind.FAILURE: (gettext_lazy("retry"), ""),
    DiskState.OK: (gettext_lazy("ok"), "ok"),
    DiskState.LOW: (gettext_lazy("low"), "warn"),
    DiskState.FULL: (gettext_lazy("full"), "bad"),
    Start.EARLIEST: (gettext_lazy("earliest"), ""),
    Start.LATEST: (gettext_lazy("latest"), ""),
    "away": (gettext_lazy("does not answer"), "bad"),
    "user": (gettext_lazy("user"), ""),
    "owner": (gettext_lazy("owner"), ""),
    "administrator": (gettext_lazy("administrator"), "ok"),
    "inactive": (gettext_lazy("inactive"), "warn"),
}
ALARM_LABELS: dict[str, Text] = {
    AlarmKind.UNREAD_DROPPED: gettext_lazy("dropped unread"),
    AlarmKind.NODE_LOW: gettext_lazy("node nearly full"),
    AlarmKind.NODE_FULL: gettext_lazy("node full"),
    AlarmKind.NODE_FILLING: gettext_lazy("node full soon"),
    AlarmKind.NODE_AWAY: gettext_lazy("node away"),
    AlarmKind.NODE_MOVED: gettext_lazy("other server"),
    AlarmKind.NODE_COPIES: gettext_lazy("too few copies"),
    AlarmKind.METADATA_MOVED: gettext_lazy("metadata on another server"),
    AlarmKind.NOT_CLEANED: gettext_lazy("not cleaned"),
    AlarmKind.LAG: gettext_lazy("far behind"),
    AlarmKind.NO_CONSUMER: gettext_lazy("no consumer"),
    AlarmKind.DEAD_GROWING: gettext_lazy("dead letters grow"),
    AlarmKind.JOB_FAILED: gettext_lazy("job failed"),
    AlarmKind.INCONSISTENT: gettext_lazy("metadata and nodes disagree"),
    AlarmKind.CORRUPT: gettext_lazy("queue is corrupt"),
}
# Verbs of the audit log.
VERB_LABELS: dict[str, Text] = {
    Verb.CREATE: gettext_lazy("create"),
    Verb.DELETE: gettext_lazy("delete"),
    Verb.UPDATE: gettext_lazy("update"),
    Verb.REMOVE: gettext_lazy("remove"),
    Verb.RUN: gettext_lazy("run"),
    Verb.UPGRADE: gettext_lazy("upgrade"),
    Verb.STOP: gettext_lazy("stop"),
    Verb.SHRINK: gettext_lazy("shrink"),
    Verb.SET_READER: gettext_lazy("set reader account of"),
    Verb.SET_ACCOUNT: gettext_lazy("set account of"),
    Verb.SAVE: gettext_lazy("save"),
    Verb.SAW: gettext_lazy("mark as seen"),
    Verb.RETIRE: gettext_lazy("retire"),
    Verb.REQUIRE: gettext_lazy("require"),
    Verb.REPAIR: gettext_lazy("repair"),
    Verb.RELEASE: gettext_lazy("release"),
    Verb.REDRIVE: gettext_lazy("redrive"),
    Verb.REBALANCE: gettext_lazy("rebalance"),
    Verb.RAISE_IDS: gettext_lazy("raise ids of"),
    Verb.QUARANTINE: gettext_lazy("quarantine"),
    Verb.FOLLOW: gettext_lazy("follow the writer of"),
    Verb.PROMOTE: gettext_lazy("promote"),
    Verb.INDEX: gettext_lazy("change the key index"),
    Verb.KEEP: gettext_lazy("keep"),
    Verb.FINISH: gettext_lazy("finish"),
    Verb.EXPAND: gettext_lazy("expand"),
    Verb.DROP: gettext_lazy("drop"),
    Verb.CLEAN: gettext_lazy("clean"),
    Verb.CHANGE_PASSWORD: gettext_lazy("change password of"),
    Verb.CANCEL: gettext_lazy("cancel"),
    Verb.ADOPT: gettext_lazy("adopt"),
    Verb.ACKNOWLEDGE: gettext_lazy("acknowledge"),
    Verb.ADD_TOKEN: gettext_lazy("add a send token to"),
    Verb.DELETE_TOKEN: gettext_lazy("delete a send token of"),
    Verb.ACCEPT_KEYS: gettext_lazy("accept keys of"),
    Verb.RESET: gettext_lazy("reset"),
    Verb.SEND: gettext_lazy("send to"),
    Verb.RECALL: gettext_lazy("recall a message of"),
    Verb.GIVE_UP: gettext_lazy("give up"),
    Verb.LAY_OUT: gettext_lazy("lay out"),
    Verb.BEGIN_PROMOTE: gettext_lazy("begin to promote"),
    Verb.BEGIN_ADOPT: gettext_lazy("begin to adopt"),
    Verb.UNDO: gettext_lazy("undo"),
}
# Kinds of actors in the audit log.
ACTOR_LABELS: dict[str, Text] = {
    ActorKind.USER: gettext_lazy("user"),
    ActorKind.KEY: gettext_lazy("API key"),
    ActorKind.JOB: gettext_lazy("job"),
    ActorKind.COMMAND: gettext_lazy("command"),
}
KIND_LABELS: dict[str, Text] = {
    "topic": gettext_lazy("topic"),
    "filter": gettext_lazy("saved filter"),
    "node": gettext_lazy("node"),
    "broker": gettext_lazy("Broker"),
    "user": gettext_lazy("user"),
    "group": gettext_lazy("consumer group"),
    "dead": gettext_lazy("dead letters"),
    "subscription": gettext_lazy("subscription"),
    "job": gettext_lazy("job"),
    "queue": gettext_lazy("queue"),
    "key": gettext_lazy("API key"),
    "report": gettext_lazy("report"),
    "offset": gettext_lazy("offset"),
    "metadata": gettext_lazy("metadata"),
    "installation": gettext_lazy("installation"),
    "finding": gettext_lazy("finding"),
    "alarm": gettext_lazy("alarm"),
}
SUBSCRIBED_PREFIX = "subscribed to "
# Causes of rebalances are stored in English. Each pattern captures the name in a cause.
REBALANCE_CAUSES: tuple[tuple[str, Text], ...] = (
    (r"(.+) joined", gettext_lazy("%s joined")),
    (r"(.+) left", gettext_lazy("%s left")),
    (r"(.+) expired", gettext_lazy("%s expired")),
    (rf"{SUBSCRIBED_PREFIX}(.+)", gettext_lazy("subscribed to %s")),
    (r"unsubscribed from (.+)", gettext_lazy("unsubscribed from %s")),
    (r"(.+) was expanded", gettext_lazy("%s was expanded")),
    (r"(.+) changed", gettext_lazy("%s changed")),
)
# An unread message older than this is shown with a warning.
LATE_MS = 60_000


def state(word: str) -> Cell:
    """Return a state as a badge."""
    label, tone = STATE_LABELS.get(word, (word, ""))
    return badge(label, tone)


def alarm_kind(kind: str) -> Text:
    """Return the label of a kind of alarm."""
    return ALARM_LABELS.get(kind, kind)


def subscription_state(row: SubscriptionRow) -> Cell:
    """Return the state of a subscription as a badge: whether it is read, or why not."""
    if row.state != SubscriptionState.READY:
        return state(row.state)
    if row.stopped:
        return state("stopped")
    if row.stopped_queues:
        text = ngettext("%d queue paused", "%d queues paused", row.stopped_queues)
        return badge(text % row.stopped_queues, "warn")
    if not row.members:
        return badge(
            progress.STATE_LABELS[TrendState.NO_MEMBERS][0],
            progress.tone_without_members(row.lag),
        )
    if (row.lag_ms or 0) > LATE_MS:
        return badge(*progress.BEHIND)
    return badge(
        *progress.STATE_LABELS[
            TrendState.KEEPS_UP if row.lag or any(row.minutes) else TrendState.NOTHING_SENT
        ]
    )


def age(age_ms: int | None) -> Cell:
    """Return the age of the oldest unread message, a dash if there is none."""
    return duration(age_ms or None, "warn" if (age_ms or 0) > LATE_MS else "")


def heartbeat_age(age_ms: int | None, timeout_ms: int) -> Cell:
    """Return the time since the last heartbeat, bad beyond the session timeout."""
    return duration(age_ms, "bad" if (age_ms or 0) > timeout_ms else "")


def topic(name: str) -> Cell:
    """Return the name of a topic with a link to its page."""
    return code(name, page_url("topic", name))


def queue_name(queue_id: int) -> str:
    """Return a queue as topic/number. Return its id if the queue no longer exists."""
    return snapshot.current().queue_name(queue_id) or str(queue_id)


def queue(queue_id: int, href: str = "") -> Cell:
    """Return a queue by its name. Its id, which commands take, is shown on hover."""
    return Cell(queue_name(queue_id), "code", href, title=_("Queue %d") % queue_id)


def handled_message(handler: SlowHandler | None) -> Cell:
    """Return the message that a handler is processing, as topic/queue:offset with its
    link.
    """
    if handler is None:
        return code(None)
    name = queue_name(handler.queue)
    queue = snapshot.current().queues.get(handler.queue)
    topic = snapshot.current().topics.get(queue.topic_id) if queue else None
    href = (
        page_url("message", topic.name, f"{handler.queue}-{handler.offset}")
        if topic
        else ""
    )
    return code(f"{name}:{handler.offset}", href)


def group(name: str) -> Cell:
    """Return the name of a group with a link to its page."""
    return code(name, page_url("group", name))


def alarm_detail(alarm: AlarmRow) -> str:
    """Return the detail of an alarm in the language of the page."""
    return translate_detail(alarm.facts, alarm.detail, _)


def alarm_url(kind: str, name: str, *, administrator: bool) -> str:
    """Return the page of the object that an alarm is about.

    Return '' if there is no such page, or only administrators may open it.
    """
    alarm_object = parse_subject(kind, name)
    if alarm_object.node:
        return page_url("node", alarm_object.node) if administrator else ""
    if alarm_object.job:
        return f"{page_url('jobs')}?q={alarm_object.job}"
    if kind == AlarmKind.INCONSISTENT:
        return page_url("consistency") if administrator else ""
    if kind == AlarmKind.METADATA_MOVED:
        return page_url("nodes") if administrator else ""
    # Names of deleted topics and groups contain a tilde.
    if "~" in name:
        return ""
    return (
        page_url("group", alarm_object.group)
        if alarm_object.group
        else page_url("topic", alarm_object.topic)
    )


def alarm_subject(alarm: AlarmRow, *, administrator: bool) -> Cell:
    """Return the name of the object that an alarm is about, with its link."""
    return code(
        alarm.name or None, alarm_url(alarm.kind, alarm.name, administrator=administrator)
    )


def audited_object(kind: str, name: str) -> Cell:
    """Return the name of the object that was changed, with a link if it has a page."""
    first, _slash, second = name.partition("/")
    pages: dict[str, Any] = {"topic": "topic", "group": "group", "node": "node"}
    if kind in pages and "~" not in name:
        return code(name, page_url(pages[kind], name))
    if kind in ("subscription", "position") and second:
        return code(name, page_url("group", first))
    return code(name)


def audited_action(verb: str, kind: str) -> str:
    """Return an audit row's verb and object kind in words."""
    return f"{VERB_LABELS.get(verb, verb)} {KIND_LABELS.get(kind, kind)}"


def describe_rebalance_cause(stored: str) -> str:
    """Return the stored cause of a rebalance in the language of the page. It may have
    several parts.
    """
    parts = stored.split("; ")
    # A group subscribes to a retry topic together with its topic, so that part would only
    # repeat it.
    shown_parts = [
        text
        for text in parts
        if not snapshot.origin_of(text.removeprefix(SUBSCRIBED_PREFIX))
    ]
    return "; ".join(map(_translate_cause, shown_parts or parts))


def _translate_cause(part: str) -> str:
    """Return a single part of a rebalance cause in the language of the page."""
    for pattern, template in REBALANCE_CAUSES:
        matched = re.fullmatch(pattern, part)
        if matched:
            return str(template) % matched[1]
    return part


def yes(value: bool) -> Cell:
    return badge(_("yes"), "ok") if value else badge(_("no"))


# Columns of every list of groups.
GROUP_COLUMNS: Columns[GroupRow] = (
    Column(gettext_lazy("Group"), lambda row: group(row.name), "name"),
    Column(gettext_lazy("State"), lambda row: progress.progress_cell(row.progress)),
    Column(gettext_lazy("Unread"), lambda row: number(row.lag), "lag", right=True),
    Column(gettext_lazy("Oldest unread"), lambda row: age(row.lag_ms), "age", right=True),
    Column(
        gettext_lazy("Handled/s"),
        lambda row: progress.handled_rate(row.progress),
        right=True,
    ),
    Column(gettext_lazy("Members"), lambda row: number(row.members), right=True),
    Column(gettext_lazy("Handled, last 30 min"), lambda row: spark(row.minutes)),
)
