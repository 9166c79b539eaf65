"""Messages: found by what they carry, shown as they are, downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.engine.messages import StoredMessage, Wanted
from messagestore.inspect import browse, delivery_status, search
from messagestore.inspect.browse import Browsed
from messagestore.inspect.search import Found, Times
from messagestore.topology import topics
from messagestore.topology.topics import TopicState
from metadata.actors import Actor
from metadata.errors import CatmqError, Forbidden, Invalid, MetadataUnavailable
from metadata.groups import handling_traces
from metadata.listing import topic_lists
from portal.auth.access import actor, may
from portal.kit import bodies, outages, pages, places, rows
from portal.kit.pages import Fact, Link, to
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    Empty,
    Table,
    Text,
    code,
    fold,
    long,
    plain,
    text,
    when,
    with_words,
)
from portal.templatetags.shapes import size
from portal.views.messages import life, query

SHOWN = 50  # messages on a page
WORDS = (
    "topic", "q", "queue", "offset", "key", "tag", "trace_id", "header", "contains", "minutes", "since",
    "until", "message_id",
)  # fmt: skip
CARRIED = ("key", "tag", "trace_id", "header", "contains", "minutes", "since", "until")
FOLDED_BYTES = 4096  # a longer body is shown on the page of its message
MOST_TOPICS = 500  # offered while typing
MOST_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class Result:
    """Search result: a table, how much was looked at, and where to go on; `away`: nodes without answer."""

    table: Table
    scanned: int
    total: int
    following: str
    masked: bool
    away: str = ""


def messages(request: HttpRequest) -> HttpResponse:
    """The search page, with what it found."""
    asked = {name: request.GET.get(name, "").replace("\0", "").strip() for name in WORDS}
    result, problem, status = None, "", 200
    if asked["topic"]:
        try:
            result = _found(request, {**asked, **query.parse(asked["q"])})
        except (Forbidden, MetadataUnavailable):
            raise
        except CatmqError as error:
            problem, status = error.detail, 400 if isinstance(error, Invalid) else 503
    offered = topic_lists.topic_names(most=MOST_TOPICS, actor=actor(request))
    return pages.show(
        request,
        "topics/messages",
        _("Messages"),
        status=status,
        **(places.of_topic(asked["topic"], "messages") if result else {"section": "messages"}),
        asked=asked,
        offered=offered,
        result=result,
        problem=problem,
        chips=pages.chips(request, _labels()) if asked["topic"] else [],
        ranges=_ranges(request) if asked["topic"] else [],
    )


def _labels() -> dict[str, Text]:
    """Return the fields that are shown as filters, those that the query box does not hold."""
    return {
        "key": _("Key"),
        "tag": _("Tag"),
        "trace_id": _("Trace id"),
        "header": _("Header"),
        "contains": _("Text in the body"),
        "minutes": _("Sent within the last … minutes"),
        "since": _("From"),
        "until": _("To"),
        "queue": _("Queue"),
        "offset": _("From offset"),
    }


def _ranges(request: HttpRequest) -> list[Link]:
    """Return links to the usual ranges of time."""
    chosen = request.GET.get("minutes", "")
    usual = ((_("All"), ""), (_("15 min"), "15"), (_("1 hour"), "60"), (_("1 day"), "1440"))
    words = {"since": "", "until": "", "after": "", "seen": ""}
    return [
        Link(label, with_words(request, minutes=minutes, **words), "on" if minutes == chosen else "")
        for label, minutes in usual
    ]


def _found(request: HttpRequest, asked: dict[str, str]) -> Result:
    who, topic = actor(request), asked["topic"]
    if asked["message_id"]:
        found = browse.by_id(topic=topic, message_id=asked["message_id"], actor=who)
        return Result(_table(topic, found.messages), 1, 1, "", found.masked)
    state = topics.describe(name=topic, actor=who)
    total = sum((one.head or 0) - (one.low or 0) for one in state.queues)
    if any(asked[name] for name in CARRIED):
        return _searched(request, asked, total)
    if asked["queue"]:
        return _browsed(asked, who)
    return _latest(state, total, who)


def _number(asked: dict[str, str], name: str) -> int | None:
    word = asked[name]
    if not word:
        return None
    if not (word.isascii() and word.isdigit()) or int(word[:20]) > MOST_NUMBER:
        raise Invalid.field(name, _("must be a whole number"))
    return int(word)


def _searched(request: HttpRequest, asked: dict[str, str], total: int) -> Result:
    minutes = _number(asked, "minutes")
    part = asked["contains"].encode() if asked["contains"] else None
    after, seen = request.GET.get("after") or None, request.GET.get("seen", "0")
    found: Found = search.search(
        topic=asked["topic"],
        wanted=Wanted(
            asked["key"] or None,
            asked["tag"] or None,
            asked["trace_id"] or None,
            part,
            query.header(asked["header"]),
        ),
        times=Times(from_ms=_ago(minutes) or _moment(asked, "since"), to_ms=_moment(asked, "until")),
        queue=_number(asked, "queue"),
        limit=SHOWN,
        after=after,
        actor=actor(request),
    )
    before = int(seen) if after and seen.isascii() and seen.isdigit() and len(seen) < 19 else 0
    scanned = before + found.scanned
    following = _link(asked, after=found.next, seen=scanned) if found.next else ""
    return Result(
        _table(asked["topic"], found.messages), scanned, max(total, scanned), following, found.masked
    )


def _moment(asked: dict[str, str], name: str) -> int | None:
    """Return a date and time in UTC as ms since 1970."""
    if not asked[name]:
        return None
    try:
        return round(datetime.fromisoformat(asked[name]).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        raise Invalid.field(name, _("must be a date and time such as 2026-11-24T09:30")) from None


def _ago(minutes: int | None) -> int | None:
    """Ms since 1970, by the clock of the database."""
    from metadata.db.clock import database_now, ms

    return None if minutes is None else max(0, ms(database_now()) - minutes * 60_000)


def _browsed(asked: dict[str, str], who: Actor) -> Result:
    queue, offset = _number(asked, "queue") or 0, _number(asked, "offset") or 0
    found = browse.by_offset(topic=asked["topic"], queue=queue, offset=offset, limit=SHOWN, actor=who)
    following = _link(asked, offset=found.next) if found.next is not None else ""
    count = len(found.messages)
    return Result(_table(asked["topic"], found.messages), count, count, following, found.masked)


def _latest(state: TopicState, total: int, who: Actor) -> Result:
    """The latest messages of every queue, the youngest first."""
    name, queues = state.topic.name, [one for one in state.queues if one.head]
    each = max(1, SHOWN // max(1, len(queues)))
    found: list[Browsed] = [
        browse.by_offset(
            topic=name,
            queue=one.queue.queue,
            offset=max(one.low or 0, (one.head or 0) - each),
            limit=each,
            actor=who,
        )
        for one in queues[:SHOWN]
    ]
    rows = sorted((row for part in found for row in part.messages), key=lambda row: -row.stored_at_ms)
    masked = any(part.masked for part in found)
    return Result(_table(name, rows), len(rows), total, "", masked, outages.of_topic(state.queues))


def _link(asked: dict[str, str], **more: object) -> str:
    """Return the address of the next part; what stands in the query box stands nowhere else."""
    own = {name: value for name, value in asked.items() if name not in query.parse(asked["q"])}
    words = {**own, **{name: str(value) for name, value in more.items()}}
    return "?" + urlencode({name: value for name, value in words.items() if value})


def _table(topic: str, found: Sequence[StoredMessage]) -> Table:
    columns: Columns[StoredMessage] = [
        Column(_("Message"), lambda one: code(one.message_id, to("message", topic, one.message_id))),
        Column(_("Stored"), lambda one: when(one.stored_at_ms)),
        Column(_("Key"), lambda one: long(one.key)),
        Column(_("Body"), _folded),
        Column(_("Tag"), lambda one: text(one.tag)),
        Column(_("Size"), lambda one: Cell(len(one.body) or None, "size"), right=True),
    ]
    hint = Empty(_("No matching messages so far. Send one:"), f"catmq send {topic} 'hello'")
    return plain(columns, found, hint)


def _folded(one: StoredMessage) -> Cell:
    """Return the beginning of a body, which unfolds to the whole if that is short."""
    preview = bodies.preview(one.body)
    if not 0 < len(one.body) <= FOLDED_BYTES:
        return long(preview or None)
    return fold(preview, bodies.shown(one.body).shown)


def message(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    found = browse.by_id(topic=topic, message_id=message_id, actor=actor(request))
    (one,) = found.messages
    actions = [
        Link(
            _("Nearby messages"),
            f"{to('messages')}?topic={topic}&queue={one.queue}&offset={max(0, one.offset - 10)}",
        )
    ]
    if not found.masked:
        actions.append(Link(_("Download"), to("message-body", topic, message_id)))
    if may(request, "produce", topic) and not found.masked:
        actions.append(Link(_("Resend or edit"), to("message-resend", topic, message_id)))
    body = bodies.shown(one.body)
    statuses = delivery_status.of_message(
        topic=topic, queue=one.queue, offset=one.offset, stored_at_ms=one.stored_at_ms, actor=actor(request)
    )
    traces = handling_traces.of_message(queue=one.queue, offset=one.offset, actor=actor(request))
    place = places.of_topic(topic, "messages")
    place["crumbs"].append(Link(_("Messages"), f"{to('messages')}?topic={topic}"))
    return pages.show(
        request,
        "topics/message",
        message_id,
        **place,
        topic=topic,
        facts=_facts(one, topic, body, masked=found.masked),
        headers=sorted((one.headers or {}).items()),
        body=body,
        masked=found.masked,
        unread_by_all=not statuses,
        steps=life.steps(one, life.sender(topic, one, actor(request)), statuses, traces),
        actions=actions,
    )


def _facts(one: StoredMessage, topic: str, body: bodies.Body, *, masked: bool) -> list[Fact]:
    return [
        Fact(_("Topic"), topic, to("topic", topic), kind="code"),
        Fact(_("Queue"), rows.queue_name(one.queue), f"{to('messages')}?topic={topic}&queue={one.queue}"),
        Fact(_("Offset"), one.offset),
        Fact(_("Stored"), one.stored_at_ms, kind="when"),
        Fact(_("Key"), one.key, kind="code"),
        Fact(_("Tag"), one.tag),
        Fact(_("Trace id"), one.trace_id, kind="code"),
        Fact(_("Attempt"), one.attempt),
        Fact(_("Size"), None if masked else size(body.size)),
    ]


def message_body(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    """The bytes of a body, as a file and never as a page."""
    found = browse.by_id(topic=topic, message_id=message_id, actor=actor(request))
    if found.masked:
        raise Forbidden(_("You may not read the messages of %s.") % topic)
    response = HttpResponse(found.messages[0].body, content_type="application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="{topic}-{found.messages[0].message_id}.bin"'
    return response
