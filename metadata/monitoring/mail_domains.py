"""Domains that mails of alarms may go to: who manages a topic must not have the server
write to strangers.
"""

from __future__ import annotations

from typing import Any

from metadata.config import config
from metadata.errors import Invalid
from metadata.rules.mail import is_allowed_recipient, parse_addresses


def check_domains(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a topic or group, if mails may go to all addresses in them. Raises
    Invalid.
    """
    for one in parse_addresses(values.get("alarm_emails", "")):
        if not is_allowed_recipient(one, config.mail_domains):
            named = ", ".join(config.mail_domains)
            raise Invalid.field(
                "alarm_emails", f"{one} is not in {named}, the allowed domains"
            )
    return values
