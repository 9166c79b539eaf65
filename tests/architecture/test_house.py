"""What DESIGN calls the house: who may do what where, checked on the source and on the loaded application."""

from __future__ import annotations

import ast
import collections
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
MAX_LINES = 400
MAX_FILES = 14  # a folder's, its __init__.py among them
CLIENT = ROOT / "client/src/catmq_client"
LIFE = ROOT / "docs/explanation/life-of-a-message.md"


@functools.cache
def sources(*packages: str) -> list[tuple[str, ast.Module]]:
    """(path, syntax tree) of every module of the server, or of these packages."""
    paths = [path for package in packages or SERVER for path in sorted((ROOT / package).rglob("*.py"))]
    ours = [path for path in paths if path.parent.name != "migrations"]  # those are written by Django
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in ours]


def product() -> list[tuple[str, ast.Module]]:
    """Modules of the server, the client and the Spark tasks."""
    return sources(*SERVER, "client/src", "spark_tasks")


def calls(tree: ast.Module) -> Iterator[str]:
    """The dotted names that a module calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def test_threads_are_started_in_one_place_only() -> None:
    """But for one that a signal handler starts, which must not wait for a lock itself."""
    makers = ("Thread", "Timer", "ThreadPoolExecutor", "start_new_thread")
    guilty = {path for path, tree in sources() for call in calls(tree) if call.endswith(makers)}
    assert guilty == {"catmq_site/server/maintenance.py", "catmq_site/management/commands/qcluster.py"}


def test_nothing_happens_in_app_configs_and_no_signal_is_heard() -> None:
    guilty = [
        f"{path}: {node.name}"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "ready" and path.endswith("apps.py")
    ]
    assert guilty == []


def test_no_file_is_too_long() -> None:
    lengths = {path: (ROOT / path).read_text().count("\n") for path, _ in product()}
    long = {path: lines for path, lines in lengths.items() if lines > MAX_LINES}
    assert long == {}


def test_no_folder_holds_too_many_files() -> None:
    """Migrations and commands are where Django wants them."""
    django = ("migrations", "commands")
    folders = collections.Counter(
        path.parent.relative_to(ROOT)
        for package in (*SERVER, "spark_tasks", "client/src")
        for path in (ROOT / package).rglob("*.py")
        if path.parent.name not in django
    )
    assert {str(folder): files for folder, files in folders.items() if files > MAX_FILES} == {}


def test_no_module_is_imported_under_another_name() -> None:
    """Two modules of one name are named apart where they stand, not where they are used."""
    renamed = [
        f"{path}: {node.module}.{one.name} as {one.asname}"
        for path, tree in product()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for one in node.names
        if one.asname
        for at in (ROOT, CLIENT.parent)
        if (at / f"{node.module}.{one.name}".replace(".", "/")).with_suffix(".py").exists()
    ]
    assert renamed == []


def test_functions_are_short() -> None:
    lengths = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for _, tree in product()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert lengths[-1] <= 50
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[len(lengths) * 95 // 100] <= 35


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    begins = [
        f"{path}: {text.splitlines()[0]}"
        for path, tree in product()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
        and re.match(r"(What|Whether|How|Who|Whom|Whose|Where|When|Which|Why)\b", text)
    ]
    assert begins == []


def test_every_module_has_a_docstring() -> None:
    bare = [path for path, tree in sources() if tree.body and not ast.get_docstring(tree)]
    assert bare == []


def test_every_model_is_in_the_admin_and_shows_no_secret() -> None:
    from portal.admin.readonly import SECRET, ReadOnlyAdmin

    for model in apps.get_app_config("metadata").get_models():
        page = admin.site._registry.get(model)
        assert isinstance(page, ReadOnlyAdmin), f"{model.__name__} is not in the admin, or not read-only"
        assert page.search_fields, f"{model.__name__} cannot be searched"
        shown = {*page.list_display, *page.get_fields(None)}  # type: ignore[arg-type]
        assert not shown & SECRET
        assert not [name for name in shown if re.search("password|digest|secret", str(name))]


def test_public_functions_below_the_views_take_keywords_only_when_they_have_several_arguments() -> None:
    guilty = []
    for path, tree in sources():
        if not path.startswith("messagestore/") or path.startswith("messagestore/engine/"):
            continue
        public = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
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


# What a newcomer looks for, and a file that has to be in the folder that docs/decisions names.
LOOKED_FOR = {
    "the retry queue": "pending.py",
    "group commit": "group_commit.py",
    "the connection pool": "session_pool.py",
    "the code that validates a node": "preflight.py",
    "delayed delivery": "delayed_delivery.py",
    "offset reset": "offset_reset.py",
    "lag": "lag.py",
    "retention": "planning.py",
    "the head watcher": "head_watcher.py",
    "the alarm mails": "mails.py",
}


def test_folders_answer_where_things_are() -> None:
    page = (ROOT / "docs/decisions/0020-rooms.md").read_text()
    named = dict(re.findall(r"^\| ([a-z ]+) \| `([\w/]+)` \|$", page, re.MULTILINE))
    assert named.keys() == LOOKED_FOR.keys()
    for what, file in LOOKED_FOR.items():
        assert (ROOT / named[what] / file).is_file(), what
