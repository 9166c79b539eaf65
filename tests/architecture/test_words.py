"""Every word that people read in the portal has a Chinese one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from django.apps import apps
from django.contrib import admin
from django.utils.translation import gettext, override

from catmq_site.jobs import JOBS
from messagestore import examination
from tests.support.environment import ROOT

PORTAL = ROOT / "portal"
SAME = {"CatMQ", "Cron", "Mysql", "Sqlite"}  # the same in every language
CALLS = ("_", "lazy", "gettext", "gettext_lazy", "ngettext")
TAG = re.compile(r"\{%\s*translate\s+(\"[^\"]*\"|'[^']*')")
BLOCK = re.compile(r"\{%\s*blocktranslate[^%]*%\}(.*?)\{%\s*(?:plural|endblocktranslate)\s*%\}", re.DOTALL)


def of_code() -> Iterator[str]:
    """What the modules say."""
    for path in PORTAL.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value


def of_templates() -> Iterator[str]:
    """What the templates say."""
    for path in PORTAL.rglob("*.html"):
        text = path.read_text()
        yield from (found[1:-1] for found in TAG.findall(text))
        yield from (re.sub(r"\{\{\s*(\w+)\s*\}\}", r"%(\1)s", found) for found in BLOCK.findall(text))


def of_names() -> Iterator[str]:
    """What models, their columns and jobs are called."""
    for model in admin.site._registry:
        if model._meta.app_label in ("metadata", "django_q"):
            yield from (str(model._meta.verbose_name), str(model._meta.verbose_name_plural))
            yield from (str(field.verbose_name) for field in model._meta.fields)
            yield from (str(label) for field in model._meta.fields for _, label in field.flatchoices)
    yield from (job.text for job in JOBS.values())


def of_findings() -> Iterator[str]:
    """What an examination of a node says."""
    yield from examination.TEXTS.values()


@pytest.mark.parametrize("source", [of_code, of_templates, of_names, of_findings])
def test_every_word_has_a_chinese_one(source: object) -> None:
    with override("en"):
        said = sorted(set(source()) - SAME)  # type: ignore[operator]
    with override("zh-hans"):
        missing = [text for text in said if text and gettext(text) == text and not text.isupper()]
    assert missing == []


def test_the_admin_is_in_the_portal_apps() -> None:
    assert apps.is_installed("portal")
