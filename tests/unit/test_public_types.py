"""tests/public_types.py: blocks of pages become modules at the lines of the page."""

from __future__ import annotations

import pytest

from tests import public_types


def test_every_block_of_a_page_is_in_a_module_at_its_lines() -> None:
    page = "docs/how-to/use-it-from-django.md"
    lines = (public_types.ROOT / page).read_text().splitlines()
    modules = public_types.modules(page)
    assert {"shop/settings.py", "orders/models.py", "orders/tests.py"} <= modules.keys()
    for file in ("orders/models.py", "orders/billing.py", "orders/tests.py"):
        module = modules[file].splitlines()
        assert any(line.startswith("def ") or "class " in line for line in module)
        for number, line in enumerate(module):
            assert not line or lines[number].strip() == line.strip()


def test_blocks_without_a_file_are_one_module_with_the_context_of_the_page() -> None:
    modules = public_types.modules("docs/how-to/test-without-a-broker.md")
    text = modules["page.py"]
    assert text.startswith("from page_context import *\n")
    assert "def test_mails_of_a_dead_worker" in text and "def broker()" in text


def test_blocks_of_a_page_of_programs_are_modules_of_their_own() -> None:
    (page,) = public_types.SEPARATE
    assert len([file for file in public_types.modules(page) if "page_" in file]) > 2


def test_every_entry_about_a_page_names_a_page_with_blocks() -> None:
    pages = {*public_types.pages()}
    assert {"README.md", "README.zh-CN.md", "docs/reference/client.md"} <= pages
    for table in (public_types.SKIPPED, public_types.CONTEXT, public_types.FILES):
        assert table.keys() <= pages
    assert public_types.ACCEPTED.keys() <= pages | {"examples-shop", "examples-fastapi"}
    assert pages >= public_types.SEPARATE


def test_a_checker_that_accepts_a_wrong_use_is_reported() -> None:
    lines = public_types.textwrap.dedent(public_types.WRONG_USES).splitlines()
    wrong = [number for number, line in enumerate(lines, 1) if line.endswith("# wrong")]
    errors = [f"uses.py:{number}: error: x" for number in wrong]
    assert public_types.compare_wrong_uses("mypy", errors) == []
    assert public_types.compare_wrong_uses("mypy", errors[1:]) == [
        f"mypy accepts: {lines[wrong[0] - 1].strip()}"
    ]
    assert public_types.compare_wrong_uses("mypy", [*errors, "uses.py:2: error: x"]) == [
        f"mypy refuses: {lines[1].strip()}"
    ]


def test_an_entry_whose_errors_are_gone_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(public_types, "ACCEPTED", {"docs/a.md": ("odd", "a reason")})
    error = "/x/docs/a.md/page.py:3: error: odd"
    other = "/x/docs/b.md/page.py:3: error: odd"
    assert public_types.without_accepted([error, other]) == [other]
    assert "docs/a.md: 1 errors are accepted: a reason" in capsys.readouterr().out
    (gone,) = public_types.without_accepted([])
    assert gone == "docs/a.md has no such errors any more: remove it from ACCEPTED"
