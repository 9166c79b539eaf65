"""Mails of alarms by a real SMTP server: one when it begins, one when it ends, never a
storm.

Never twice either, unless nobody noted that it went; then the second has the Message-ID of
the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from email import message_from_bytes
from email.header import decode_header, make_header
from io import StringIO
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from django.core.management import CommandError, call_command
from django.test import override_settings
from msgspec import structs

from catmq_site.background import alarm_mails, table
from catmq_site.management.commands import send_test_mail
from metadata.brokers import discovery
from metadata.config import config
from metadata.db.clock import database_now
from metadata.groups import groups
from metadata.models import AlarmMail
from metadata.monitoring import alarms, mails
from metadata.rules.alarm_texts import alarm_text
from metadata.topics import topic_rows
from tests.support import failing
from tests.support.environment import free_port
from tests.support.failing import ME


class Box:
    """The mailboxes of all addresses: [(address, subject, text)]; refuses what its table
    says.
    """

    def __init__(self) -> None:
        self.mails: list[tuple[str, str, str]] = []
        self.ids: list[str] = []  # the Message-ID of each
        self.hangs_up = False  # when it has a mail, before it says so
        self.refuses: dict[str, str] = {}

    async def handle_RCPT(self, *given: Any) -> str:
        """Whether it knows the address."""
        _server, _session, envelope, address, _options = given
        if address in self.refuses:
            return self.refuses[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        """Takes a mail."""
        mail = message_from_bytes(envelope.content)
        text = mail.get_payload(decode=True).decode()
        self.mails += [(to, str(mail["Subject"]), text) for to in envelope.rcpt_tos]
        self.ids.append(str(mail["Message-ID"]))
        if self.hangs_up:
            server.transport.abort()
        return "250 OK"

    def subjects(self) -> list[tuple[str, str]]:
        """What has come, and empties the boxes."""
        found = [(to, subject) for to, subject, _text in self.mails]
        self.mails.clear()
        return found


@pytest.fixture
def port() -> int:
    """Where the mail server listens."""
    return free_port()


@pytest.fixture
def box(metadata_db: None, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """A mail server, and an installation that sends by it and tells ops@x.org of
    everything.
    """
    made = Box()
    server = Controller(made, hostname="127.0.0.1", port=port)
    told = replace(config, smtp_url=f"smtp://127.0.0.1:{port}", alarm_emails=("ops@x.org",))
    for module in (alarm_mails, mails, send_test_mail):
        monkeypatch.setattr(module, "config", told)
    server.start()
    backend = "django.core.mail.backends.smtp.EmailBackend"
    with override_settings(EMAIL_BACKEND=backend, EMAIL_HOST="127.0.0.1", EMAIL_PORT=port):
        yield made
    if server.server is not None:
        server.stop()


@pytest.fixture
def groups_there(box: Box, make_node: Callable[..., str]) -> None:
    """Group billing and topic orders, with addresses of their own."""
    make_node("main")
    failing.billing()
    groups.update(
        name="billing", settings={"alarm_emails": "bill@x.org, ops@x.org"}, actor=ME
    )
    topic_rows.update(name="orders", settings={"alarm_emails": "sales@x.org"}, actor=ME)


def later(seconds: float = 301) -> None:
    """As if what was sent had been sent so much earlier."""
    for row in AlarmMail.objects.filter(sent_at__isnull=False):
        AlarmMail.objects.filter(pk=row.pk).update(
            sent_at=row.sent_at - timedelta(seconds=seconds)
        )


def lag(name: str = "billing/orders") -> None:
    alarms.raise_alarm(kind="lag", name=name, detail="7 unread messages")


def failing_with(error: BaseException) -> Callable[..., None]:
    """Something that cannot be done."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.one_engine
def test_owners_and_the_installation_hear_when_an_alarm_begins_and_when_it_ends(
    groups_there: None, box: Box
) -> None:
    lag()
    assert alarm_mails.send_due_mails() == 3
    (to, subject, text), *others = sorted(box.mails)
    assert (to, subject) == (
        "bill@x.org",
        "[CatMQ] Alarm: group is far behind: billing/orders",
    )
    assert "7 unread messages" in text and "Since 20" in text and "/alarms" in text
    assert [one[0] for one in others] == ["ops@x.org", "sales@x.org"]
    box.mails.clear()
    assert alarm_mails.send_due_mails() == 0  # once
    alarms.end_alarms(kind="lag", names=["billing/orders"])
    assert alarm_mails.send_due_mails() == 0  # they had mail just now
    later()
    assert alarm_mails.send_due_mails() == 3
    assert {subject for _to, subject in box.subjects()} == {
        "[CatMQ] Over: group is far behind: billing/orders"
    }
    lag()
    later()
    assert alarm_mails.send_due_mails() == 3  # it is another time


@pytest.mark.one_engine
def test_what_ended_before_anybody_heard_of_it_is_not_mailed(box: Box) -> None:
    lag()
    alarms.end_alarms(kind="lag", names=["billing/orders"])
    assert (alarm_mails.send_due_mails(), box.mails) == (0, [])


@pytest.mark.one_engine
def test_mails_are_in_the_language_of_the_installation(
    groups_there: None, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        alarm_mails, "config", replace(alarm_mails.config, language="zh-hans")
    )
    detail = alarm_text("idle", queues="orders/0, orders/1")
    alarms.raise_alarm(kind="no_consumer", name="billing/orders", detail=detail)
    assert alarm_mails.send_due_mails() == 3
    _to, subject, said = box.mails[0]
    assert (
        str(make_header(decode_header(subject)))
        == "[CatMQ] 告警：队列没有消费者: billing/orders"  # noqa: RUF001
    )
    assert "以下队列有未读消息但没有消费者：orders/0, orders/1\r\n开始于 20" in said  # noqa: RUF001


@pytest.mark.one_engine
def test_a_storm_is_one_mail_and_flapping_another_one_five_minutes_later(box: Box) -> None:
    for number in range(60):
        lag(f"g{number}/orders")
    assert alarm_mails.send_due_mails() == 1
    ((to, subject, text),) = box.mails
    assert (to, subject) == ("ops@x.org", "[CatMQ] 60 alarms began, 0 ended")
    assert text.count("Alarm: group is far behind") == 50 and "and 10 more." in text
    for _ in range(5):
        alarms.end_alarms(kind="lag", names=[f"g{number}/orders" for number in range(60)])
        alarm_mails.send_due_mails()
        for number in range(60):
            lag(f"g{number}/orders")
        alarm_mails.send_due_mails()
    assert len(box.mails) == 1
    later()
    assert alarm_mails.send_due_mails() == 1


@pytest.mark.one_engine
def test_a_mail_server_that_is_away_costs_the_job_nothing_and_gets_the_mail_later(
    box: Box, port: int
) -> None:
    lag()
    with override_settings(EMAIL_PORT=free_port()):
        table.check_health()
        table.check_health()
    row = AlarmMail.objects.get()
    assert (row.tries, row.sent_at) == (2, None) and "refused" in row.error
    assert "refused" in mails.read_mail_state().error
    assert alarm_mails.send_due_mails() == 1 and len(box.mails) == 1
    assert mails.read_mail_state().waiting == 0


@pytest.mark.one_engine
def test_a_mail_that_could_not_be_sent_for_a_day_is_given_up(box: Box) -> None:
    lag()
    with override_settings(EMAIL_PORT=free_port()):
        alarm_mails.send_due_mails()
    AlarmMail.objects.update(made_at=database_now() - timedelta(hours=25))
    assert (alarm_mails.send_due_mails(), AlarmMail.objects.count(), box.mails) == (
        0,
        0,
        [],
    )


@pytest.mark.one_engine
def test_an_address_that_is_refused_does_not_keep_others_from_their_mail(
    groups_there: None, box: Box
) -> None:
    box.refuses = {"bill@x.org": "550 nobody here", "sales@x.org": "450 come again"}
    lag()
    assert alarm_mails.send_due_mails() == 1
    assert [to for to, _subject in box.subjects()] == ["ops@x.org"]
    box.refuses = {}
    assert alarm_mails.send_due_mails() == 1
    assert [to for to, _subject in box.subjects()] == ["sales@x.org"]
    alarms.end_alarms(kind="lag", names=["billing/orders"])
    later()
    assert alarm_mails.send_due_mails() == 2  # the refused one heard of nothing


@pytest.mark.one_engine
def test_a_mail_whose_sender_dies_before_it_notes_so_comes_again_with_the_same_id(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    lag()
    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr(mails, "mark_sent", failing_with(KeyboardInterrupt()))
        alarm_mails.send_due_mails()
    assert alarm_mails.send_due_mails() == 1
    first, second = box.mails
    assert first == second
    assert box.ids[0] == box.ids[1] and box.ids[0].endswith(
        f"@{config.mail_from.partition('@')[2]}>"
    )
    assert alarm_mails.send_due_mails() == 0
    alarms.end_alarms(kind="lag", names=["billing/orders"])
    later()
    assert alarm_mails.send_due_mails() == 1
    assert box.ids[2] != box.ids[0], "another row"


@pytest.mark.one_engine
def test_a_list_that_the_server_took_without_saying_so_comes_again_with_the_same_id(
    box: Box,
) -> None:
    for number in range(7):
        lag(f"g{number}/orders")
    box.hangs_up = True
    assert alarm_mails.send_due_mails() == 0
    box.hangs_up = False
    assert alarm_mails.send_due_mails() == 1
    assert box.mails[0] == box.mails[1] and len(box.mails) == 2
    assert len(set(box.ids)) == 1
    AlarmMail.objects.update(sent_at=None, made_at=database_now() + timedelta(seconds=1))
    alarm_mails.send_due_mails()
    assert len(set(box.ids)) == 2, "rows of the same numbers in another database"


def test_two_jobs_at_once_send_one_mail(
    box: Box, in_threads: Callable[..., list[Any]]
) -> None:
    lag()
    in_threads([alarm_mails.send_due_mails] * 4)
    assert len(box.mails) == 1


@pytest.mark.one_engine
def test_without_a_mail_server_nothing_is_written_and_it_is_told_once_there_is_one(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(alarm_mails, "config", replace(config, smtp_url=""))
        lag()
        assert (alarm_mails.send_due_mails(), AlarmMail.objects.count()) == (0, 0)
    assert alarm_mails.send_due_mails() == 1


@pytest.mark.one_engine
def test_the_command_sends_a_test_mail_or_says_why_not(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = StringIO()
    call_command("send_test_mail", "you@x.org", stdout=out)
    assert out.getvalue() == "Sent to you@x.org. Check that it arrives.\n"
    call_command("send_test_mail", stdout=out)
    assert [to for to, _subject in box.subjects()] == ["you@x.org", "ops@x.org"]
    with pytest.raises(CommandError, match="'you' is not an e-mail address"):
        call_command("send_test_mail", "you")
    with (
        override_settings(EMAIL_PORT=free_port()),
        pytest.raises(CommandError, match="refused") as caught,
    ):
        call_command("send_test_mail", "you@x.org")
    assert caught.value.returncode == 3
    monkeypatch.setattr(send_test_mail, "config", config)
    with pytest.raises(CommandError, match="CATMQ_SMTP_URL"):
        call_command("send_test_mail", "you@x.org")


def test_a_mail_of_a_command_links_to_a_broker_that_lives(
    metadata_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = discovery.BrokerView(
        "b1", "http://mq.example:8100", "in", True, "0.1.0", 0, 0, None
    )
    monkeypatch.setattr(
        discovery._memory,
        "views",
        (structs.replace(lives, alive=False, url="http://gone"), lives),
    )
    assert alarm_mails._footer().endswith("http://mq.example:8100/alarms")
    monkeypatch.setattr(discovery._memory, "views", ())
    assert alarm_mails._footer().endswith(f"{config.broker_url}/alarms")


@pytest.mark.one_engine
def test_a_mail_links_to_the_portal_below_its_path_prefix(
    metadata_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("https://tools.example", "https://tools.example/catmq"):
        behind_proxy = replace(
            config, process="broker", path_prefix="/catmq", broker_url=url
        )
        monkeypatch.setattr(alarm_mails, "config", behind_proxy)
        assert alarm_mails._footer().endswith(" https://tools.example/catmq/alarms")
