"""Sections of long forms, by the subjects of the settings."""

from __future__ import annotations

from django import forms, template
from django.forms.boundfield import BoundField
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as lazy

Text = str | Promise
register = template.Library()
SECTIONS: tuple[tuple[Text, tuple[str, ...]], ...] = (  # of forms; a setting is in one
    (lazy("Retention"), ("retention_days", "keep_unread_days", "retention_bytes")),
    (
        lazy("Sending"),
        (
            "state",
            "read_only",
            "keyed",
            "on_unknown",
            "max_messages_per_s",
            "max_bytes_per_s",
        ),
    ),
    (
        lazy("Reading"),
        (
            "stopped",
            "stopped_queues",
            "tags",
            "headers",
            "delay_s",
            "ordered",
            "trace_percent",
        ),
    ),
    (
        lazy("Failures"),
        ("retries", "retry_delays_s", "dead_days", "breaker_failures", "breaker_pause_s"),
    ),
    (
        lazy("Clients"),
        (
            "handler_timeout_ms",
            "threads",
            "handler_batch",
            "max_poll_records",
            "fetch_max_wait_ms",
        ),
    ),
    (
        lazy("Members"),
        ("session_timeout_ms", "max_active_members", "allow_addresses", "deny_addresses"),
    ),
    (lazy("Share groups"), ("lease_ms", "run_messages", "max_deliveries")),
    (lazy("Alarms"), ("alarm_lag", "alarm_lag_s", "alarm_emails")),
    (lazy("Capacity"), ("dedicated", "capacity_gb")),
    (lazy("Replica"), ("replica_host", "replica_port")),
    (lazy("Encryption"), ("tls", "tls_ca")),
    (lazy("Ownership"), ("owners", "department", "description")),
)
SHORT = 5  # fields of a form that needs no sections


@register.filter
def sections(form: forms.Form) -> list[tuple[Text, list[BoundField]]]:
    """Return the visible fields below their titles; those of no section come first, below
    none.
    """
    fields = form.visible_fields()
    if len(fields) <= SHORT:
        return [("", fields)]
    titled = [
        (title, [one for one in fields if one.name in names]) for title, names in SECTIONS
    ]
    known = {one.name for _title, found in titled for one in found}
    first: tuple[Text, list[BoundField]] = (
        "",
        [one for one in fields if one.name not in known],
    )
    return [one for one in (first, *titled) if one[1]]
