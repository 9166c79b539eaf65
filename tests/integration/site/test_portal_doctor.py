"""The doctor's page: who may open it, what it shows of each fault, in both languages."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.utils.translation import override

from messagestore.doctor import advice, checkup, diagnosis, site_checks
from messagestore.doctor.checkup import Check
from messagestore.doctor.findings import (
    Finding,
    Report,
    SubjectKind,
    finding,
    from_preflight,
)
from messagestore.nodes import preflight
from metadata.cache import snapshot
from metadata.models import DbNode
from portal.views.system import doctor
from tests.support.forms import browser, text

pytestmark = pytest.mark.one_engine


@pytest.fixture
def ada(metadata_db: None) -> Client:
    return browser("ada", administrator=True)


def only(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    """Replace the checks of everything but databases."""
    monkeypatch.setattr(site_checks, "list_checks", lambda: list(checks))


def test_it_runs_on_request_only_and_shows_what_to_do(
    ada: Client, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    only(monkeypatch, Check("counted", lambda: ran.append("now") or []))
    page = text(ada.get("/doctor"))
    assert "Examine the installation" in page and "Why it matters" not in page
    assert ran == []

    page = text(ada.post("/doctor"))
    assert ran == ["now"]
    assert "No retry node is registered." in page
    assert "Failed messages cannot be stored for a retry or as dead letters." in page
    assert "manage.py register_node NAME URL --kind failure" in page
    assert "Examine again" in page and "not possible" not in page
    assert text(ada.get("/")).count('href="/doctor"') == 2  # the menu, the verdict


def test_errors_stand_above_warnings(
    ada: Client, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(
        monkeypatch,
        Check("a", lambda: [finding("no_recipient", SubjectKind.ALARM)]),
        Check("b", lambda: [finding("no_broker", SubjectKind.BROKER)]),
    )
    page = text(ada.post("/doctor"))
    assert page.index("No broker is alive.") < page.index("Alarms have no recipients.")


def test_a_check_that_hangs_is_named_and_does_not_block_the_page(
    ada: Client, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    hanging = Check("main: disk", lambda: release.wait(60) and [], limit_s=0.1)
    only(monkeypatch, hanging)
    try:
        page = text(ada.post("/doctor"))
    finally:
        release.set()
    assert "These checks were not possible" in page
    assert "<code>main: disk</code>" in page
    assert "No retry node is registered." in page  # it hides no other finding


def test_a_node_that_was_not_examined_is_named(ada: Client, node: str) -> None:
    DbNode.objects.filter(name="main").update(state="offline")
    snapshot.evict()
    assert "<code>main: all checks</code>" in text(ada.post("/doctor"))


def test_an_object_has_a_link_to_its_page(
    ada: Client, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {"queues": 2, "days": 3.25, "kept": 7}
    late = finding("retention_behind", SubjectKind.TOPIC, "orders", **values)
    only(monkeypatch, Check("a", lambda: [late]))
    page = text(ada.post("/doctor"))
    assert 'href="/topics/orders"' in page
    assert "2 of its queues have messages that are 3.2 days older" in page


def test_who_has_not_all_rights_gets_no_page(metadata_db: None) -> None:
    uma = browser("uma")
    assert uma.get("/doctor").status_code == 403
    assert uma.post("/doctor").status_code == 403
    assert 'href="/doctor"' not in text(uma.get("/"))


def test_a_second_run_beside_the_first_is_refused(ada: Client) -> None:
    with diagnosis._running:
        answer = ada.post("/doctor")
    assert answer.status_code == 503
    assert "The checks are running already." in text(answer)


def test_the_page_is_in_chinese(
    ada: Client, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = finding("old_secret", SubjectKind.KEY, "signing", purpose="signing", days=400)
    only(monkeypatch, Check("a", lambda: [key]))
    ada.cookies["django_language"] = "zh-hans"
    page = text(ada.post("/doctor"))
    assert "没有注册重试节点。" in page and "失败的消息无法存为重试消息或死信。" in page
    assert "该安装的签名密钥已使用 400 天。" in page
    assert "密钥 <code>签名</code>" in page  # no link: it is no API key


def sevens(*texts: str) -> dict[str, Any]:
    """Return a value for each placeholder of texts."""
    names = re.findall(r"%\((\w+)\)", " ".join(texts))
    return {name: "x" if name == "why" else 7 for name in names}


def every_finding() -> Iterator[Any]:
    """Yield a finding of each kind, with a value for each placeholder."""
    for key, kind in advice.ADVICE.items():
        yield Finding(key, SubjectKind.NODE, "main", kind, sevens(*kind[1:]))
    for key, whole in preflight.TEXTS.items():
        if key in ("new_file", "no_directory"):  # of a database that is no node yet
            continue
        bad = preflight.Finding("reachable", "bad", key, sevens(whole))
        yield from from_preflight([bad], kind=SubjectKind.NODE, name="main")


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_each_finding_has_its_three_texts_in_each_language(language: str) -> None:
    with override("en"):
        english = {one.key: doctor.show(one) for one in every_finding()}
    for one in every_finding():
        with override(language):
            shown = doctor.show(one)
        assert shown.cause and shown.why, one.key
        # What a preflight says of a good server has no remedy.
        assert bool(shown.remedy) == bool(english[one.key].remedy), one.key
        if language == "en":
            assert (shown.cause, shown.why) == (one.cause, one.why)
            assert shown.remedy == one.remedy
        elif one.key in advice.ADVICE:
            assert shown.cause != one.cause and shown.remedy != one.remedy, one.key


def test_a_report_says_how_long_it_took() -> None:
    report = Report((), checks=3, seconds=2.345)
    with override("en"):
        context = doctor.build_report_context(report)
        tiles = {str(tile.label): tile for tile in context["tiles"]}
    assert tiles["Duration"].value == "2.3 s"
    assert tiles["Checks"].value == 3
    assert checkup.LIMIT_S + 3.0 < 10  # the limit that the page promises
