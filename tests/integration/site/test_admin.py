"""The admin: behind login, everything listed, nothing to change, no secret shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.test import Client, RequestFactory
from django.urls import NoReverseMatch, reverse
from django.utils import translation

from messagestore.topology import subscriptions, topics
from metadata import actors
from metadata.groups import groups
from metadata.membership import rebalance
from metadata.models import ApiKey, DbNode, Queue, Rebalance, RebalanceMove
from metadata.users import api_keys

ACTOR = actors.command("test")
MODELS = [model._meta.model_name for model in apps.get_app_config("metadata").get_models()]


@pytest.fixture
def browser(make_node: Callable[..., str]) -> Client:
    """An administrator's browser, with one of everything to see."""
    make_node("main")
    topics.create(name="orders", queues=1, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    rebalance.rebalance_by_hand(group="billing", actor=ACTOR)
    api_keys.create(name="shop", rights={"produce": ["*"]}, actor=ACTOR)
    user = get_user_model().objects.create_superuser("ada", password="enough characters")
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.one_engine
def test_a_stranger_is_sent_to_the_login(metadata_db: None) -> None:
    answer = Client().get(reverse("admin:index"))
    assert (answer.status_code, "/admin/login/" in answer["Location"]) == (302, True)


@pytest.mark.one_engine
def test_who_is_no_superuser_sees_neither_the_data_nor_a_link_to_it(
    browser: Client,
) -> None:
    assert 'class="side"' in browser.get(reverse("admin:index")).content.decode()
    assert reverse("admin:index") in browser.get("/").content.decode()
    get_user_model().objects.update(is_superuser=False, is_staff=True)
    assert browser.get(reverse("admin:index")).status_code == 302
    assert f'"{reverse("admin:index")}"' not in browser.get("/").content.decode()


@pytest.mark.one_engine
def test_every_name_on_the_front_page_has_a_chinese_one(browser: Client) -> None:
    request = RequestFactory().get("/")
    request.user = get_user_model().objects.get()

    def names(language: str) -> list[str]:
        with translation.override(language):
            apps = admin.site.get_app_list(request)
        return [one["name"] for app in apps for one in (app, *app["models"])]

    both = zip(names("en"), names("zh-hans"), strict=True)
    assert [english for english, chinese in both if english == chinese] == []


@pytest.mark.one_engine
def test_states_are_chinese_in_lists_and_in_their_filters(browser: Client) -> None:
    page = browser.get(
        reverse("admin:metadata_queue_changelist"), headers={"accept-language": "zh-CN"}
    )
    assert (
        page.content.decode().count("可读写") >= 2
        and "Read Write" not in page.content.decode()
    )


def test_every_list_is_shown_and_searched(browser: Client) -> None:
    for model in MODELS:
        page = browser.get(reverse(f"admin:metadata_{model}_changelist"), {"q": "1"})
        assert page.status_code == 200, model


def test_every_row_is_shown_and_cannot_be_changed(browser: Client) -> None:
    for model in apps.get_app_config("metadata").get_models():
        for row in model._default_manager.all():
            page = reverse(f"admin:metadata_{model._meta.model_name}_change", args=[row.pk])
            assert browser.get(page).status_code == 200
            assert browser.post(page, {}).status_code == 403
        assert (
            browser.get(reverse(f"admin:metadata_{model._meta.model_name}_add")).status_code
            == 403
        )


@pytest.mark.one_engine
def test_no_secret_reaches_the_browser(browser: Client) -> None:
    key, node = ApiKey.objects.get(), DbNode.objects.get()
    pages = [
        browser.get(reverse("admin:metadata_apikey_change", args=[key.pk])),
        browser.get(reverse("admin:metadata_dbnode_change", args=[node.pk])),
        browser.get(reverse("admin:metadata_apikey_changelist")),
    ]
    text = "".join(page.content.decode() for page in pages)
    assert key.name in text
    assert key.digest not in text
    assert not node.password_encrypted or node.password_encrypted not in text


@pytest.mark.one_engine
def test_schedules_can_be_seen_but_not_made(browser: Client) -> None:
    assert browser.get(reverse("admin:django_q_schedule_changelist")).status_code == 200
    assert browser.get(reverse("admin:django_q_schedule_add")).status_code == 403


@pytest.mark.one_engine
def test_accounts_can_be_seen_but_are_changed_only_where_the_audit_log_hears_of_it(
    browser: Client,
) -> None:
    ada = get_user_model().objects.get()
    page = reverse("admin:auth_user_change", args=[ada.pk])
    shown = browser.get(page)
    assert shown.status_code == 200 and "ada" in shown.content.decode()
    assert (
        ada.password not in shown.content.decode()
        and "pbkdf2" not in shown.content.decode()
    )
    for url in (
        page,
        reverse("admin:auth_user_delete", args=[ada.pk]),
        reverse("admin:auth_user_add"),
    ):
        assert browser.post(url, {"post": "yes", "username": "eve"}).status_code == 403, url
    with pytest.raises(NoReverseMatch):
        reverse("admin:auth_user_password_change", args=[ada.pk])
    assert get_user_model().objects.get() == ada


@pytest.mark.one_engine
def test_a_rebalance_shows_its_moves_and_the_longest_pause(browser: Client) -> None:
    row = Rebalance.objects.get()
    queue = Queue.objects.get()
    RebalanceMove.objects.create(
        rebalance=row, queue=queue, from_member="ann", to_member="bob", pause_ms=1234
    )
    listed = browser.get(
        reverse("admin:metadata_rebalance_changelist"), headers={"accept-language": "zh-CN"}
    )
    shown = browser.get(reverse("admin:metadata_rebalance_change", args=[row.pk]))
    assert "最长停顿" in listed.content.decode() and "1234" in listed.content.decode()
    assert all(
        text in shown.content.decode()
        for text in ("ann", "bob", "1234", "asked for by command test")
    )
