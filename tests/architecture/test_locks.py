"""requirements*.lock: every package that requirements*.txt need, pinned and with hashes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.support.environment import ROOT

PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
LISTS = sorted(ROOT.glob("requirements*.txt"))


def name(text: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", text).lower()


def pins(path: Path) -> dict[str, str]:
    """{package: version}."""
    return {name(found[0]): found[1] for found in PIN.findall(path.read_text())}


@pytest.mark.parametrize("wanted", LISTS, ids=lambda path: path.name)
def test_a_lock_is_made_from_its_list(wanted: Path) -> None:
    lock = wanted.with_suffix(".lock")
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    assert f"from {wanted.name}, sha256 {digest}" in lock.read_text(), "run script/lock"
    assert pins(wanted).items() <= pins(lock).items()


@pytest.mark.parametrize(
    "lock", sorted(ROOT.glob("requirements*.lock")), ids=lambda path: path.name
)
def test_everything_in_a_lock_is_pinned_and_has_hashes_and_no_registry_is_named(
    lock: Path,
) -> None:
    text = lock.read_text()
    assert lock.with_suffix(".txt") in LISTS
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.partition("\n")[2])
    assert len(entries) == len(pins(lock))
    assert [
        entry for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)
    ] == []
    assert not re.search(r"https?:|index-url|find-links", text)


def test_packages_of_several_locks_have_one_version() -> None:
    seen: dict[str, str] = {}
    for wanted in LISTS:
        for package, version in pins(wanted.with_suffix(".lock")).items():
            assert seen.setdefault(package, version) == version, package
