"""The audit log as different people see it: administrators all, others what was done to
their own things.
"""

from __future__ import annotations

import pytest

from metadata.actors import Actor, command
from metadata.groups import groups
from metadata.listing import operation_lists
from metadata.listing.pages import ListQuery
from metadata.topics import topic_rows
from metadata.users import accounts, api_keys
from tests.support import rows
from tests.support.forms import browser, text

ME = command("test")


@pytest.fixture
def world(metadata_db: None) -> None:
    """Something of everything was done."""
    rows.node("n1", username="nodeaccount")
    rows.topic("orders")
    rows.topic("other")
    for name in ("billing", "shipping"):
        groups.create(name=name, actor=ME)
    rows.subscribe("billing", "other")
    rows.subscribe("shipping", "orders")
    topic_rows.update(name="other", settings={"alarm_emails": "boss@example.org"}, actor=ME)
    api_keys.create(name="till", rights={"produce": ["secretive-*"]}, actor=ME)
    accounts.create(name="olga", password="enough characters", actor=ME)
    accounts.create(
        name="mia", password="enough characters", rights={"manage": ["oth*"]}, actor=ME
    )
    topic_rows.update(name="orders", settings={"owners": "olga"}, actor=ME)
    groups.update(name="billing", settings={"owners": "olga"}, actor=ME)


def seen(
    name: str, *, administrator: bool = False, about: str = ""
) -> set[tuple[str, str]]:
    """(kind, name) of all that somebody sees."""
    actor = accounts.user_actor(name=name, administrator=administrator, address="")
    found = operation_lists.audit(query=ListQuery(), actor=actor, name=about)
    return {(one.kind, one.name) for one in found.items}


def test_everybody_sees_what_is_theirs_and_administrators_everything(world: None) -> None:
    kinds = {kind for kind, _ in seen("ada", administrator=True)}
    assert kinds >= {"topic", "group", "subscription", "key", "user", "node"}
    assert seen("olga") == {
        ("topic", "orders"),
        ("group", "billing"),
        ("subscription", "billing/other"),
    }
    assert seen("mia") == {("topic", "other")}
    assert seen("olga", about="other") == {("subscription", "billing/other")}
    assert seen("nobody") == set()


def test_the_page_tells_strangers_no_rights_addresses_and_accounts(world: None) -> None:
    page = text(browser("stranger").get("/audit"))
    for secret in ("secretive", "nodeaccount", "boss@example.org", "till"):
        assert secret not in page
    assert "topics and groups that you manage" in page


def test_keys_look_at_no_audit_log(world: None) -> None:
    with pytest.raises(Exception, match="may not see"):
        operation_lists.audit(query=ListQuery(), actor=Actor(kind="key", name="k"))
