"""The documentation as a site: what is wrong in a page fails its build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import ROOT
from tests.support.tracked import tracked_files

PICTURE = "https://example.com/picture.png"
FAULTY = f"""# Faulty

A page that [is not there](nowhere.md), a heading that [is not there](handle-failures.md#nowhere),
a file [outside of docs](../../README.md).

![A picture of another site]({PICTURE})
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of everything that the site is made of."""
    directory = tmp_path_factory.mktemp("docs")
    for folder in ("docs", "script", "portal/static"):
        shutil.copytree(ROOT / folder, directory / folder)
    for file in tracked_files("mkdocs.yml", ":(glob)*.md"):
        shutil.copy(ROOT / file, directory)
    return directory


def build(copy: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as the gate does."""
    command = [str(Path(sys.executable).parent / "mkdocs"), "build"]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=copy, env=environ, capture_output=True, text=True, check=False
    )


def test_the_site_is_built_and_lists_every_page(copy: Path) -> None:
    done = build(copy)
    assert done.returncode == 0, done.stderr
    home = (copy / "build/docs/index.html").read_text()
    for page in (copy / "docs").rglob("*.md"):
        path = page.relative_to(copy / "docs").with_suffix(".html")
        built = str(path).replace("README", "index")
        assert (copy / "build/docs" / built).exists()
        assert f'href="{built}"' in home, f"{built} is not in the navigation"


def test_the_readme_is_a_page_whose_links_lead_to_pages(copy: Path) -> None:
    assert build(copy).returncode == 0
    page = (copy / "build/docs/project/overview.html").read_text()
    for link in (
        "../how-to/use-it-from-django.html",
        "../images/overview.png",
        "contributing.html",
    ):
        assert f'"{link}"' in page
        assert (copy / "build/docs/project" / link).exists()
    assert 'href="LICENSE' not in page


def test_a_broken_link_a_page_without_a_place_and_a_file_of_another_site_fail_the_build(
    copy: Path,
) -> None:
    (copy / "docs/how-to/faulty.md").write_text(FAULTY)
    done = build(copy)
    assert done.returncode == 1
    for told in (
        "'nowhere.md'",
        "an anchor '#nowhere'",
        "'../../README.md'",
        PICTURE,
        'not included in the "nav"',
    ):
        assert told in done.stderr
