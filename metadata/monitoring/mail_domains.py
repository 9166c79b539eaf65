"""Domains that notifications may go to.

A manager of a topic can set its addresses, and must not make the server write to
others.
"""

from __future__ import annotations

from typing import Any

from metadata.config import config
from metadata.errors import Invalid
from metadata.rules.mail import is_allowed_recipient, parse_addresses


def check_domains(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a topic or group if all their addresses are allowed. Raises
    Invalid.
    """
    for address in parse_addresses(values.get("alarm_emails", "")):
        if not is_allowed_recipient(address, config.mail_domains):
            allowed = ", ".join(config.mail_domains)
            raise Invalid.field(
                "alarm_emails", f"{address} is not in {allowed}, the allowed domains"
            )
    return values
