"""Hooks of mkdocs.yml: README.md files make the navigation; no page loads a file of another site."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"^(?:\* |\| )\[([^]]+)\]\(([\w/.-]+\.md)\)(?: \| ([^|]+) \|)?", re.MULTILINE)
HEADING = re.compile(r"^## (.+)\n", re.MULTILINE)
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")
log = logging.getLogger("mkdocs.hooks.docs_site")


def on_config(config: Any) -> None:
    """Set the navigation: the folders that docs/README.md lists, each with the pages that its index lists."""
    docs = Path(config.docs_dir)
    rooms = LINK.findall((docs / "README.md").read_text())
    config.nav = [{"Start": "README.md"}, *({title: room(docs, index)} for title, index, _ in rooms)]


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
    """Return {title: path} of each page that a list or a table of decisions begins a line with."""
    return [{f"{name} {title}".strip(): f"{folder}/{path}"} for name, path, title in LINK.findall(text)]


def on_files(files: Files, config: Any) -> Files:
    """Add the portal's mark, the one picture that is not below docs/."""
    mark = Path(config.config_file_path).parent / "portal/static/portal/mark.svg"
    files.append(File.generated(config, mark.name, abs_src_path=str(mark)))
    return files


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn, and so fail a strict build, where a page loads a script, a style or a picture of another site."""
    for url in LOADED.findall(output):
        log.warning("%s loads %s, a file of another site", page.file.src_uri, url)
    return output
