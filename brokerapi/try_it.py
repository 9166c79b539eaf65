"""Forms of the docs page that send a request with the reader's key. try_it.js reads and
sends them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

SCRIPT = Path(__file__).with_name("try_it.js")
KEY = """<form id="key" class="try" autocomplete="off">
<label>API key for “Try it” <input type="password" name="key" autocomplete="off" spellcheck="false"
 placeholder="catmq_…"></label>
<span>It stays in this page, is sent to this broker only, and is forgotten when the page is
closed.</span>
</form>"""
FORM = """<details class="try"><summary>Try it</summary>
<form data-method="{}" data-path="{}" data-key="{}" autocomplete="off">{}{}
<button type="submit">Send</button> <output></output><pre hidden></pre></form></details>"""
INPUT = '<label><code>{}</code> <input name="{}" data-in="{}" placeholder="{}"{}></label>'
BODY = '<label>Body, JSON<textarea rows="{}" spellcheck="false">{}</textarea></label>'
MOST_ROWS = 14


def form(
    method: str,
    path: str,
    operation: dict[str, Any],
    *,
    samples: dict[str, Any],
    body: Any = None,
) -> SafeString:
    """Return the form of an operation. `samples`: values by name of a parameter; `body`:
    the example.
    """
    inputs = (
        (
            parameter["name"],
            parameter["name"],
            parameter["in"],
            # Objects and lists are no values for an input: only bodies have them.
            sample
            if isinstance(sample := samples.get(parameter["name"]), str | int)
            else "",
            SafeString(" required") if parameter.get("required") else "",
        )
        for parameter in operation.get("parameters", ())
    )
    text = "" if body is None else json.dumps(body, indent=2, ensure_ascii=False)
    area = format_html(BODY, min(text.count("\n") + 2, MOST_ROWS), text) if text else ""
    key = "yes" if operation.get("security") else ""
    return format_html(
        FORM, method.upper(), path, key, format_html_join("", INPUT, inputs), area
    )
