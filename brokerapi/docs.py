"""The schema and the docs page. Both are built once per process, because they need no key
and are costly.

The page shows operations (operations.py) and error codes. Its only script sends the
requests that a reader tries out (try_it.py).
"""

from __future__ import annotations

import gzip
import re
import threading
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer

from brokerapi.http import errors
from brokerapi.operations import Operations, prose
from brokerapi.try_it import KEY
from metadata.errors import Code

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th,
td { text-align: left; vertical-align: top; padding: .2rem .6rem; border-bottom: 1px solid #8886; }
section table { table-layout: fixed; overflow-wrap: anywhere; }
section th:first-child { width: 38%; } section th:nth-child(2) { width: 22%; }
code, pre { font: 14px ui-monospace, monospace; }
pre { padding: .6rem; overflow-x: auto; background: #8882; }
h4 { margin: .8rem 0 .2rem; } section h3 code { font-size: 17px; }
section { border-top: 2px solid #8886; margin-top: 2rem; }
nav { columns: 19rem; column-gap: 1.5rem; overflow-wrap: anywhere; } nav code { font-size: 12.5px; }
nav ul { padding-left: 1rem; margin: 0; list-style: none; }
nav h3 { margin: .6rem 0 0; } nav > * { break-inside: avoid; }
:root { color-scheme: light dark; }
.try { display: none; } .scripted .try { display: block; }
#key { padding: .6rem; background: #8882; } #key span { font-size: 14px; }
.try label { display: block; margin: .4rem 0; } .try input { min-width: 18rem; max-width: 100%; }
.try input, textarea { font: 14px ui-monospace,
monospace; padding: .2rem .4rem; box-sizing: border-box; }
textarea { display: block; width: 100%; } .try summary { cursor: pointer; margin-top: .8rem; }
"""
# The API bypasses Django's middleware, so the page sets its own policy.
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; "
    "frame-ancestors 'none'; style-src "
    f"'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"
)
# Links are relative: a proxy may show the page under a path prefix.
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>CatMQ: HTTP API v1</title><style>{}</style><script src="docs.js" defer></script></head><body>
<h1>CatMQ: HTTP API v1</h1>
<p>JSON,
or <code>application/msgpack</code>. Send <code>Authorization: Bearer &lt;api key&gt;</code>.
The shapes are in the <a href="schema">OpenAPI schema</a>,
the limits in <a href="../v1">/api/v1</a>. Examples take the broker and the key from
<code>CATMQ_URL</code> and <code>CATMQ_API_KEY</code>.</p>
{}<nav>{}</nav>
<h2>Operations</h2>{}
<h2 id="codes">Error codes</h2>
<p>Every error is <code>application/problem+json</code>: type, title, status, detail, code,
retriable, and
where it applies retry_after_ms, errors (field, message) and id (also in the broker's log).</p>{}
</body></html>"""


CODE_ROW = '<tr id="{}"><td><code>{}</code></td><td>{}</td></tr>'
# The table of error codes with their remedies: a page of the documentation, by a link.
ERRORS = Path(__file__).with_name("errors.md")
MEANING = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)

# Building the schema takes a third of a second: a single thread does it, the others wait.
_build_lock = threading.Lock()


@cache
def _schema() -> dict[str, Any]:
    generated: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return generated


@cache
def _render_schema(kind: str) -> tuple[bytes, bytes]:
    """Return the schema as text, and the same text gzipped."""
    renderer = OpenApiJsonRenderer() if kind == "json" else OpenApiYamlRenderer()
    text: bytes = renderer.render(_schema(), renderer_context={})
    return text, gzip.compress(text)


def schema(kind: str, *, packed: bool) -> bytes:
    """Return the OpenAPI schema as `json` or `yaml`, gzipped if wanted."""
    with _build_lock:
        return _render_schema(kind)[packed]


def page() -> SafeString:
    # The page cannot change while the process runs, so it is built once.
    with _build_lock:
        return _page()


@cache
def _page() -> SafeString:
    operations = Operations(_schema())
    remedies = dict(MEANING.findall(ERRORS.read_text("utf-8")))
    rows = [
        (code.value, code.value, prose(remedies.get(code.value) or errors.code_title(code)))
        for code in Code
    ]
    return format_html(
        PAGE,
        SafeString(STYLE),
        SafeString(KEY),  # the form in which a reader enters an API key
        operations.contents(),
        operations.sections(),
        format_html("<table>{}</table>", format_html_join("", CODE_ROW, rows)),
    )
