"""Every word that people read in the portal has a Chinese one."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import pytest
from django.apps import apps
from django.contrib import admin
from django.utils.translation import gettext, ngettext, override

from catmq_site.jobs.schedules import JOBS
from messagestore.nodes import preflight
from metadata.rules.settings import GROUP, NODE, SUBSCRIPTION, TOPIC
from tests.support.environment import ROOT

PORTAL = ROOT / "portal"
SAME = {"CatMQ", "Cron", "Mysql", "Sqlite", "Broker", "Broker %(name)s", "%"}  # the same in every language
CALLS = ("_", "lazy", "gettext", "gettext_lazy", "ngettext")
TAG = re.compile(r"\{%\s*translate\s+(\"[^\"]*\"|'[^']*')")
BLOCK = re.compile(
    r"\{%\s*blocktranslate[^%]*%\}(.*?)(?:\{%\s*plural\s*%\}(.*?))?\{%\s*endblocktranslate\s*%\}", re.DOTALL
)
Words = str | tuple[str, str]  # with its plural, where one is chosen by a number


def of_code() -> Iterator[Words]:
    """What the modules say."""
    for path in PORTAL.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
                forms = node.args[: 2 if node.func.id == "ngettext" else 1]
                said = [one.value for one in forms if isinstance(one, ast.Constant)]
                if len(said) == len(forms) and isinstance(said[0], str):
                    yield (said[0], str(said[1])) if len(said) == 2 else said[0]


def of_templates() -> Iterator[Words]:
    """What the templates say."""
    for path in PORTAL.rglob("*.html"):
        text = path.read_text()
        yield from (found[1:-1] for found in TAG.findall(text))
        for one, many in BLOCK.findall(text):
            yield (placeholders(one), placeholders(many)) if many else placeholders(one)


def placeholders(text: str) -> str:
    """The text as it stands in the catalog."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", r"%(\1)s", text)


def of_names() -> Iterator[Words]:
    """What models, their columns and jobs are called."""
    for model in admin.site._registry:
        if model._meta.app_label in ("metadata", "django_q"):
            yield from (str(model._meta.verbose_name), str(model._meta.verbose_name_plural))
            yield from (str(field.verbose_name) for field in model._meta.fields)
            yield from (str(label) for field in model._meta.fields for _, label in field.flatchoices)
    yield from (job.text for job in JOBS.values())


def of_findings() -> Iterator[Words]:
    """What an examination of a node says."""
    yield from preflight.TEXTS.values()


def of_settings() -> Iterator[Words]:
    """What declared settings are called, their units, and what they mean."""
    for one in (*TOPIC.values(), *GROUP.values(), *SUBSCRIPTION.values(), *NODE.values()):
        words = getattr(one.kind, "words", {}).values()
        yield from (one.label, one.help, one.kind.null, getattr(one.kind, "unit", ""), *words)


def is_translated(words: Words) -> bool:
    """Asked as the page asks: gettext() finds a text that has a plural in some releases of Python only."""
    if isinstance(words, str):
        return not words or words.isupper() or gettext(words) != words
    return ngettext(*words, 1) != words[0] and ngettext(*words, 2) != words[1]


@pytest.mark.parametrize("source", [of_code, of_templates, of_names, of_findings, of_settings])
def test_every_word_has_a_chinese_one(source: Callable[[], Iterator[Words]]) -> None:
    with override("en"):
        said = set(source()) - SAME
    with override("zh-hans"):
        missing = [words for words in said if not is_translated(words)]
    assert missing == []


def test_the_admin_is_in_the_portal_apps() -> None:
    assert apps.is_installed("portal")
