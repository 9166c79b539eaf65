"""The portal under attack: wrong passwords cost little and leave little, and no text breaks
a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client, RequestFactory

from messagestore.engine.messages import NewMessage
from messagestore.produce import publish
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from portal.auth import logins
from portal.kit import bodies
from portal.views.messages.sending import SendForm
from tests.support.forms import browser, text

pytestmark = pytest.mark.one_engine

ME = command("test")
RIGHT = "the right password of hers"


@pytest.fixture
def hers(metadata_db: None) -> Iterator[None]:
    """An account to break into, which nobody has tried."""
    AccessAttempt.objects.all().delete()
    get_user_model().objects.create_user(username="ada", password=RIGHT)
    yield
    AccessAttempt.objects.all().delete()


def try_out(
    name: str, password: str = "wrong", *, address: str = "192.0.2.1", agent: str = "x"
) -> int:
    """The status of a try to log in."""
    answer = Client(REMOTE_ADDR=address, HTTP_USER_AGENT=agent).post(
        "/login?next=/" + "q" * 1000,
        {"username": name, "password": password, "more": "p" * 1000},
    )
    return answer.status_code


@pytest.mark.usefixtures("hers")
@pytest.mark.parametrize("path", ["/login", "/admin/login/"])
def test_an_address_that_was_wrong_for_too_many_names_is_locked_out(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(logins, "PER_ADDRESS", 16)
    for number in range(16):
        try_out(f"somebody-{number}", agent=f"agent-{number}")

    assert try_out("ada", RIGHT) == 429
    form = {"username": "ada", "password": RIGHT}
    assert Client(REMOTE_ADDR="192.0.2.1").post(path, form).status_code == 429
    assert try_out("ada", RIGHT, address="192.0.2.2") == 302, "others are not"


@pytest.mark.usefixtures("hers")
def test_a_wrong_password_leaves_one_small_row_however_often_it_is_tried() -> None:
    for _ in range(20):
        try_out("ada", agent="a" * 200)

    row = AccessAttempt.objects.get()
    assert row.failures_since_start == logins.PER_NAME, (
        "what is refused is not counted, so the lock ends"
    )
    kept = f"{row.get_data}{row.post_data}{row.http_accept}{row.user_agent}"
    assert "q" not in kept and "p" not in kept and len(kept) < 500


@pytest.mark.usefixtures("hers")
def test_of_too_many_wrong_tries_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logins, "MAX_REMEMBERED", 3)
    for number in range(8):
        try_out(f"somebody-{number}", address=f"192.0.2.{number}")

    assert set(AccessAttempt.objects.values_list("username", flat=True)) == {
        "somebody-5", "somebody-6", "somebody-7"
    }  # fmt: skip


@pytest.mark.usefixtures("hers")
def test_so_many_passwords_are_checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "WAIT_S", 0.01)
    with logins.turn():
        answer = Client().post("/login", {"username": "ada", "password": RIGHT})
        assert answer.status_code == 503 and "Try again" in text(answer)

    assert (
        Client().post("/login", {"username": "ada", "password": RIGHT}).status_code == 302
    )


@pytest.mark.parametrize("body", [rb'"\ud800"', rb'{"a": ["\udfff"]}', b'"\xed\xa0\x80"'])
def test_half_a_character_is_shown_as_it_is_stored(node: str, body: bytes) -> None:
    topics.create(name="odd", queues=1, actor=ME)
    snapshot.refresh()
    (run,) = publish.send(
        topic="odd", messages=[NewMessage(body=body)], batch_id=None, actor=ME
    )
    ada = browser("ada", administrator=True)
    page = ada.get(f"/messages/odd/{run.fate.queue}-{run.fate.offset}")

    assert page.status_code == 200
    assert bodies.render_body(body).kind in ("text", "bytes")
    assert ada.get("/messages?topic=odd").status_code == 200


def headers(typed: str) -> object:
    """Return what a form makes of typed headers; None if it refuses them."""
    form = SendForm(
        {"headers": typed, "body": "x", "batch": "01890a5d-ac96-774b-bcce-b302099a8057"}
    )
    return form.cleaned_data["headers"] if form.is_valid() else None


def test_headers_are_read_in_one_pass_however_they_are_spaced() -> None:
    assert headers(" a : b: c \n\nd:e\nf:") == {"a": "b: c", "d": "e", "f": ""}
    assert headers(f"a{' ' * 2_000_000}b") is None
    assert headers(": x") is None


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The log's lines, written as the server writes them."""
    from catmq_site.logs import FORMAT, OneLine

    return lambda: [OneLine(FORMAT).format(record) for record in caplog.records]


def test_a_url_forges_no_line_of_the_log(
    metadata_db: None, said: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    browser("ada", administrator=True).get(
        "/topics/x%0a2026-01-01%20ERROR%20forged%0d%1b[2J"
    )

    lines = [line for line in said() if "forged" in line]
    assert lines and all(line.isprintable() for line in lines)


class Unread:
    """The stream of a body that must not be read."""

    def read(self, *args: object) -> bytes:
        raise AssertionError("the body was read")

    readline = read


def send_form(client: Client, path: str, length: int) -> object:
    """Post a form whose body fails the test when it is read."""
    client.cookies["csrftoken"] = "a" * 32
    kind = "multipart/form-data; boundary=B"
    return client.generic(
        "POST",
        path,
        content_type=kind,
        CONTENT_LENGTH=str(length),
        **{"wsgi.input": Unread()},
    ).status_code


@pytest.mark.parametrize(
    "path", ["/login", "/admin/login/", "/language", "/theme", "/create/topic"]
)
def test_a_large_form_is_refused_unread_without_a_login(
    metadata_db: None, path: str
) -> None:
    assert send_form(Client(enforce_csrf_checks=True), path, (64 << 10) + 1) == 413


def test_a_form_that_is_too_large_is_refused_unread(metadata_db: None) -> None:
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0
    assert send_form(browser("ada", administrator=True), "/create/topic", limit + 1) == 413


def test_an_uploaded_file_is_not_kept(metadata_db: None) -> None:
    form = {"username": "ada", "f": SimpleUploadedFile("f.bin", b"x" * 50_000)}
    request = RequestFactory().post("/login", form)

    assert request.POST["username"] == "ada"
    assert not request.FILES
