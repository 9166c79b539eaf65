"""Sends e-mails about alarms: a mail per notice, or a combined mail if there are many.

If the mail server does not answer, only this pass ends; pending notices are kept for a day.
An address gets mails at most every five minutes, so a storm of alarms is a single mail with
a list. A mail that is sent again, because a process died before it recorded it as sent, has
the same Message-ID.
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
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, override

from metadata.actors import command
from metadata.brokers import discovery
from metadata.config import config
from metadata.db import leases
from metadata.errors import MetadataUnavailable, Unavailable
from metadata.monitoring import mails
from metadata.monitoring.mails import AlarmNotice
from metadata.rules.alarm_rules import AlarmEvent, AlarmKind
from metadata.rules.alarm_texts import translate_detail
from metadata.rules.path_prefix import url_with_prefix

log = logging.getLogger(__name__)
MAX_SINGLE_MAILS = 3  # more notices for an address are combined into a single mail
MAX_LISTED_ALARMS = 50  # alarms that a combined mail names; it counts the others
MAX_PASS_S = 60.0
KIND_TEXTS: dict[str, str | Promise] = {
    AlarmKind.UNREAD_DROPPED: gettext_lazy("messages were dropped unread"),
    AlarmKind.NODE_LOW: gettext_lazy("node nearly full"),
    AlarmKind.NODE_FULL: gettext_lazy("node full, it stores nothing"),
    AlarmKind.NODE_FILLING: gettext_lazy("node will be full soon"),
    AlarmKind.NODE_AWAY: gettext_lazy("node does not answer"),
    AlarmKind.NODE_MOVED: gettext_lazy("node is written on another server"),
    AlarmKind.NODE_COPIES: gettext_lazy("messages of a node are on too few servers"),
    AlarmKind.METADATA_MOVED: gettext_lazy("metadata is written on another server"),
    AlarmKind.NOT_CLEANED: gettext_lazy("queue could not be cleaned"),
    AlarmKind.LAG: gettext_lazy("group is far behind"),
    AlarmKind.NO_CONSUMER: gettext_lazy("queues without a consumer"),
    AlarmKind.DEAD_GROWING: gettext_lazy("messages die"),
    AlarmKind.JOB_FAILED: gettext_lazy("job failed"),
    AlarmKind.CORRUPT: gettext_lazy("queue is corrupt"),
    AlarmKind.INCONSISTENT: gettext_lazy("metadata and nodes disagree"),
}


def send_due_mails() -> int:
    """Write pending notices, and send the mails that are due. Return how many were sent.
    Without a mail server, nothing is written.
    """
    if not config.smtp_url:
        return 0
    mails.write_notifications()
    holder = str(uuid.uuid4())
    # The lease outlives the longest pass, so no two processes send the same mails.
    if not leases.acquire(name="alarm_mails", holder=holder, ttl_s=4 * MAX_PASS_S):
        return 0  # another process sends them
    try:
        return _send_due(time.monotonic() + MAX_PASS_S)
    finally:
        leases.release(name="alarm_mails", holder=holder)


def _send_due(ends_at: float) -> int:
    notices_of_address = mails.pending_notifications()
    if not notices_of_address:
        return 0
    backend, sent_count = get_connection(), 0
    try:
        backend.open()
        for address, notices in notices_of_address.items():
            if time.monotonic() > ends_at:
                break
            is_combined = len(notices) > MAX_SINGLE_MAILS
            for mail_notices in [notices] if is_combined else [[n] for n in notices]:
                sent_count += _send_mail(backend, address, mail_notices)
    except (OSError, smtplib.SMTPException) as error:
        notice_ids = [
            notice.id for notices in notices_of_address.values() for notice in notices
        ]
        mails.mark_failed(notice_ids, why=f"{type(error).__name__}: {error}")
        log.warning(
            "Alarm mails could not be sent, will retry (%d waiting): %s",
            len(notice_ids),
            error,
        )
    finally:
        backend.close()
    return sent_count


def _send_mail(
    backend: BaseEmailBackend, address: str, notices: Sequence[AlarmNotice]
) -> bool:
    """Send a mail. Return True if the server accepted it. Raises OSError or SMTPException
    if the server cannot be used.
    """
    ids = [notice.id for notice in notices]
    # Every process computes the same Message-ID. A new metadata database may give the same
    # ids again, but not with the same times.
    rows = ",".join(f"{notice.id}:{notice.made_at_ms}" for notice in notices)
    digest = hashlib.sha256(rows.encode()).hexdigest()[:32]
    domain = config.mail_from.rpartition("@")[2]
    message_id = f"<alarm-{notices[0].id}-{digest}@{domain}>"
    subject, body = compose_mail(notices)
    try:
        EmailMessage(
            subject,
            body,
            config.mail_from,
            [address],
            connection=backend,
            headers={"Message-ID": message_id},
        ).send()
    except smtplib.SMTPRecipientsRefused as error:
        code, reason = next(iter(error.recipients.values()))
        # 5xx is permanent: the mail is not tried again. 4xx is.
        (mails.mark_refused if code >= 500 else mails.mark_failed)(
            ids, why=f"{code} {reason!r}"
        )
        log.error("The mail server refused recipient %s: %s %r", address, code, reason)
        return False
    except (smtplib.SMTPDataError, smtplib.SMTPSenderRefused) as error:
        mails.mark_failed(ids, why=str(error))
        log.error("The mail server refused a mail to %s: %s", address, error)
        return False
    # If the process dies before this line, the mail is sent again with the same Message-ID.
    mails.mark_sent(ids)
    return True


def compose_mail(notices: Sequence[AlarmNotice]) -> tuple[str, str]:
    """Return subject and text of a mail, in the language of the installation."""
    with override(config.language):
        if len(notices) == 1:
            return (
                f"[CatMQ] {_headline(notices[0])}",
                f"{_paragraph(notices[0])}\n\n{_footer()}",
            )
        began_count = sum(notice.ended_at_ms is None for notice in notices)
        counts = {
            AlarmEvent.BEGAN: began_count,
            AlarmEvent.ENDED: len(notices) - began_count,
        }
        subject = "[CatMQ] " + _("%(began)d alarms began, %(ended)d ended") % counts
        entries = [f"{_headline(n)}\n{_paragraph(n)}" for n in notices[:MAX_LISTED_ALARMS]]
        if len(notices) > MAX_LISTED_ALARMS:
            entries.append(_("and %d more.") % (len(notices) - MAX_LISTED_ALARMS))
        return subject, "\n\n".join([*entries, _footer()])


def _headline(notice: AlarmNotice) -> str:
    text = _("Alarm: %s") if notice.ended_at_ms is None else _("Over: %s")
    return (
        text
        % f"{KIND_TEXTS.get(notice.kind, notice.kind)}{f': {notice.name}' if notice.name else ''}"
    )


def _paragraph(notice: AlarmNotice) -> str:
    if notice.ended_at_ms is None:
        period = _("Since %s") % _format_time(notice.since_ms)
    else:
        period = _("From %(since)s to %(until)s") % {
            "since": _format_time(notice.since_ms),
            "until": _format_time(notice.ended_at_ms),
        }
    return f"{translate_detail(notice.facts, notice.detail, _)}\n{period}"


def _format_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _footer() -> str:
    url = config.broker_url
    # A command does not know the port of its server, so it uses the URL of a live broker.
    if config.process == "command":
        with suppress(MetadataUnavailable):
            brokers = discovery.list_brokers(actor=command("mails"))
            live_urls = [broker.url for broker in brokers if broker.alive]
            if live_urls and url not in live_urls:
                url = live_urls[0]
    return _("All alarms: %s") % f"{url_with_prefix(url, config.path_prefix)}/alarms"


def send_test_mail(address: str) -> None:
    """Send a mail that shows that mails arrive. Raises Unavailable with the server's
    reason.
    """
    with override(config.language):
        text = f"{_('This mail shows that alarms of CatMQ reach %s.') % address}\n\n{_footer()}"
        subject = f"[CatMQ] {_('Test mail')}"
    try:
        EmailMessage(subject, text, config.mail_from, [address]).send()
    except (OSError, smtplib.SMTPException) as error:
        raise Unavailable(
            f"The mail server refused the mail: {error}", retry_after_ms=1000
        ) from error
