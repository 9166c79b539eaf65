"""Template filters that format values: numbers, sizes, times, durations, small charts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

register = template.Library()
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
DASH = "\N{EN DASH}"


@register.filter
def format_count(value: Any) -> str:
    """Format a whole number with separators, alike in all languages. None is a dash.

    >>> format_count(12345)
    '12,345'
    """
    return DASH if value is None else f"{value:,}"


@register.filter
def format_size(value: int | None) -> str:
    """Format a number of bytes.

    >>> format_size(1536), format_size(700)
    ('1.5 KiB', '700 B')
    """
    if value is None:
        return DASH
    amount, unit = float(value), "B"
    # The largest unit has no upper limit.
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return (
        f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
    )


@register.filter
def format_rate(value: float | None) -> str:
    """Format a number per second.

    >>> format_rate(0.25), format_rate(12.3), format_rate(1234.5)
    ('0.25', '12.3', '1,234')
    """
    if value is None:
        return DASH
    return (
        f"{value:.2f}"
        if 0 < value < 1
        else f"{value:.1f}"
        if value < 100
        else f"{value:,.0f}"
    )


@register.filter
def format_duration(value: int | float | None) -> str:
    """Format a duration in ms.

    >>> format_duration(850), format_duration(61_000), format_duration(7_200_000)
    ('850 ms', '1 min 1 s', '2 h')
    """
    if value is None:
        return DASH
    ms = int(value)
    if ms < SECOND:
        number = f"{value:.1f}" if isinstance(value, float) and ms < 10 else str(ms)
        return f"{number} {_('ms')}"
    if ms < MINUTE:
        number = f"{ms / SECOND:.1f}" if ms < 10 * SECOND else str(ms // SECOND)
        return f"{number} {_('s')}"
    if ms < HOUR:
        return _join_units(ms // MINUTE, _("min"), ms % MINUTE // SECOND, _("s"))
    if ms < DAY:
        return _join_units(ms // HOUR, _("h"), ms % HOUR // MINUTE, _("min"))
    return ngettext("%(days)d day", "%(days)d days", ms // DAY) % {"days": ms // DAY}


def _join_units(amount: int, unit: str, remainder: int, remainder_unit: str) -> str:
    return (
        f"{amount} {unit} {remainder} {remainder_unit}" if remainder else f"{amount} {unit}"
    )


@register.filter
def format_time(value: int | None) -> str:
    """Format a point in time, ms since 1970, in UTC."""
    if value is None:
        return DASH
    return datetime.fromtimestamp(value / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")


@register.simple_tag
def relative_time(value: int | None) -> str:
    """Return a <time> element of a point in time, ms since 1970.

    A script turns it into text such as "3 min ago", with the exact time on hover.
    """
    if value is None:
        return DASH
    return format_html(
        '<time datetime="{}" class="nowrap">{} UTC</time>',
        iso_time(value),
        format_time(value),
    )


@register.filter
def iso_time(value: int) -> str:
    """Format a point in time, ms since 1970, as ISO 8601."""
    return datetime.fromtimestamp(value / 1000, tz=UTC).isoformat(timespec="milliseconds")


@register.filter
def polyline(values: Sequence[int]) -> str:
    """Return the points of a small chart of 100 by 24 units. A single value is a level line.

    >>> polyline([0, 1, 2]), polyline([7])
    ('0,22 50,12 100,2', '0,2 100,2')
    """
    if not values:
        return ""
    if len(values) == 1:
        values = [*values, *values]
    max_value = max(values) or 1
    step = 100 / (len(values) - 1)
    return " ".join(
        f"{index * step:.4g},{22 - 20 * value / max_value:.4g}"
        for index, value in enumerate(values)
    )


@register.filter
def describe_sparkline(values: Sequence[int]) -> str:
    """Describe a small chart of messages per minute in words, for screen readers."""
    figures = {
        "now": format_count(values[-1]),
        "most": format_count(max(values)),
        "minutes": len(values),
    }
    return (
        _("Messages per minute: now %(now)s, maximum %(most)s in the last %(minutes)s min")
        % figures
    )


@register.simple_block_tag
def trim(content: str) -> SafeString:
    """Remove white space at both ends of a block, so that templates can be indented.

    White space within a link is underlined.
    """
    return mark_safe(content.strip())  # noqa: S308 - the block was escaped when it was rendered
