"""manage.py send_test_mail: sends a mail that shows whether mails of alarms arrive."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.background import alarm_mails
from catmq_site.management.base import CatmqCommand
from metadata.config import config
from metadata.errors import Invalid
from metadata.rules.mail import is_address, is_allowed_recipient


class Command(CatmqCommand):
    help = (
        "Sends one mail to each address, or to all of CATMQ_ALARM_EMAILS, through the "
        "server of CATMQ_SMTP_URL. Exit codes: 0 the server accepted all mails, 1 "
        "refused, 3 the server cannot be used now."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "address", nargs="*", help="e-mail addresses (default: CATMQ_ALARM_EMAILS)"
        )

    def run(self, **options: Any) -> None:
        if not config.smtp_url:
            raise Invalid("Set CATMQ_SMTP_URL first, such as smtp://mail.example.org:25.")
        addresses = options["address"] or config.alarm_emails
        if not addresses:
            raise Invalid("Give an address, or set CATMQ_ALARM_EMAILS.")
        # Check all addresses before the first mail is sent.
        for address in addresses:
            if not is_address(address):
                raise Invalid(f"{address!r} is not an e-mail address.")
            if not is_allowed_recipient(address, config.mail_domains):
                raise Invalid(f"{address} is in none of CATMQ_MAIL_DOMAINS.")
        for address in addresses:
            alarm_mails.send_test_mail(address)
            self.stdout.write(f"Sent to {address}. Check that it arrives.")
