"""Fixtures of all tests of the portal and of commands."""

from __future__ import annotations

import pytest

from messagestore.verify import run


@pytest.fixture(autouse=True)
def second_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the second look of a check: nothing is under way here."""
    monkeypatch.setattr(run, "AGAIN_AFTER_S", 0.01)
