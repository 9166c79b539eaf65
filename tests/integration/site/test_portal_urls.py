"""Pages that change something, from the resolver: not by GET, without a token or the right;
and audited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from django.urls import URLPattern

from catmq_site.jobs import tasks
from messagestore.topology import queues
from metadata.brokers import registration
from metadata.brokers.registration import BrokerIdentity
from metadata.models import AuditLog, JobRun, OffsetMove
from metadata.topics import topic_rows
from portal.actions.action import Action
from portal.urls import urlpatterns
from tests.integration.site.test_portal_roles import kept, url_of
from tests.support import failing, moving
from tests.support.failing import ME
from tests.support.forms import browser, carry_out, confirm, text

OLD, NEW = "enough characters", "other characters"
NOTHING_TO_WRITE = {"node-test", "checks"}  # they look, and change nothing
# what needs servers or files has its own tests, which look into the audit log as well
ELSEWHERE = {
    # test_portal_nodes, test_store_promotion
    *("node-account", "node-reader", "node-promote"),
    *("archive-start", "purge-start", "replay-start"),  # test_portal_pipeline
    *("alarm-acknowledge", "alarms-acknowledge"),  # test_portal_alarms
    *("repair", "dead-seen"),  # test_consistency
    *("dead-drop", "topic-clean", "broker-forget"),  # below
    # test_portal_shares, test_portal_tokens
    *("run-release", "token-create", "token-delete"),
}


def actions() -> list[URLPattern]:
    """The pages that do something."""
    return [
        one
        for one in urlpatterns
        if issubclass(getattr(one.callback, "view_class", int), Action)
    ]


DEFINITIONS = '{"version": 1, "groups": [{"name": "imported"}]}'


def fingerprint() -> dict[str, Any]:
    """What metadata holds, accounts included; not what changes by itself."""
    models = [
        *apps.get_app_config("metadata").get_models(),
        *apps.get_app_config("auth").get_models(),
    ]
    return {
        model.__name__: sorted(map(str, model._default_manager.values_list()))
        for model in models
        if model.__name__ not in ("Lease", "ClockMark", "Permission")
    }


@pytest.fixture
def world(make_node: Callable[..., str]) -> dict[str, object]:
    """One of everything, two dead letters among it; what stands in URLs."""
    make_node("main")
    make_node("failure", kind="failure")
    make_node("spare")
    queue = failing.billing(retries=0)
    failing.send(b"a", b"b", b"c")
    failing.fail(failing.member(), queue, 0, 1)
    (receipt,) = moving.delay("orders", b"later")
    for name in ("b1", "b2"):
        registration.heartbeat(
            identity=BrokerIdentity(name, f"http://{name}", "1.0", name), held=False
        )
    words = {
        "topic": "orders",
        "group": "billing",
        "reset": "none",
        "message_id": f"{queue}-2",
    }
    words |= {"kind": "lag", "key": "none"}  # neither is there
    return {**words, "queue": queue, "delayed": receipt.message_id, **kept()}


@pytest.mark.one_engine
def test_no_page_changes_anything_by_get(world: dict[str, object]) -> None:
    ada = browser("ada", administrator=True)
    ada.get("/")
    before = fingerprint()
    for page in urlpatterns:
        if page.name not in ("logout",):
            ada.get(
                url_of(page, world)
                if page.name not in ("dead",)
                else "/groups/billing/failures"
            )
    assert fingerprint() == before


@pytest.mark.one_engine
def test_no_page_changes_anything_without_a_token(world: dict[str, object]) -> None:
    browser("ada", administrator=True)
    ada = Client(enforce_csrf_checks=True)
    ada.cookies = browser("ada").cookies
    assert ada.get("/").status_code == 200
    before = fingerprint()
    for page in actions():
        sent = {
            "confirmed": "yes",
            "form_number": "x" * 20,
            "confirm": "orders",
            "name": "new",
        }
        sent["state"] = "out"
        answer = ada.post(url_of(page, world), sent)
        assert answer.status_code == 403 and "not sent from a page" in text(answer), (
            page.name
        )
    assert fingerprint() == before


def deeds(
    world: dict[str, object], database: dict[str, Any]
) -> dict[str, tuple[str, dict[str, str]]]:
    """Every action in an order in which each can be carried out: (address, what is typed)."""
    billing, orders = "/groups/billing", "/topics/orders"
    given = {name: str(value) for name, value in database.items() if value}
    return {
        "topic-create": ("/create/topic", {"name": "other", "queues": "1", "node": "main"}),
        "topic-settings": (f"{orders}/settings", {"retention_days": "9"}),
        "topic-expand": (f"{orders}/expand", {"queues": "2"}),
        "queue-state": (f"{orders}/queues/{world['queue']}", {}),
        "topic-shrink": (f"{orders}/shrink", {"count": "1"}),
        "send": ("/topics/other/send", {"body": "x"}),
        "message-resend": (f"/messages/orders/{world['message_id']}/resend", {}),
        "recall": (f"{orders}/delayed/{world['delayed']}", {}),
        "group-create": ("/create/group", {"name": "readers"}),
        "group-settings": (f"{billing}/settings", {"description": "r"}),
        "group-stop": (f"{billing}/stop", {}),
        "group-start": (f"{billing}/start", {}),
        "group-reset": (f"{billing}/reset", {"topic": "orders", "to": "latest"}),
        "group-undo": (f"{billing}/moves/{{reset}}/undo", {}),
        "group-rebalance": (f"{billing}/rebalance", {}),
        "subscribe": ("/groups/readers/subscribe", {"topic": "other", "start": "latest"}),
        "subscription-settings": ("/groups/readers/of/other", {"retries": "3"}),
        "unsubscribe": ("/groups/readers/of/other/end", {}),
        "redrive": (f"{billing}/dead/redrive?everything=on", {}),
        "import": ("/create/import", {"document": DEFINITIONS, "existing": "refuse"}),
        "node-settings": ("/nodes/spare/settings", {"dedicated": "on"}),
        "node-adopt": ("/nodes/spare/adopt", {}),
        "node-register": ("/create/node", {"name": "n9", **given}),
        "node-delete": ("/nodes/n9/delete", {"confirm": "n9"}),
        "broker-state": ("/brokers/b1/state", {}),
        "job-run": ("/jobs/prune_audit/run", {}),
        "run-cancel": (f"/runs/{world['run']}/cancel", {}),
        "report-make": ("/create/report", {"name": "volume", "topic": "orders"}),
        "key-create": ("/create/key", {"name": "till", "produce": "orders"}),
        "key-limits": ("/keys/till/limits", {"max_messages_per_s": "7"}),
        "key-delete": ("/keys/till/delete", {"confirm": "till"}),
        "user-create": ("/create/user", {"name": "uma", "password": "enough characters"}),
        "user": ("/users/uma", {"browse": "orders"}),
        "user-delete": ("/users/uma/delete", {"confirm": "uma"}),
        "topic-delete": ("/topics/other/delete", {"confirm": "other"}),
        "group-delete": ("/groups/readers/delete", {"confirm": "readers"}),
        "password": ("/password", {"old": OLD, "password": NEW, "again": NEW}),
    }


def test_every_action_that_is_allowed_is_in_the_audit_log_under_the_name_of_who_did_it(
    world: dict[str, object], node_database: Callable[..., dict[str, Any]]
) -> None:
    tasks.connect()  # jobs are known, and can be asked for
    ada, found = browser("ada", administrator=True), deeds(world, node_database())
    missing = (
        {str(page.name) for page in actions()} - NOTHING_TO_WRITE - ELSEWHERE - set(found)
    )
    assert not missing, (
        "these actions need a deed here, or a test of their own that is named above"
    )
    for name, (url, typed) in found.items():
        count = AuditLog.objects.filter(actor_kind="user", actor_name="ada").count()
        carry_out(ada, url.format(reset=_last_reset()), **typed)
        mine = AuditLog.objects.filter(actor_kind="user", actor_name="ada")
        assert mine.count() > count, name
        assert all(one.address == "127.0.0.1" for one in mine), name
    assert JobRun.objects.get(pk=world["run"]).cancel_asked


def _last_reset() -> str:
    return str(
        OffsetMove.objects.order_by("-pk").values_list("reset", flat=True).first() or "none"
    )


def test_what_is_dropped_or_forgotten_by_hand_is_in_the_audit_log(
    world: dict[str, object],
) -> None:
    ada = browser("ada", administrator=True)
    carry_out(ada, "/groups/billing/dead/drop?everything=on")
    assert AuditLog.objects.filter(actor_name="ada", kind="dead", verb="drop").exists()
    count = AuditLog.objects.count()
    carry_out(ada, "/topics/orders/clean")  # nothing is old enough: nothing to tell
    assert AuditLog.objects.count() == count
    registration.record_stop(identity=BrokerIdentity("b2", "http://b2", "1.0", "b2"))
    carry_out(ada, "/brokers/b2/forget", confirm="b2")
    assert AuditLog.objects.filter(actor_name="ada", kind="broker", verb="delete").exists()


@pytest.mark.one_engine
def test_what_was_previewed_is_done_although_somebody_else_did_it_meanwhile(
    world: dict[str, object],
) -> None:
    ada, queue = browser("ada", administrator=True), int(str(world["queue"]))
    # the last open queue cannot be closed
    queues.expand(topic="orders", queues=1, actor=ME)
    url = f"/topics/orders/queues/{queue}"
    seen = ada.get(url)
    assert "closed for sends" in text(seen)
    queues.set_state(topic="orders", queue=queue, state="read_only", actor=ME)
    assert "closed for sends" in text(confirm(ada, url, seen))
    states = {
        one.queue: one.state
        for one in topic_rows.find_topic(name="orders", actor=ME).queues
    }
    assert states[queue] == "read_only"
