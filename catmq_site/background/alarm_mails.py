"""Sends the mails of alarms: one for each, or one for many at once; what cannot be sent
waits for a next run.

A mail server that does not answer ends the pass and nothing else: what waits stays written
down for a day. An address gets mails every five minutes at most, so a storm of alarms is
one mail with a list. A mail that is sent again because nobody noted that it went has the
same Message-ID.
"""

from __future__ import annotations

import hashlib
import logging
import smtplib
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from django.core.mail import EmailMessage, get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, override

from metadata.actors import command
from metadata.brokers import discovery
from metadata.config import config
from metadata.db import leases
from metadata.errors import MetadataUnavailable, Unavailable
from metadata.monitoring import mails
from metadata.monitoring.mails import AlarmNotice
from metadata.rules.alarm_texts import translate_detail
from metadata.rules.path_prefix import url_with_prefix

log = logging.getLogger(__name__)
SINGLE = 3  # more than so many for one address go in one mail
LISTED = 50  # alarms that such a mail names; it counts the others
PASS_S = 60.0
WORDS = {
    "unread_dropped": gettext_lazy("messages were dropped unread"),
    "node_low": gettext_lazy("node nearly full"),
    "node_full": gettext_lazy("node full, it stores nothing"),
    "node_filling": gettext_lazy("node will be full soon"),
    "node_away": gettext_lazy("node does not answer"),
    "not_cleaned": gettext_lazy("queue could not be cleaned"),
    "lag": gettext_lazy("group is far behind"),
    "no_consumer": gettext_lazy("queues without a consumer"),
    "dead_growing": gettext_lazy("messages die"),
    "job_failed": gettext_lazy("job failed"),
    "corrupt": gettext_lazy("queue is corrupt"),
    "inconsistent": gettext_lazy("metadata and nodes disagree"),
}


def tell() -> int:
    """Write and send the mails that are due; how many were sent. Without a mail server none
    is written.
    """
    if not config.smtp_url:
        return 0
    mails.write_notifications()
    holder = str(uuid.uuid4())
    if not leases.acquire(name="alarm_mails", holder=holder, ttl_s=4 * PASS_S):
        return 0  # another process sends them
    try:
        return _send(time.monotonic() + PASS_S)
    finally:
        leases.release(name="alarm_mails", holder=holder)


def _send(ends_at: float) -> int:
    due = mails.pending_notifications()
    if not due:
        return 0
    backend, done = get_connection(), 0
    try:
        backend.open()
        for address, notices in due.items():
            if time.monotonic() > ends_at:
                break
            for some in _parcels(notices):
                done += _one(backend, address, some)
    except (OSError, smtplib.SMTPException) as error:
        waiting = [one.id for notices in due.values() for one in notices]
        mails.mark_failed(waiting, why=f"{type(error).__name__}: {error}")
        log.warning(
            "Alarm mails could not be sent, will retry (%d waiting): %s",
            len(waiting),
            error,
        )
    finally:
        backend.close()
    return done


def _parcels(notices: Sequence[AlarmNotice]) -> list[Sequence[AlarmNotice]]:
    return [[one] for one in notices] if len(notices) <= SINGLE else [notices]


def _one(backend: BaseEmailBackend, address: str, notices: Sequence[AlarmNotice]) -> bool:
    """Send one mail; whether the server took it. Raises OSError and SMTPException where it
    is gone.
    """
    ids = [one.id for one in notices]
    subject, body = written(notices)
    try:
        EmailMessage(
            subject,
            body,
            config.mail_from,
            [address],
            connection=backend,
            headers={"Message-ID": _id(notices)},
        ).send()
    except smtplib.SMTPRecipientsRefused as error:
        code, reason = next(iter(error.recipients.values()))
        (mails.mark_refused if code >= 500 else mails.mark_failed)(
            ids, why=f"{code} {reason!r}"
        )
        log.error("The mail server refused recipient %s: %s %r", address, code, reason)
        return False
    except (smtplib.SMTPDataError, smtplib.SMTPSenderRefused) as error:
        mails.mark_failed(ids, why=str(error))
        log.error("The mail server refused a mail to %s: %s", address, error)
        return False
    mails.mark_sent(ids)
    return True


def _id(notices: Sequence[AlarmNotice]) -> str:
    """The Message-ID of a mail about some rows, the same whenever and by whatever process
    it is sent.

    A row's number may come again in a metadata database that is made anew, but not made at
    the same time.
    """
    rows = ",".join(f"{one.id}:{one.made_at_ms}" for one in notices)
    digest = hashlib.sha256(rows.encode()).hexdigest()[:32]
    return f"<alarm-{notices[0].id}-{digest}@{config.mail_from.rpartition('@')[2]}>"


def written(notices: Sequence[AlarmNotice]) -> tuple[str, str]:
    """Return subject and text of a mail, in the language of the installation."""
    with override(config.language):
        return _written(notices)


def _written(notices: Sequence[AlarmNotice]) -> tuple[str, str]:
    if len(notices) == 1:
        return f"[CatMQ] {_headline(notices[0])}", f"{_paragraph(notices[0])}\n\n{_foot()}"
    began = sum(one.ended_at_ms is None for one in notices)
    counts = {"began": began, "ended": len(notices) - began}
    subject = "[CatMQ] " + _("%(began)d alarms began, %(ended)d ended") % counts
    shown = "\n\n".join(f"{_headline(one)}\n{_paragraph(one)}" for one in notices[:LISTED])
    more = (
        "\n\n" + _("and %d more.") % (len(notices) - LISTED)
        if len(notices) > LISTED
        else ""
    )
    return subject, f"{shown}{more}\n\n{_foot()}"


def _headline(one: AlarmNotice) -> str:
    text = _("Alarm: %s") if one.ended_at_ms is None else _("Over: %s")
    return text % f"{WORDS.get(one.kind, one.kind)}{f': {one.name}' if one.name else ''}"


def _paragraph(one: AlarmNotice) -> str:
    if one.ended_at_ms is None:
        when = _("Since %s") % _time(one.since_ms)
    else:
        when = _("From %(since)s to %(until)s") % {
            "since": _time(one.since_ms),
            "until": _time(one.ended_at_ms),
        }
    return f"{translate_detail(one.facts, one.detail, _)}\n{when}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _foot() -> str:
    return (
        _("All alarms: %s") % f"{url_with_prefix(_portal_url(), config.path_prefix)}/alarms"
    )


def _portal_url() -> str:
    """Return the URL of a broker for people.

    A command does not know at which port its server was started, so it takes the URL of a
    broker that lives.
    """
    if config.process != "command":
        return config.broker_url
    with suppress(MetadataUnavailable):
        urls = [
            broker.url
            for broker in discovery.list_brokers(actor=command("mails"))
            if broker.alive
        ]
        return config.broker_url if config.broker_url in urls or not urls else urls[0]
    return config.broker_url


def send_test(address: str) -> None:
    """Send a mail that only shows that mails arrive. Raises Unavailable with the reason."""
    with override(config.language):
        text = (
            f"{_('This mail shows that alarms of CatMQ reach %s.') % address}\n\n{_foot()}"
        )
        subject = f"[CatMQ] {_('Test mail')}"
    try:
        EmailMessage(subject, text, config.mail_from, [address]).send()
    except (OSError, smtplib.SMTPException) as error:
        raise Unavailable(
            f"The mail server refused the mail: {error}", retry_after_ms=1000
        ) from error
