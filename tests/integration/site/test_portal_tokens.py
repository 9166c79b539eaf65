"""Send tokens in the portal: made by who manages the topic, shown once, deleted, all of it
audited.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import Client

from messagestore.topology import topics
from metadata.actors import command
from metadata.errors import Conflict
from metadata.models import AuditLog, Topic
from metadata.topics import send_tokens
from metadata.users.api_keys import digest
from tests.support.forms import browser, confirm, filled, text

ME = command("test")


@pytest.fixture
def olga(metadata_db: None, make_node: Callable[..., str]) -> Client:
    """The browser of an owner of topic `orders`."""
    make_node("main")
    topics.create(name="orders", queues=1, actor=ME, settings={"owners": "olga"})
    return browser("olga")


def kept() -> list[str]:
    """The digests of the topic's tokens."""
    return [one["digest"] for one in Topic.objects.get(name="orders").send_tokens or ()]


@pytest.mark.one_engine
def test_a_token_is_shown_once_and_only_its_digest_is_kept(olga: Client) -> None:
    assert "Send tokens" in text(olga.get("/topics/orders"))
    seen = olga.get("/topics/orders/tokens/create")
    assert "without a token will be refused at once" in text(seen) and kept() == []
    page = confirm(olga, "/topics/orders/tokens/create", seen)
    (token,) = re.findall(r"send_[\w-]{20,}", page.content.decode())
    assert kept() == [digest(token)]
    listed = olga.get("/topics/orders/tokens").content.decode()
    assert token not in listed and digest(token)[:8] in listed
    row = AuditLog.objects.get(verb="add token")
    assert (row.actor_name, row.kind, row.name, row.after) == (
        "olga",
        "topic",
        "orders",
        {"id": digest(token)[:8]},
    )


def test_the_last_token_that_goes_opens_the_topic(olga: Client) -> None:
    (first, _), (second, _) = (
        send_tokens.create(topic="orders", actor=ME) for _ in range(2)
    )
    with pytest.raises(Conflict, match="has 2 send tokens"):
        send_tokens.create(topic="orders", actor=ME)
    for one, said in (
        (first, "with this token will be refused"),
        (second, "It is the last one"),
    ):
        url = f"/topics/orders/tokens/{one.id}/delete"
        assert "The name does not match" in text(filled(olga, url, confirm=one.id))
        seen = filled(olga, url, confirm="orders")
        assert said in text(seen)
        assert f"Send token {one.id} was deleted." in text(confirm(olga, url, seen))
    assert kept() == []
    assert (
        AuditLog.objects.filter(
            actor_name="olga", verb="delete token", name="orders"
        ).count()
        == 2
    )


@pytest.mark.one_engine
def test_who_does_not_manage_the_topic_sees_no_tokens(olga: Client) -> None:
    assert browser("uma").get("/topics/orders/tokens").status_code == 403
