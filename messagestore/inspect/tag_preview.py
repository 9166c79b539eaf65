"""Tries filters on tags and headers on the newest messages of a topic, before they are set.

A filter that matches nothing causes no error: the position passes every message and is
committed. So a user who sets a filter first sees how many recent messages match. It is a
sample, read by primary key without bodies, with an equal share for each queue. Unlike pulls
it does not wait until messages are durable, because it delivers none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.tables import message_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.rules.groups.delivery import parse_tags
from metadata.rules.groups.filters import MessageFilter, header_filter
from metadata.rules.settings import SUBSCRIPTION, check_settings
from metadata.rules.wire import Number

MAX_SAMPLED = 1_000  # messages to look at, in all queues together


class TagMatches(Struct, frozen=True):
    """Result of a filter on the last messages of a topic."""

    looked_at: Annotated[
        Number,
        Meta(description="number of messages, the last ones of each queue in equal shares"),
    ]
    matching: Annotated[Number, Meta(description="number of matching messages")]
    away: Annotated[tuple[str, ...], Meta(description="nodes that did not answer")] = ()


def tag_matches(
    *,
    topic: str,
    actor: Actor,
    tags: str = "",
    headers: Mapping[str, Sequence[str]] | None = None,
) -> TagMatches:
    """Count the newest messages of a topic that pass the filters `tags` and `headers`
    together.

    `tags` is a text such as `new || paid`, `headers` such as {"region": ["eu", "us"]}.
    Needs `browse` on the topic, or the right of a person to look. Raises Invalid,
    Forbidden, NotFound.
    """
    access.require_look(actor, topic, snapshot.origin_of(topic))
    settings = check_settings(
        SUBSCRIPTION, {"tags": tags, "headers": {} if headers is None else headers}
    )
    only = MessageFilter(parse_tags(settings["tags"]), header_filter(settings["headers"]))
    queues = sorted(snapshot.find_topic(topic).queues)
    # With more queues than messages to look at, the last queues are left out.
    each, rest = divmod(MAX_SAMPLED, len(queues) or 1)
    shares = {q: share for n, q in enumerate(queues) if (share := each + (n < rest))}
    counts: list[tuple[int, int]] = []

    def count(session: Session, queues: list[int]) -> None:
        node_shares = {queue: shares[queue] for queue in queues}
        counts.append(message_sql.count_matching(session, newest=node_shares, only=only))

    away = sweeping.query_nodes(
        sweeping.queues_by_node(shares), count, subject="Number of matching messages"
    )
    looked_at, matching = (sum(column) for column in zip((0, 0), *counts, strict=True))
    return TagMatches(looked_at, matching, tuple(sorted(away)))
