"""Every command that a page, a message or a help text tells is one that the parsers take."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from metadata.installation import INSTALLED_PROGRAMS
from tests.support import commands
from tests.support.commands import ShownCommand, trouble
from tests.support.environment import ROOT
from tests.support.tracked import tracked_files

PAGES = [
    ROOT / page
    for page in tracked_files("*.md")
    if page.name != "CHANGELOG.md"  # has commands of former releases
]
SPEAKING = (
    "catmq_site",
    "brokerapi",
    "portal",
    "metadata",
    "messagestore",
    "spark_tasks",
    "client/src",
    "examples",
)


PROGRAM = re.compile("|".join(map(re.escape, INSTALLED_PROGRAMS)))
ELSEWHERE = {
    "manage.py run_job archive_topics",  # exists where CATMQ_ARCHIVE_TOPICS is set
    # of the project in docs/how-to/use-it-from-django.md
    "python manage.py consume_orders",
}


def wrong(told: list[ShownCommand]) -> list[str]:
    asked = [one for one in told if one.text not in ELSEWHERE]
    return [f"{one.place}: {one.text}: {why}" for one in asked if (why := trouble(one))]


def test_every_command_of_the_pages_is_taken_by_its_parser() -> None:
    told = [one for page in PAGES for one in commands.in_page(page)]
    assert len(told) > 150
    assert wrong(told) == []


def test_every_command_that_the_code_tells_is_taken_by_its_parser() -> None:
    modules = [path for room in SPEAKING for path in sorted((ROOT / room).rglob("*.py"))]
    told = [one for module in modules for one in commands.in_code(module)]
    assert len(told) > 40
    assert wrong(told) == []


def test_every_command_of_the_portals_pages_and_translations_is_taken_by_its_parser() -> (
    None
):
    files = sorted([*(ROOT / "portal").rglob("*.html"), *(ROOT / "portal").rglob("*.po")])
    told = [one for file in files for one in commands.in_sentences(file.name, joined(file))]
    assert len(told) > 10
    assert wrong(told) == []


def test_each_file_of_the_portal_that_names_a_program_names_that_of_the_installation() -> (
    None
):
    """Errors and findings do it where they are made; the portal translates its texts first."""
    files = [*(ROOT / "portal").rglob("*.py"), *(ROOT / "portal").rglob("*.html")]
    texts = {file.name: file.read_text() for file in files}
    naming = [name for name, text in texts.items() if PROGRAM.search(text)]
    assert len(naming) > 8
    assert [name for name in naming if "name_programs" not in texts[name]] == []


def test_pip_installs_the_client_in_every_way_that_a_page_shows() -> None:
    shown = [command for page in PAGES for command in commands.pip_installs(page)]
    assert len(shown) > 10
    assert {
        command: why for command in shown if (why := commands.pip_trouble(command))
    } == {}


def test_only_the_page_about_it_names_the_client_as_an_index_would() -> None:
    """No other page or text in the code shows a requirement that pip does not find."""
    files = [
        ROOT / file
        for file in tracked_files("*.md", "*.py", "*.html", "*.toml", "script/*")
        if not file.is_relative_to("tests") and file.name != "CHANGELOG.md"
    ]
    naming = [
        str(file.relative_to(ROOT))
        for file in files
        if re.search(r"catmq[-_]client\[|install ['\"]?catmq[-_]client\b", file.read_text())
    ]
    assert naming == ["docs/how-to/install-the-client.md"]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("pip install 'catmq-client[django]'", "on no index"),
        ("pip install -q catmq-client", "on no index"),
        (".venv/bin/python -m pip install catmq_client", "on no index"),
        ("pip install './client[djang]'", "no extra djang"),
        ("pip install ./client[django]", "quotation marks"),
        ("pip install '../client[django]'", "not the client of a checkout"),
        (
            "pip install './catmq_client-0.0.1-py3-none-any.whl[django]'",
            "script/build writes",
        ),
        ("pip install --no-index --find-links wheels 'catmq-client[django]'", ""),
        ("pip install './client[django,fast]'", ""),
        ("pip install mysqlclient", ""),
    ],
)
def test_a_call_of_pip_that_installs_nothing_of_ours_is_found(
    command: str, why: str
) -> None:
    said = commands.pip_trouble(ShownCommand("here", command, True))
    assert (why in said) if why else said == ""


def test_the_page_about_installing_has_every_extra() -> None:
    page = (ROOT / "docs/how-to/install-the-client.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(
        commands.EXTRAS
    )


def joined(file: Path) -> str:
    """A page as it is; of a catalog, texts that go over several lines in one."""
    return file.read_text().replace('"\n"', "")


@pytest.mark.parametrize(
    "text",
    [
        "catmq topics list",
        "catmq group stop billing",  # a former name
        "catmq find orders --form -2h",
        "catmq topic create orders --queues many",
        "manage.py register_node failures --engine mysql",
        "manage.py do_it",
        "script/none",
        "script/server --dta var",
        "script/bench matrix --ways plain",
        "python examples/none.py",
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str) -> None:
    assert trouble(ShownCommand("here", text, True)) != ""


def test_a_command_goes_on_behind_a_backslash_and_in_an_open_quotation() -> None:
    block = "# that is one\ncatmq send t \\\n  --key k 'a\n  b; c' \\\n  --wrong\nls\n"
    assert list(commands.statements(block)) == [
        "# that is one",
        "catmq send t    --key k 'a\n  b; c'    --wrong",
        "ls",
    ]
    (told,) = [part for one in commands.statements(block) for part in commands.parts(one)]
    assert "--wrong" in trouble(ShownCommand("here", told, True))
    with pytest.raises(ValueError, match="without its end"):
        list(commands.statements("catmq send t 'a\n"))


def test_commands_are_found_in_shell_and_in_sentences(tmp_path: Path) -> None:
    line = (
        "X=1 catmq send t 'a; b' --key k && echo x | catmq peek t > file  # catmq nothing"
    )
    assert list(commands.parts(line)) == ["catmq send t 'a; b' --key k", "catmq peek t"]
    said = (
        "Move it: catmq offsets reset GROUP TOPIC --to latest, then catmq lag {group}. "
        "Or `manage.py verify`."
    )
    assert [one.text for one in commands.in_sentences("x", said)] == [
        "catmq offsets reset GROUP TOPIC --to latest",
        "catmq lag x1",
        "manage.py verify",
    ]


def test_files_that_git_does_not_track_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("docs/a b.md", "stray.md", "removed.md", "code.py"):
        (tmp_path / name).touch()
    for command in (["init", "-q"], ["add", "docs/a b.md", "removed.md", "code.py"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "removed.md").unlink()
    assert tracked_files("*.md", root=tmp_path) == [Path("docs/a b.md")]
