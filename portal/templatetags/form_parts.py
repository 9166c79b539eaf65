"""Sections of long forms, by the subject of their settings."""

from __future__ import annotations

from django import forms, template
from django.forms.boundfield import BoundField
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as lazy

Text = str | Promise
register = template.Library()
# Title and settings of each section. A setting is in a single section.
SECTIONS: tuple[tuple[Text, tuple[str, ...]], ...] = (
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
    (lazy("Searching"), ("key_index",)),
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
    (lazy("Servers"), ("host",)),
    (lazy("Replica"), ("replica_host", "replica_port")),
    (lazy("Encryption"), ("tls", "tls_ca")),
    (lazy("Ownership"), ("owners", "department", "description")),
)
# Forms up to this many fields have no sections.
MAX_FIELDS_WITHOUT_SECTIONS = 5


@register.filter
def sections(form: forms.Form) -> list[tuple[Text, list[BoundField]]]:
    """Return the visible fields of a form by section title. Fields without a section come
    first, as "General". A form without sections has the title ''.
    """
    fields = form.visible_fields()
    if len(fields) <= MAX_FIELDS_WITHOUT_SECTIONS:
        return [("", fields)]
    titled_fields = [
        (title, [field for field in fields if field.name in names])
        for title, names in SECTIONS
    ]
    # Fields such as the name belong to no section.
    names_in_sections = {
        field.name for _title, section_fields in titled_fields for field in section_fields
    }
    untitled_fields: tuple[Text, list[BoundField]] = (
        lazy("General"),
        [field for field in fields if field.name not in names_in_sections],
    )
    return [section for section in (untitled_fields, *titled_fields) if section[1]]
