"""Export and import in the portal: a file, the plan as preview, a confirmed import in the
audit log.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from messagestore.topology import topics
from metadata.models import AuditLog, ConsumerGroup
from metadata.topics import topic_rows
from tests.support.forms import browser, confirm, fields, filled, text
from tests.support.rows import ME

pytestmark = pytest.mark.one_engine

URL = "/create/import"
Json = dict[str, Any]


@pytest.fixture
def ada(node: str) -> Client:
    return browser("ada", administrator=True)


def document(**topic: Any) -> str:
    entry = {"name": "orders", "queues": 1, **topic}
    pair = {"group": "billing", "topic": "orders"}
    return json.dumps(
        {
            "version": 1,
            "topics": [entry],
            "groups": [{"name": "billing"}],
            "subscriptions": [pair],
        }
    )


def test_the_export_is_a_file_that_can_be_imported(ada: Client) -> None:
    topics.create(name="orders", queues=2, actor=ME)
    topics.create(name="other", queues=1, actor=ME)
    answer = ada.get("/export?topic=ord*")
    assert answer["Content-Disposition"] == 'attachment; filename="definitions.json"'
    found: Json = json.loads(answer.content)
    assert [one["name"] for one in found["topics"]] == ["orders"]
    assert "exists: 1" in text(
        filled(ada, URL, document=answer.content.decode(), existing="refuse")
    )


def test_an_import_is_previewed_confirmed_and_audited(ada: Client) -> None:
    seen = filled(ada, URL, document=document(retention_days=3), existing="refuse")
    page = text(seen)
    assert "create: 3" in page and "subscriptions[0]" in page and "billing/orders" in page
    assert not ConsumerGroup.objects.exists()
    assert "The import is done. create: 3" in text(confirm(ada, URL, seen))
    assert topic_rows.find_topic(name="orders", actor=ME).retention_days == 3
    rows = AuditLog.objects.filter(actor_name="ada", verb="create").order_by("pk")
    assert [one.name for one in rows] == ["orders", "billing", "billing/orders"]
    assert "carried out once" in text(confirm(ada, URL, seen))


def test_a_difference_is_shown_and_refused_kept_or_changed(ada: Client) -> None:
    topics.create(name="orders", queues=1, actor=ME)
    wanted = document(retention_days=3)
    refused = filled(ada, URL, document=wanted, existing="refuse")
    assert refused.status_code == 400 and "confirmed" not in fields(refused)
    assert "retention_days: 7 → 3" in text(
        refused
    ) and "refused while there are conflicts" in text(refused)
    assert "keep, differs: 1" in text(filled(ada, URL, document=wanted, existing="keep"))
    seen = filled(ada, URL, document=wanted, existing="change")
    assert "change settings: 1" in text(confirm(ada, URL, seen))
    assert topic_rows.find_topic(name="orders", actor=ME).retention_days == 3


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("{", "This is not JSON"),
        ("[]", "must be a JSON object"),
        ("[" * 100_000, "This is not JSON"),
        ('{"version": 2}', "version: is 2; this release reads 1"),
        ('{"version": 1, "topics": [{"name": "a b"}]}', "topics[0].name: a topic name has"),
    ],
)
def test_a_wrong_document_is_named_and_stays_in_the_form(
    ada: Client, typed: str, said: str
) -> None:
    answer = filled(ada, URL, document=typed, existing="refuse")
    assert answer.status_code == 400 and said in text(answer)
    assert fields(answer)["document"].strip() == typed


def test_what_happened_since_the_preview_is_seen_when_it_is_confirmed(ada: Client) -> None:
    seen = filled(ada, URL, document=document(), existing="refuse")
    topics.create(name="orders", queues=3, actor=ME)
    answer = confirm(ada, URL, seen)
    assert answer.status_code == 409 and "queues 3, not 1" in text(answer)
    assert not ConsumerGroup.objects.exists()
