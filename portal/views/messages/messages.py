"""Messages: found by what they carry, shown as they are, downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.engine.messages import StoredMessage
from messagestore.inspect import browse, delivery_status
from metadata.errors import CatmqError, Forbidden, Invalid, MetadataUnavailable
from metadata.groups import handling_traces
from metadata.listing import topic_lists
from portal.auth import error_texts
from portal.auth.access import actor, may
from portal.kit import bodies, cells, navigation, pages
from portal.kit.pages import Fact, Link, page_url
from portal.kit.tables import Table, Text, url_with
from portal.templatetags.formats import format_size
from portal.views.messages import exporting, finding, life, message_columns
from portal.views.messages.finding import FoundMessages

MESSAGES_PER_PAGE = 50  # messages on a page
MAX_TOPICS_OFFERED = 500  # offered while typing


@dataclass(frozen=True, slots=True)
class Result:
    """Found messages as a table; `following` is the address of the next part; `recent`:
    only the messages of the last minute were looked through."""

    found: FoundMessages
    table: Table
    following: str
    recent: bool


def messages(request: HttpRequest) -> HttpResponse:
    """The search page, with what it found."""
    asked = finding.fields(request)
    tails = bool(request.GET.get("tail"))
    result, problem, status = None, "", 200
    if asked["topic"]:
        try:
            result = _result(request, asked, tails=tails)
        except (Forbidden, MetadataUnavailable):
            raise
        except CatmqError as error:
            problem, status = (
                error_texts.describe_error(error),
                400 if isinstance(error, Invalid) else 503,
            )
    offered = topic_lists.topic_names(most=MAX_TOPICS_OFFERED, actor=actor(request))
    response = pages.render_page(
        request,
        "topics/messages",
        _("Messages"),
        status=status,
        **(
            navigation.for_topic(asked["topic"], "messages")
            if result
            else {"section": "messages"}
        ),
        **(_tools(request, tails=tails) if asked["topic"] else {}),
        saved=pages.find_saved_filters(request),
        asked=asked,
        offered=offered,
        result=result,
        problem=problem,
        live=tails and result is not None,
    )
    return message_columns.remember_columns(request, response)


def _result(request: HttpRequest, asked: Mapping[str, str], *, tails: bool) -> Result:
    look = finding.tail if tails else finding.find
    found = look(asked, limit=MESSAGES_PER_PAGE, actor=actor(request))
    table = message_columns.messages_table(
        asked["topic"], found.messages, message_columns.chosen_columns(request)
    )
    following = url_with(request, **found.following) if found.following else ""
    return Result(found, table, following, recent=tails and finding.is_filtered(asked))


def _tools(request: HttpRequest, *, tails: bool) -> dict[str, Any]:
    """Return what stands between the search and what it found."""
    return {
        "chips": pages.filter_chips(request, _labels()),
        "ranges": _ranges(request, tails=tails),
        "tail": url_with(request, tail="" if tails else "1", **_anew()),
        "columns": message_columns.column_links(request),
        "choosing": message_columns.COLUMNS_PARAMETER in request.GET,
        "downloads": exporting.download_links(request),
        "most": exporting.MAX_MESSAGES,
    }


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


def _ranges(request: HttpRequest, *, tails: bool) -> list[Link]:
    """Return links to the usual ranges of time."""
    chosen = None if tails else request.GET.get("minutes", "")
    usual = ((_("All"), ""), (_("15 min"), "15"), (_("1 hour"), "60"), (_("1 day"), "1440"))
    return [
        Link(
            label,
            url_with(request, **{**_anew(), "minutes": minutes, "tail": ""}),
            "on" if minutes == chosen else "",
        )
        for label, minutes in usual
    ]


def _anew() -> dict[str, str]:
    """Return the words of the URL that another range of time does without."""
    return dict.fromkeys(
        ("minutes", "since", "until", "offset", "message_id", "after", "seen"), ""
    )


def message(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    found = browse.by_id(topic=topic, message_id=message_id, actor=actor(request))
    (one,) = found.messages
    actions = [
        Link(
            _("Nearby messages"),
            f"{page_url('messages')}?topic={topic}&queue={one.queue}"
            f"&offset={max(0, one.offset - 10)}",
        )
    ]
    if not found.masked:
        actions.append(Link(_("Download"), page_url("message-body", topic, message_id)))
    if may(request, "produce", topic) and not found.masked:
        actions.append(
            Link(_("Resend or edit"), page_url("message-resend", topic, message_id))
        )
    body = bodies.render_body(one.body)
    statuses = delivery_status.of_message(
        topic=topic,
        queue=one.queue,
        offset=one.offset,
        stored_at_ms=one.stored_at_ms,
        actor=actor(request),
        # a masked message has no headers to try filters on
        message=None if found.masked else one,
    )
    traces = handling_traces.of_message(
        queue=one.queue, offset=one.offset, actor=actor(request)
    )
    place = navigation.for_topic(topic, "messages")
    place["crumbs"].append(Link(_("Messages"), f"{page_url('messages')}?topic={topic}"))
    return pages.render_page(
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
        steps=life.life_steps(
            one, life.describe_sender(topic, one, actor(request)), statuses, traces
        ),
        actions=actions,
    )


def _facts(
    one: StoredMessage, topic: str, body: bodies.Body, *, masked: bool
) -> list[Fact]:
    return [
        Fact(_("Topic"), topic, page_url("topic", topic), kind="code"),
        Fact(
            _("Queue"),
            cells.queue_name(one.queue),
            f"{page_url('messages')}?topic={topic}&queue={one.queue}",
        ),
        Fact(_("Offset"), one.offset),
        Fact(_("Stored"), one.stored_at_ms, kind="when"),
        Fact(_("Key"), one.key, kind="code"),
        Fact(_("Tag"), one.tag),
        Fact(_("Trace id"), one.trace_id, kind="code"),
        Fact(_("Attempt"), one.attempt),
        Fact(_("Size"), None if masked else format_size(body.size)),
    ]


def message_body(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    """The bytes of a body, as a file and never as a page."""
    found = browse.by_id(topic=topic, message_id=message_id, actor=actor(request))
    if found.masked:
        raise Forbidden(_("You may not read the messages of %s.") % topic)
    response = HttpResponse(found.messages[0].body, content_type="application/octet-stream")
    response["Content-Disposition"] = (
        f'attachment; filename="{topic}-{found.messages[0].message_id}.bin"'
    )
    return response
