"""Pages of messages: the search, a message with its life line, and the download of a body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.engine.messages import StoredMessage
from messagestore.inspect import browse, delivery_status
from metadata.errors import CatmqError, Forbidden, Invalid, MetadataUnavailable
from metadata.groups import handling_traces
from metadata.listing import topic_lists
from metadata.rules.rights import Right
from metadata.rules.trace_context import TRACEPARENT, parse_traceparent
from portal.auth import error_texts
from portal.auth.access import actor, may
from portal.kit import bodies, cells, navigation, pages
from portal.kit.pages import Fact, Link, page_url
from portal.kit.tables import Table, Text, url_with
from portal.templatetags.formats import format_size
from portal.views.messages import exporting, finding, life, message_columns
from portal.views.messages.finding import FoundMessages

# Messages found at a time.
MESSAGES_PER_PAGE = 50
# Topic names suggested while the user types.
MAX_TOPICS_OFFERED = 500


@dataclass(frozen=True, slots=True)
class Result:
    """Found messages as a table.

    `next_url` continues the search. `last_minute_only`: the search covered only the
    messages of the last minute.
    """

    messages: FoundMessages
    table: Table
    next_url: str
    last_minute_only: bool


def messages(request: HttpRequest) -> HttpResponse:
    """Show the search form and the messages it finds."""
    query = finding.fields(request)
    # A live tail shows the latest messages and refreshes itself.
    is_tail = bool(request.GET.get("tail"))
    result, error_text, status = None, "", 200
    if query["topic"]:
        try:
            find = finding.tail if is_tail else finding.find
            found_messages = find(query, limit=MESSAGES_PER_PAGE, actor=actor(request))
            table = message_columns.messages_table(
                query["topic"],
                found_messages.messages,
                message_columns.chosen_columns(request),
            )
            next_url = (
                url_with(request, **found_messages.next_parameters)
                if found_messages.next_parameters
                else ""
            )
            result = Result(
                found_messages,
                table,
                next_url,
                last_minute_only=is_tail and finding.is_filtered(query),
            )
        # These get a page of their own. Other errors are shown above the form, which keeps
        # its input.
        except (Forbidden, MetadataUnavailable):
            raise
        except CatmqError as error:
            error_text, status = (
                error_texts.describe_error(error),
                400 if isinstance(error, Invalid) else 503,
            )
    # Names suggested while the user types a topic.
    topic_names = topic_lists.topic_names(most=MAX_TOPICS_OFFERED, actor=actor(request))
    response = pages.render_page(
        request,
        "topics/messages",
        _("Messages"),
        status=status,
        **(
            navigation.for_topic(query["topic"], "messages")
            if result
            else {"section": "messages"}
        ),
        **(_toolbar(request, is_tail=is_tail) if query["topic"] else {}),
        saved=pages.find_saved_filters(request),
        query=query,
        topic_names=topic_names,
        result=result,
        error_text=error_text,
        live=is_tail and result is not None,
    )
    return message_columns.remember_columns(request, response)


def _toolbar(request: HttpRequest, *, is_tail: bool) -> dict[str, Any]:
    """Return the context of the tools between the search form and the found messages."""
    selected = None if is_tail else request.GET.get("minutes", "")
    ranges = (
        (_("All"), ""),
        (_("15 min"), "15"),
        (_("1 hour"), "60"),
        (_("1 day"), "1440"),
    )
    return {
        "chips": pages.filter_chips(
            request,
            {
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
            },
        ),
        "ranges": [
            Link(
                label,
                url_with(
                    request, **{**_without_time_range(), "minutes": minutes, "tail": ""}
                ),
                "on" if minutes == selected else "",
            )
            for label, minutes in ranges
        ],
        "tail": url_with(request, tail="" if is_tail else "1", **_without_time_range()),
        "columns": message_columns.column_links(request),
        "choosing": message_columns.COLUMNS_PARAMETER in request.GET,
        "downloads": exporting.download_links(request),
        "most": exporting.MAX_MESSAGES,
    }


def _without_time_range() -> dict[str, str]:
    """Return the URL parameters to clear for a different time range."""
    return dict.fromkeys(
        ("minutes", "since", "until", "offset", "message_id", "after", "seen"), ""
    )


def message(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    """Show a message, its life line, and the actions on it."""
    browsed = browse.read_message(topic=topic, message_id=message_id, actor=actor(request))
    (stored,) = browsed.messages
    # The link begins some messages earlier, so that the message stands among its
    # neighbours.
    actions = [
        Link(
            _("Nearby messages"),
            f"{page_url('messages')}?topic={topic}&queue={stored.queue}"
            f"&offset={max(0, stored.offset - 10)}",
        )
    ]
    # Without the right to browse, the body can be neither downloaded nor sent again.
    if not browsed.masked:
        actions.append(Link(_("Download"), page_url("message-body", topic, message_id)))
    if may(request, Right.PRODUCE, topic) and not browsed.masked:
        actions.append(
            Link(_("Resend or edit"), page_url("message-resend", topic, message_id))
        )
    body = bodies.render_body(stored.body)
    # Reads the positions, retries and dead letters of every subscribed group.
    statuses = delivery_status.trace_message(
        topic=topic,
        queue=stored.queue,
        offset=stored.offset,
        stored_at_ms=stored.stored_at_ms,
        actor=actor(request),
        # A masked message has no headers, so filters cannot be tested on it.
        message=None if browsed.masked else stored,
    )
    traces = handling_traces.traces_of_message(
        queue=stored.queue, offset=stored.offset, actor=actor(request)
    )
    # Other messages of the trace, in the same topic.
    trace_query = urlencode({"topic": topic, "trace_id": stored.trace_id or ""})
    trace_url = f"{page_url('messages')}?{trace_query}" if stored.trace_id else ""
    navigation_context = navigation.for_topic(topic, "messages")
    navigation_context["crumbs"].append(
        Link(_("Messages"), f"{page_url('messages')}?topic={topic}")
    )
    return pages.render_page(
        request,
        "topics/message",
        message_id,
        **navigation_context,
        topic=topic,
        facts=[
            Fact(_("Topic"), topic, page_url("topic", topic), kind="code"),
            Fact(
                _("Queue"),
                cells.queue_name(stored.queue),
                f"{page_url('messages')}?topic={topic}&queue={stored.queue}",
            ),
            Fact(_("Offset"), stored.offset),
            Fact(_("Stored"), stored.stored_at_ms, kind="when"),
            Fact(_("Key"), stored.key, kind="code"),
            Fact(_("Tag"), stored.tag),
            Fact(_("Trace id"), stored.trace_id, trace_url, kind="code"),
            Fact(_("Trace context"), describe_trace(stored)),
            Fact(_("Attempt"), stored.attempt),
            Fact(_("Size"), None if browsed.masked else format_size(body.size)),
        ],
        headers=sorted((stored.headers or {}).items()),
        body=body,
        masked=browsed.masked,
        unread_by_all=not statuses,
        steps=life.life_steps(
            stored, life.describe_sender(topic, stored, actor(request)), statuses, traces
        ),
        actions=actions,
    )


def describe_trace(stored: StoredMessage) -> Text | None:
    """Describe the header `traceparent` of a message, None without one."""
    header = (stored.headers or {}).get(TRACEPARENT)
    if header is None:
        return None
    context = parse_traceparent(header)
    if context is None:
        return _("The header traceparent breaks the rules of W3C, so consumers ignore it.")
    template = _("span %s, recorded") if context.sampled else _("span %s, not recorded")
    return template % context.parent_id


def message_body(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    """Return the body of a message as a file, never as a page that a browser would run."""
    browsed = browse.read_message(topic=topic, message_id=message_id, actor=actor(request))
    if browsed.masked:
        raise Forbidden(_("You may not read the messages of %s.") % topic)
    response = HttpResponse(
        browsed.messages[0].body, content_type="application/octet-stream"
    )
    response["Content-Disposition"] = (
        f'attachment; filename="{topic}-{browsed.messages[0].message_id}.bin"'
    )
    return response
