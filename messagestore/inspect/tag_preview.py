"""Filters on tags and headers, tried on the last messages of a topic before they are set.

A filter that matches nothing fails nowhere: the position passes every message, and is
committed. So who sets one sees first what it would have taken lately. It is a sample, read
by primary key without bodies: an even share of the last messages for each queue. It waits
for no barrier as pulls do, because it hands out nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.tables import message_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.rules.groups.delivery import parse_tags
from metadata.rules.groups.filters import MessageFilter, header_filter
from metadata.rules.settings import SUBSCRIPTION, check_settings

MOST = 1_000  # messages that are looked at, of all queues together


@dataclass(frozen=True, slots=True)
class TagMatches:
    """The numbers of messages that were looked at and that a filter would take of them, and
    the names of the nodes that did not answer."""

    looked_at: int
    matching: int
    away: tuple[str, ...] = ()


def tag_matches(
    *,
    topic: str,
    actor: Actor,
    tags: str = "",
    headers: Mapping[str, Sequence[str]] | None = None,
) -> TagMatches:
    """Count what the filters `tags`, such as `new || paid`, and `headers`, such as
    {"region": ["eu", "us"]}, would take together of the topic's last messages.

    Needs `browse` on the topic, or of a person to look. Raises Invalid, Forbidden,
    NotFound.
    """
    access.require_look(actor, topic, snapshot.origin_of(topic))
    wanted = check_settings(
        SUBSCRIPTION, {"tags": tags, "headers": {} if headers is None else headers}
    )
    only = MessageFilter(parse_tags(wanted["tags"]), header_filter(wanted["headers"]))
    shares = _shares(sorted(snapshot.find_topic(topic).queues))
    counts: list[tuple[int, int]] = []

    def count(session: Session, queues: list[int]) -> None:
        mine = {queue: shares[queue] for queue in queues}
        counts.append(message_sql.count_matching(session, shares=mine, only=only))

    away = sweeping.query_nodes(
        sweeping.queues_by_node(shares), count, subject="Number of matching messages"
    )
    looked_at, matching = (sum(column) for column in zip((0, 0), *counts, strict=True))
    return TagMatches(looked_at, matching, tuple(sorted(away)))


def _shares(queues: list[int]) -> dict[int, int]:
    """The number of messages to look at in each queue; with more queues than messages the
    last get none.
    """
    each, rest = divmod(MOST, len(queues) or 1)
    return {queue: share for n, queue in enumerate(queues) if (share := each + (n < rest))}
