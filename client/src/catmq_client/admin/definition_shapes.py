"""Answers about definitions: the document of an export, the steps of an import."""

from __future__ import annotations

from typing import Any, TypedDict


class Definitions(TypedDict):
    """Topics, groups and subscriptions of an installation, for an import elsewhere."""

    version: int
    topics: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    subscriptions: list[dict[str, Any]]


class Difference(TypedDict):
    """A field whose value `there`, in the document, differs from the one `here`."""

    field: str
    here: Any
    there: Any


class ImportStep(TypedDict):
    """An entry of a document.

    `outcome` is create, change, same, keep, conflict or unfinished.
    """

    place: str
    kind: str
    name: str
    outcome: str
    problem: str
    differences: list[Difference]


class Imported(TypedDict):
    """Result of an import, or with `dry_run` its preview."""

    dry_run: bool
    steps: list[ImportStep]
