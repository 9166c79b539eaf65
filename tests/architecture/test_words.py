"""Every word that people read in the portal has a Chinese one."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from gettext import GNUTranslations

import pytest
from django.apps import apps
from django.contrib import admin
from django.utils.translation import gettext, ngettext, override

from catmq_site.background import table
from catmq_site.background.table import JOBS
from messagestore.doctor import advice
from messagestore.nodes import preflight
from metadata import config
from metadata.rules import alarm_texts
from metadata.rules.audit_verbs import Verb
from metadata.rules.settings import GROUP, NODE, SUBSCRIPTION, TOPIC
from portal.kit import cells
from tests.support.environment import ROOT

PORTAL = ROOT / "portal"
CATALOG = PORTAL / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"
VALUE = re.compile(r"%\(\w+\)(?:\.\d+)?[sdfg]|%[sd%]")
MSGID = re.compile(r'^msgid ((?:"(?:[^"\\]|\\.)*"\s*)+)', re.MULTILINE)
# the same in every language
SAME = {"CatMQ", "Cron", "Mysql", "Sqlite", "Broker", "Broker %(name)s", "%"}
CALLS = ("_", "lazy", "gettext", "gettext_lazy", "ngettext")
TAG = re.compile(r"\{%\s*translate\s+(\"[^\"]*\"|'[^']*')")
BLOCK = re.compile(
    r"\{%\s*blocktranslate[^%]*%\}(.*?)(?:\{%\s*plural\s*%\}(.*?))?\{%\s*endblocktranslate\s*%\}",
    re.DOTALL,
)
Words = str | tuple[str, str]  # with its plural, where one is chosen by a number


def of_code() -> Iterator[Words]:
    """What the modules say, and mails."""
    for path in (
        *PORTAL.rglob("*.py"),
        ROOT / "catmq_site" / "background" / "alarm_mails.py",
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in CALLS
            ):
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
    """The text as it stands in the catalog. Blocks of several lines are `trimmed`."""
    text = " ".join(line.strip() for line in text.strip().splitlines())
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", r"%(\1)s", text)


def of_names() -> Iterator[Words]:
    """What models, their columns and jobs are called."""
    for model in admin.site._registry:
        if model._meta.app_label in ("metadata", "django_q"):
            yield from (str(model._meta.verbose_name), str(model._meta.verbose_name_plural))
            yield from (str(field.verbose_name) for field in model._meta.fields)
            yield from (
                str(label) for field in model._meta.fields for _, label in field.flatchoices
            )
    yield from (job.text for job in JOBS.values())
    yield from (loop.purpose for loop in (*table.loops(), *table.java_loops()))


def of_findings() -> Iterator[Words]:
    """What an examination of a node says, and the doctor."""
    yield from preflight.TEXTS.values()
    for kind in advice.ADVICE.values():
        yield from (kind.cause, kind.why, kind.remedy)
    yield from (*advice.PREFLIGHT_WHY.values(), advice.REGISTRATION_WHY)
    yield from advice.PREFLIGHT_REMEDIES.values()


def of_alarms() -> Iterator[Words]:
    """Details of alarms."""
    yield from alarm_texts.TEXTS.values()


def of_settings() -> Iterator[Words]:
    """What declared settings are called, their units, and what they mean."""
    for one in (*TOPIC.values(), *GROUP.values(), *SUBSCRIPTION.values(), *NODE.values()):
        words = getattr(one.kind, "words", {}).values()
        yield from (
            one.label,
            one.help,
            one.kind.null,
            getattr(one.kind, "unit", ""),
            *words,
        )


def of_config() -> Iterator[Words]:
    """What the settings of a process mean."""
    yield from config.setting_comments().values()


def is_translated(words: Words) -> bool:
    """Asked as the page asks: gettext() finds a text that has a plural in some releases of
    Python only.
    """
    if isinstance(words, str):
        return not words or words.isupper() or gettext(words) != words
    return ngettext(*words, 1) != words[0] and ngettext(*words, 2) != words[1]


@pytest.mark.parametrize(
    "source",
    [of_code, of_templates, of_names, of_findings, of_alarms, of_settings, of_config],
)
def test_every_word_has_a_chinese_one(source: Callable[[], Iterator[Words]]) -> None:
    with override("en"):
        said = set(source()) - SAME
    with override("zh-hans"):
        missing = [words for words in said if not is_translated(words)]
    assert missing == []


def test_every_word_of_a_page_is_in_the_own_catalog() -> None:
    """Django's catalogs have some of the words, in the sense of another page."""
    catalog = CATALOG.read_text()
    said = {
        one if isinstance(one, str) else one[0] for one in (*of_code(), *of_templates())
    }
    own = {ast.literal_eval(f"({found})") for found in MSGID.findall(catalog)}
    assert sorted(said - own - SAME - {""}) == []


def test_the_own_catalog_comes_before_those_of_other_apps() -> None:
    with CATALOG.with_suffix(".mo").open("rb") as file:
        own = GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    with override("zh-hans"):
        other = {
            told: gettext(told)
            for told in own
            if isinstance(told, str) and told and own[told] != gettext(told)
        }
    assert other == {}


def test_the_admin_is_in_the_portal_apps() -> None:
    assert apps.is_installed("portal")


def audited_kinds() -> Iterator[str]:
    """Those that modules write into the audit log."""
    for path in (
        path
        for name in ("metadata", "messagestore")
        for path in (ROOT / name).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                given = {one.arg: one.value for one in node.keywords}
                kind = given.get("kind") if "verb" in given else None
                if isinstance(kind, ast.Constant):
                    yield str(kind.value)


def test_every_verb_and_kind_of_the_audit_log_has_words() -> None:
    assert set(cells.VERB_LABELS) == set(Verb)
    kinds = set(audited_kinds())
    assert len(kinds) > 10
    assert kinds <= set(cells.KIND_LABELS)


def test_every_chinese_text_takes_the_same_values() -> None:
    with CATALOG.with_suffix(".mo").open("rb") as file:
        catalog = GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    wrong = {
        told: said
        for told, said in catalog.items()
        if isinstance(told, str)
        and sorted(VALUE.findall(told)) != sorted(VALUE.findall(said))
    }
    assert wrong == {}
