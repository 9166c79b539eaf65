"""Mails of alarms go to the domains that are named, where addresses are typed and where
mails are written.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.core.management import CommandError, call_command

from catmq_site.management.commands import send_test_mail
from metadata.actors import command
from metadata.config import ConfigError, config, load
from metadata.errors import Invalid
from metadata.groups import groups
from metadata.models import AlarmMail
from metadata.monitoring import alarms, mails
from metadata.topics import topic_rows
from tests.support import rows

pytestmark = pytest.mark.one_engine

ME = command("test")
NARROW = replace(config, mail_domains=("example.org",), smtp_url="smtp://127.0.0.1:1")


@pytest.fixture
def narrow(metadata_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topic `orders` and group `billing` tell strangers; then mails may go to one domain
    only.
    """
    rows.world()
    for verb, name in ((topic_rows.update, "orders"), (groups.update, "billing")):
        verb(
            name=name,
            settings={"alarm_emails": "ops@example.org, spy@evil.example"},
            actor=ME,
        )
    monkeypatch.setattr("metadata.monitoring.mail_domains.config", NARROW)
    monkeypatch.setattr("metadata.monitoring.mails.config", NARROW)


@pytest.mark.parametrize(
    "address", ["spy@evil.example", "ops@sub.example.org", "ops@example.org.evil.example"]
)
def test_an_address_elsewhere_is_refused_where_it_is_typed(
    narrow: None, address: str
) -> None:
    given = {"alarm_emails": f"OPS@Example.ORG, {address}"}
    calls = (
        lambda: topic_rows.update(name="orders", settings=given, actor=ME),
        lambda: groups.update(name="billing", settings=given, actor=ME),
        lambda: topic_rows.plan_topic(name="new", queues=1, settings=given, actor=ME),
        lambda: groups.create(name="new", settings=given, actor=ME),
    )
    for call in calls:
        with pytest.raises(Invalid, match=f"{address} is not in example.org"):
            call()
    topic_rows.update(name="orders", settings={"alarm_emails": "OPS@Example.ORG"}, actor=ME)


def test_what_was_typed_before_is_not_mailed_to(
    narrow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms.raise_alarm(kind="lag", name="billing/orders", detail="far behind")
    monkeypatch.setattr("metadata.monitoring.mails.config", config)
    mails.write_notifications()  # by a process that did not know the setting yet
    assert AlarmMail.objects.count() == 2
    monkeypatch.setattr("metadata.monitoring.mails.config", NARROW)
    assert list(mails.pending_notifications()) == ["ops@example.org"]
    AlarmMail.objects.all().delete()
    alarms.raise_alarm(kind="no_consumer", name="billing/orders", detail="nobody reads")
    mails.write_notifications()
    assert set(AlarmMail.objects.values_list("address", flat=True)) == {"ops@example.org"}


def test_a_test_mail_goes_nowhere_else(
    narrow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_test_mail, "config", NARROW)
    with pytest.raises(CommandError, match="CATMQ_MAIL_DOMAINS"):
        call_command("send_test_mail", "spy@evil.example")


def test_settings_that_contradict_each_other_are_refused_at_start() -> None:
    given = {"CATMQ_DATA_DIR": str(config.data_dir)}
    with pytest.raises(ConfigError, match="is in none of CATMQ_MAIL_DOMAINS"):
        load(
            {
                **given,
                "CATMQ_ALARM_EMAILS": "a@x.example",
                "CATMQ_MAIL_DOMAINS": "example.org",
            }
        )
    with pytest.raises(ConfigError, match="is not a domain"):
        load({**given, "CATMQ_MAIL_DOMAINS": "@example.org"})
