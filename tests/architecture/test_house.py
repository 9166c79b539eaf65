"""What DESIGN calls the house: who may do what where, checked on the source and on the
loaded application.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator

import pytest
from django.apps import apps
from django.contrib import admin

from tests.support.environment import ROOT

SERVER = ("catmq_site", "brokerapi", "portal", "metadata", "messagestore")
LIFE = ROOT / "docs/explanation/life-of-a-message.md"


@functools.cache
def sources() -> list[tuple[str, ast.Module]]:
    """Return (path, syntax tree) of every module of the server."""
    paths = [path for package in SERVER for path in sorted((ROOT / package).rglob("*.py"))]
    # those are written by Django
    ours = [path for path in paths if path.parent.name != "migrations"]
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in ours]


def calls(tree: ast.Module) -> Iterator[str]:
    """The dotted names that a module calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def test_threads_are_started_in_one_place_only() -> None:
    """But for one that a signal handler starts, which must not wait for a lock itself, and
    for those of the doctor, which may be abandoned while they hang, and for threads that
    ask the servers of a list and end after seconds.
    """
    makers = ("Thread", "Timer", "ThreadPoolExecutor", "start_new_thread")
    guilty = {
        path for path, tree in sources() for call in calls(tree) if call.endswith(makers)
    }
    assert guilty == {
        "catmq_site/background/loop_threads.py",
        "catmq_site/management/commands/qcluster.py",
        "messagestore/doctor/checkup.py",
        "metadata/surveys.py",
    }


def test_nothing_happens_in_app_configs_and_no_signal_is_heard() -> None:
    guilty = [
        f"{path}: {node.name}"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name == "ready"
        and path.endswith("apps.py")
    ]
    assert guilty == []


def test_every_model_is_in_the_admin_and_shows_no_secret() -> None:
    from portal.admin.readonly import SECRET, ReadOnlyAdmin

    for model in apps.get_app_config("metadata").get_models():
        page = admin.site._registry.get(model)
        assert isinstance(page, ReadOnlyAdmin), (
            f"{model.__name__} is not in the admin, or not read-only"
        )
        assert page.search_fields, f"{model.__name__} cannot be searched"
        shown = {*page.list_display, *page.get_fields(None)}  # type: ignore[arg-type]
        assert not shown & SECRET
        assert not [
            name for name in shown if re.search("password|digest|secret", str(name))
        ]


def test_public_functions_below_the_views_take_keywords_only_when_they_have_several_arguments() -> (
    None
):
    guilty = []
    for path, tree in sources():
        if not path.startswith("messagestore/") or path.startswith("messagestore/engine/"):
            continue
        public = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name[0] != "_"
        ]
        guilty += [f"{path}: {node.name}" for node in public if len(node.args.args) > 2]
    assert guilty == []


def hops() -> list[str]:
    """The dotted names of functions that life-of-a-message.md lists as `module.function`."""
    return re.findall(r"^\| `([\w.]+)`", LIFE.read_text(), re.MULTILINE)


def test_the_life_of_a_message_has_hops() -> None:
    assert len(hops()) >= 15


@pytest.mark.parametrize("name", hops())
def test_a_hop_in_the_life_of_a_message_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        module, _, holder = module.rpartition(".")
        found = getattr(getattr(importlib.import_module(module), holder), attribute)
    assert callable(found) or inspect.isdatadescriptor(found)
