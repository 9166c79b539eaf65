"""Hooks of mkdocs.yml: README.md files make the navigation; no page loads a file of another
site.

The project's own README and what stands beside it are pages, too. Their links are made to
fit; one to a file that is no page of the site is only its text there.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(
    r"^(?:\* |\| )\[([^]]+)\]\(([\w/.-]+\.md)\)(?: \| ([^|]+) \|)?", re.MULTILINE
)
HEADING = re.compile(r"^## (.+)\n", re.MULTILINE)
LOADED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
)
TARGET = re.compile(r"\[([^]]*)\]\(([\w/.-]+)(#[\w-]+)?\)")
# File beside docs/ → (its page, its title in the navigation).
PROJECT = {
    "README.md": ("project/overview.md", "README"),
    "README.zh-CN.md": ("project/overview.zh-CN.md", "简体中文"),
    "CHANGELOG.md": ("project/changelog.md", "Changelog"),
    "CONTRIBUTING.md": ("project/contributing.md", "Contributing"),
    "SECURITY.md": ("project/security.md", "Security"),
}
log = logging.getLogger("mkdocs.hooks.docs_site")


def on_config(config: Any) -> None:
    """Set the navigation: the folders that docs/README.md lists, each with the pages that
    its index lists, and the project's pages."""
    docs = Path(config.docs_dir)
    rooms = LINK.findall((docs / "README.md").read_text())
    project = [{title: page} for page, title in PROJECT.values()]
    config.nav = [
        {"Start": "README.md"},
        *({title: room(docs, index)} for title, index, _ in rooms),
        {"Project": project},
    ]


def room(docs: Path, index: str) -> list[Any]:
    """List the pages of a folder, below the headings of its index."""
    folder = index.rpartition("/")[0]
    first, *rest = HEADING.split((docs / index).read_text())
    entries: list[Any] = [index, *pages(folder, first)]
    for heading, text in zip(rest[::2], rest[1::2], strict=True):
        below = pages(folder, text)
        entries += [{heading: below}] if below else []
    return entries


def pages(folder: str, text: str) -> list[dict[str, str]]:
    """Return {title: path} of each page that a list or a table of decisions begins a line
    with.
    """
    return [
        {f"{name} {title}".strip(): f"{folder}/{path}"}
        for name, path, title in LINK.findall(text)
    ]


def on_files(files: Files, config: Any) -> Files:
    """Add the portal's mark, the one picture that is not below docs/, and the project's
    pages.
    """
    root = Path(config.config_file_path).parent
    mark = root / "portal/static/portal/mark.svg"
    files.append(File.generated(config, mark.name, abs_src_path=str(mark)))
    for name, (page, _) in PROJECT.items():
        files.append(
            File.generated(
                config, page, content=TARGET.sub(_moved, (root / name).read_text())
            )
        )
    return files


def _moved(link: re.Match[str]) -> str:
    """Return a link of a page that was moved from the root to docs/project/."""
    text, path, anchor = link[1], link[2], link[3] or ""
    if path.startswith("docs/"):
        return f"[{text}](../{path.removeprefix('docs/')}{anchor})"
    if path in PROJECT:
        return f"[{text}]({PROJECT[path][0].removeprefix('project/')}{anchor})"
    return text


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn, and so fail a strict build, where a page loads a script, a style or a picture
    of another site.
    """
    for url in LOADED.findall(output):
        log.warning("%s loads %s, a file of another site", page.file.src_uri, url)
    return output
