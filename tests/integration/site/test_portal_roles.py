"""What the portal shows to whom; tests/integration/site/test_routes.py has every page by
every role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import URLPattern, reverse

from messagestore.consume import offset_reset
from messagestore.engine.messages import NewMessage
from messagestore.produce import publish
from messagestore.topology import subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.db.clock import database_now
from metadata.groups import groups
from metadata.jobs import report_files, reports
from metadata.models import JobRun
from metadata.monitoring import alarms
from metadata.users import accounts
from portal.urls import urlpatterns
from tests.support.forms import browser

ACTOR = actors.command("test")
OPEN = ("login", "logout", "set_language", "theme")  # for strangers too
NAMES = {
    "gro": "billing",
    "fai": "billing",
    "red": "billing",
    "dea": "billing",
    "sub": "billing",
    "uns": "billing",
    "mov": "billing",
    "run": "billing",
    "nod": "main",
    "use": "uma",
    "ala": "billing/orders",
}
# No message is dead, no share group is there, and the URLs of the others alone ask for
# nothing.
MISSING = (
    "dead",
    "run-release",
    "filter-save",
    "filter-delete",
    "messages-download",
    "names",
)
PAGES = [one for one in urlpatterns if one.name not in OPEN]
BODY = b'{"secret": "treasure"}'


@pytest.fixture
def world(make_node: Callable[..., str]) -> dict[str, object]:
    """One of everything; what stands in URLs."""
    make_node("main")
    make_node("failure", kind="failure")
    topics.create(name="orders", queues=1, actor=ACTOR, settings={"owners": "olga, ann"})
    topics.create(name="other", queues=1, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR, settings={"owners": "olga"})
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    receipt = publish.publish(
        topic="orders",
        messages=[NewMessage(body=BODY, key="k")],
        batch_id=None,
        actor=ACTOR,
    )[0]
    queue = topics.describe(name="orders", actor=ACTOR).queues[0].queue.queue
    assert isinstance(receipt, publish.Receipt)
    (move,) = offset_reset.reset(
        group="billing", topic="orders", target=offset_reset.Target("latest"), actor=ACTOR
    )
    alarms.raise_alarm(kind="lag", name="billing/orders", detail="far behind")
    words = {
        "topic": "orders",
        "group": "billing",
        "reset": move.reset,
        "kind": "lag",
        "key": "none",
    }
    return {**words, "queue": queue, "message_id": receipt.message_id, **kept()}


def kept() -> dict[str, object]:
    """A report, a run of a job that is under way, where leases would begin; no token is
    there.
    """
    made = reports.save_report(
        name="volume", engine="direct", settings={}, rows=[{"topic": "orders"}], actor=ACTOR
    )
    run = JobRun.objects.create(name="report_volume", started_at=database_now())
    return {"number_": made, "run": run.pk, "first": 0, "token": "none"}


def url_of(page: URLPattern, world: dict[str, object]) -> str:
    """The URL of a page about what there is."""
    words = {}
    for word in page.pattern.converters:
        if word == "name":
            words[word] = NAMES.get(str(page.name)[:3], "orders")
        else:
            words[word] = "dead-1-1" if page.name == "dead" else world[word]
    return reverse(str(page.name), kwargs=words)


@pytest.fixture
def uma(world: dict[str, object]) -> Iterator[Client]:
    """A user who owns nothing."""
    yield browser("uma")


def test_an_administrator_opens_every_page(world: dict[str, object], uma: Client) -> None:
    client = browser("ada", administrator=True)
    for page in PAGES:
        # none here
        if page.name in ("broker-state", "key-limits", "key-delete", "repair", *MISSING):
            continue
        if page.name == "report-parquet" and not report_files.can_parquet():
            continue
        answer = client.get(url_of(page, world))
        assert answer.status_code == 200, (page.name, answer.content.decode()[-1500:])
        assert "default-src 'self'" in answer["Content-Security-Policy"]
        assert "unsafe" not in answer["Content-Security-Policy"]


@pytest.mark.one_engine
def test_what_a_user_may_not_do_is_not_offered(
    world: dict[str, object], uma: Client
) -> None:
    page = uma.get("/topics/orders").content.decode()
    assert "/topics/orders/delete" not in page and "/topics/orders/settings" not in page
    assert "/topics/orders/delete" in browser("olga").get("/topics/orders").content.decode()


@pytest.mark.one_engine
def test_bodies_are_for_who_may_browse(world: dict[str, object], uma: Client) -> None:
    urls = ("/messages?topic=orders", f"/messages/orders/{world['message_id']}")
    for url in urls:
        assert "treasure" not in uma.get(url).content.decode()
        assert "treasure" in browser("ann").get(url).content.decode()
    assert uma.get("/messages?topic=orders&contains=treas").status_code == 403
    rights = {"browse": ["ord*"]}
    accounts.update(
        name="uma", administrator=False, active=True, rights=rights, actor=ACTOR
    )
    assert "treasure" in uma.get(urls[1]).content.decode()


@pytest.mark.one_engine
def test_every_action_without_a_confirmation_changes_nothing(
    world: dict[str, object],
) -> None:
    ada = browser("ada", administrator=True)
    before = topics.describe(name="orders", actor=ACTOR)
    ada.post("/topics/orders/expand", {"queues": "2"})
    ada.post("/topics/orders/delete", {"confirm": "orders"})
    ada.post("/groups/billing/stop", {})
    assert topics.describe(name="orders", actor=ACTOR) == before
    assert not groups.describe(name="billing", actor=ACTOR).stopped


@pytest.mark.one_engine
def test_too_many_wrong_passwords_lock_a_name_out(
    world: dict[str, object], uma: Client
) -> None:
    wrong = {"username": "uma", "password": "wrong"}
    answers = [Client().post("/login", wrong).status_code for _ in range(9)]
    assert answers[0] == 200 and answers[-1] == 429
    right = {"username": "uma", "password": "enough characters"}
    assert Client().post("/login", right).status_code == 429
    browser("olga")
    other = {"username": "olga", "password": "enough characters"}
    assert Client().post("/login", other).status_code == 302


@pytest.mark.one_engine
def test_the_last_administrator_stays_one(world: dict[str, object]) -> None:
    ada = browser("ada", administrator=True)
    answer = ada.post("/users/ada", {"active": "on"})
    assert answer.status_code == 409 and "last administrator" in answer.content.decode()
    assert get_user_model().objects.get(username="ada").is_superuser
