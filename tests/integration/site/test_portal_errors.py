"""Errors are pages inside the frame for who logged in, and alone for others; each says what
to do.
"""

from __future__ import annotations

import logging
import re

import pytest
from django.test import Client

from metadata.errors import Code
from metadata.listing import overview_lists
from portal.auth import error_texts
from tests.support.forms import browser, text

pytestmark = pytest.mark.one_engine

PAGE = {"accept": "text/html"}


@pytest.fixture
def ada(metadata_db: None) -> Client:
    """An administrator's browser, which shows what a server answers to an error that nobody
    expected.
    """
    made = browser("ada", administrator=True)
    made.raise_request_exception = False
    return made


def test_an_unexpected_error_is_a_page_in_the_frame_whose_id_finds_the_traceback(
    ada: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_words: object) -> None:
        raise RuntimeError("a secret of the database")

    monkeypatch.setattr(overview_lists, "overview", broken)
    with caplog.at_level(logging.ERROR):
        answer = ada.get("/", headers=PAGE)
    page = text(answer)
    assert answer.status_code == 500 and "Server error" in page and 'class="side"' in page
    assert "a secret" not in page and "Traceback" not in page
    found = re.search(r"under the id ([0-9a-f]{16})", page)
    assert found is not None
    (record,) = [one for one in caplog.records if found[1] in one.getMessage()]
    assert record.exc_info is not None and isinstance(record.exc_info[1], RuntimeError)
    chinese = text(ada.get("/", headers={**PAGE, "accept-language": "zh-hans"}))
    assert "Server error" not in chinese and "The log" not in chinese


def test_an_unexpected_error_of_a_stranger_is_a_page_without_the_frame(
    ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_given: object, **_words: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("portal.auth.logins.LoginForm.__init__", broken)
    stranger = Client(raise_request_exception=False)
    answer = stranger.get("/login", headers=PAGE)
    assert answer.status_code == 500 and 'class="side"' not in text(answer)


@pytest.mark.parametrize(
    "path", ["/nowhere", "/topics/none", "/groups/none", "/messages/none/1-1", "/runs/9"]
)
def test_what_is_not_there_is_a_page_in_the_frame(ada: Client, path: str) -> None:
    answer = ada.get(path, headers=PAGE)
    assert answer.status_code == 404 and 'class="side"' in text(answer)
    assert "Back to overview" in text(answer) and 'href="/search"' in text(answer)


def test_what_the_engine_refuses_is_said_in_chinese_first(ada: Client) -> None:
    """The sentence of the engine stands behind it, so that its values are not lost."""
    page = text(ada.get("/groups/none", headers={**PAGE, "accept-language": "zh-CN"}))
    assert "消费组不存在。 Group none does not exist" in page
    assert "消费组不存在" not in text(ada.get("/groups/none", headers=PAGE))


def test_every_code_of_a_refusal_that_a_page_can_meet_has_words() -> None:
    of_programs = {  # told to programs only
        "method_not_allowed", "unsupported_media_type", "not_acceptable", "url_not_found",
        "group_running",
        "foreign_keys", "internal", "request_timeout",
    }  # fmt: skip
    assert {str(one) for one in Code} - {
        str(one) for one in error_texts.SENTENCES
    } == of_programs


@pytest.mark.parametrize(
    ("origin", "secure", "said"),
    [
        ("https://testserver", False, "Set CATMQ_TRUSTED_PROXIES"),
        ("http://elsewhere", False, "let it pass the Host header on"),
        ("https://testserver", True, "reload the page and try again"),
    ],
)
def test_a_form_that_a_proxy_spoils_names_the_setting(
    metadata_db: None, origin: str, secure: bool, said: str
) -> None:
    client = Client(enforce_csrf_checks=True)
    answer = client.post(
        "/login", {"username": "ada"}, secure=secure, headers={"origin": origin}
    )
    assert answer.status_code == 403 and said in text(answer)
