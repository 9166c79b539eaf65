"""HttpTransport against small HTTP servers that break in chosen ways."""

from __future__ import annotations

import gzip
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import SSLError

from catmq_client.errors import AnswerLost, ConnectFailed, InvalidRequest, Unavailable
from catmq_client.http import wire
from catmq_client.http.connections import network_error
from catmq_client.http.transport import HttpTransport, api_path, request_until
from tests.support.answering import Answer, Server, answering, problem, unused_url


@pytest.fixture
def server() -> Iterator[Server]:
    with answering() as made:
        yield made


@pytest.fixture
def dead_url() -> str:
    return unused_url()


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Callable[..., HttpTransport]:
    def make(*args: Any, **options: Any) -> HttpTransport:
        transport = HttpTransport(*args, **{"discover": False, **options})
        request.addfinalizer(transport.close)
        return transport

    return make


Connect = Callable[..., HttpTransport]


def test_a_request_carries_key_body_and_parameters(
    server: Server, connect: Connect
) -> None:
    transport = connect(server.url + "/", api_key="secret", codec=wire.JsonCodec())
    answer = transport.request(
        "POST", api_path("topics", "a b"), body={"x": 1}, params={"confirm": "a b"}
    )
    seen = server.requests[0]
    assert answer == {"ok": 1}
    assert seen["path"] == "/api/v1/topics/a%20b?confirm=a+b"
    assert seen["headers"]["Authorization"] == "Bearer secret"
    assert "Transfer-Encoding" not in seen["headers"]
    assert json.loads(seen["body"]) == {"x": 1}


def test_proxies_passwords_and_certificates_of_the_environment_are_not_used(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    of_environment = dict.fromkeys(
        ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), unused_url()
    )
    of_environment |= {
        "NETRC": str(netrc),
        "REQUESTS_CA_BUNDLE": "/nowhere",
        "NO_PROXY": "",
        "no_proxy": "",
    }
    for name, value in of_environment.items():
        monkeypatch.setenv(name, value)
    transport = connect(server.url, api_key="secret")
    assert transport.request("GET", "/x") == {"ok": 1}
    assert server.requests[0]["headers"]["Authorization"] == "Bearer secret"
    assert not transport._session_of_process().trust_env


def test_a_request_leaves_in_one_piece(connect: Connect) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    got: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            got.append(client.recv(65_536))
            client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener,))
        serving.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        connect(url, codec=wire.JsonCodec()).request("POST", "/x", body={"x": 1})
        serving.join()

    assert got[0].endswith(b'\r\n\r\n{"x":1}')


def test_messagepack_is_spoken_when_msgspec_is_there(
    server: Server, connect: Connect
) -> None:
    codec = wire.MsgpackCodec()
    server.answer = lambda request: (
        200,
        wire.MSGPACK,
        codec.encode(codec.decode(request["body"])),
    )
    answer = connect(server.url).request(
        "POST", "/x", body={"messages": [{"body_bytes": b"\xff"}]}
    )
    assert server.requests[0]["headers"]["Content-Type"] == "application/msgpack"
    assert answer == {"messages": [{"body_bytes": b"\xff"}]}


def test_connections_are_kept_alive(server: Server, connect: Connect) -> None:
    transport = connect(server.url)
    for _ in range(5):
        transport.request("GET", "/x")
    assert len(server.peers) == 1


def test_large_bodies_are_compressed_on_request(server: Server, connect: Connect) -> None:
    transport = connect(server.url, compression="gzip", codec=wire.JsonCodec())
    transport.request("POST", "/x", body={"x": "y" * 5000})
    assert server.requests[0]["headers"]["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(server.requests[0]["body"])) == {"x": "y" * 5000}


def test_a_dead_broker_is_passed_over(
    server: Server, dead_url: str, connect: Connect
) -> None:
    for _ in range(8):
        assert connect([dead_url, server.url]).request("GET", "/x") == {"ok": 1}


def test_a_request_goes_first_where_it_is_told_to(
    server: Server, dead_url: str, connect: Connect
) -> None:
    other = Server()
    transport = connect([server.url, other.url])
    for one in (server, other, server, other):
        transport.request("GET", "/x", first=one.url)
    other.close()
    assert len(server.requests) == len(other.requests) == 2
    assert connect([dead_url, server.url]).request("GET", "/x", first=dead_url) == {"ok": 1}


def test_no_living_broker_means_connect_failed(dead_url: str, connect: Connect) -> None:
    with pytest.raises(ConnectFailed) as caught:
        connect([dead_url, dead_url]).request("POST", "/x", body={})
    assert caught.value.retriable
    assert not caught.value.outcome_unknown


def test_a_cut_connection_leaves_the_outcome_unknown_and_is_not_repeated(
    server: Server, connect: Connect
) -> None:
    server.answer = lambda request: None
    with pytest.raises(AnswerLost) as caught:
        connect([server.url, server.url]).request("POST", "/x", body={})
    assert caught.value.outcome_unknown
    assert len(server.requests) == 1


def test_after_a_lost_answer_the_next_request_goes_to_another_broker(
    server: Server, connect: Connect
) -> None:
    other = Server()
    server.answer = lambda request: None
    transport = connect([server.url, other.url])
    outcomes = []
    for _ in range(3):
        try:
            outcomes.append(transport.request("GET", "/x"))
        except AnswerLost:
            outcomes.append({})
    other.close()
    assert outcomes[1:] == [{"ok": 1}] * 2 or outcomes == [{"ok": 1}] * 3


def test_a_silent_broker_is_given_up_after_the_time_limit(
    server: Server, connect: Connect
) -> None:
    answered = threading.Event()

    def silent(request: dict[str, Any]) -> Answer:
        answered.wait(5)
        return None

    server.answer = silent
    with pytest.raises(AnswerLost):
        connect(server.url).request("GET", "/x", timeout_s=0.1)
    answered.set()


def test_a_draining_broker_is_left_at_once(server: Server, connect: Connect) -> None:
    draining = Server()
    draining.answer = lambda request: problem(503, "draining", retriable=True)
    for _ in range(8):
        assert connect([draining.url, server.url]).request("GET", "/x") == {"ok": 1}
    draining.close()


def test_a_problem_is_raised_with_its_code_and_fields(
    server: Server, connect: Connect
) -> None:
    server.answer = lambda request: problem(
        400, "invalid", errors=[{"field": "a", "message": "b"}]
    )
    with pytest.raises(InvalidRequest) as caught:
        connect(server.url).request("POST", "/x", body={})
    assert caught.value.errors[0].field == "a"


def test_a_gateways_page_is_an_unknown_outcome(server: Server, connect: Connect) -> None:
    server.answer = lambda request: (502, "text/html", b"<h1>Bad Gateway</h1>")
    with pytest.raises(AnswerLost):
        connect(server.url).request("POST", "/x", body={})


def test_a_redirect_is_not_followed(server: Server, connect: Connect) -> None:
    server.answer = lambda request: (302, "text/html", b"")
    with pytest.raises(ConnectFailed) as caught:
        connect(server.url).request("GET", "/x")
    assert not caught.value.retriable


def test_an_answer_that_cannot_be_read_is_an_unknown_outcome(
    server: Server, connect: Connect
) -> None:
    server.answer = lambda request: (200, "application/json", b"{")
    with pytest.raises(AnswerLost):
        connect(server.url).request("GET", "/x")


def test_no_content_is_an_empty_answer(server: Server, connect: Connect) -> None:
    server.answer = lambda request: (204, "text/plain", b"")
    assert connect(server.url).request("DELETE", "/x") == {}


def test_a_forked_process_opens_connections_of_its_own(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = connect(server.url)
    transport.request("GET", "/x")
    parent = transport._process_session
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    transport.request("GET", "/x")
    assert len(server.peers) == 2
    assert parent is not None
    parent[1].close()


def test_request_until_repeats_what_is_worth_repeating(
    server: Server, connect: Connect
) -> None:
    answers = [problem(503, "busy", retriable=True), None, (200, "application/json", b"{}")]
    server.answer = lambda request: answers.pop(0)
    waits: list[float] = []
    assert (
        request_until(connect(server.url), "GET", "/x", within_s=10, wait=waits.append)
        == {}
    )
    assert len(waits) == 2


def test_request_until_gives_up_in_time(server: Server, connect: Connect) -> None:
    server.answer = lambda request: problem(503, "busy", retriable=True)
    with pytest.raises(Unavailable):
        request_until(connect(server.url), "GET", "/x", within_s=0.0)
    assert len(server.requests) == 1


def test_a_broker_that_says_not_now_is_left_for_the_next_request_and_not_repeated(
    server: Server, connect: Connect
) -> None:
    other = Server()
    try:
        server.answer = lambda request: problem(503, "metadata_unavailable", retriable=True)
        transport = connect([server.url, other.url])
        transport._brokers.current = server.url
        with pytest.raises(Unavailable) as caught:
            transport.request("POST", "/x", body={})
        assert caught.value.brokers == (server.url,)
        assert other.requests == []
        assert transport.request("POST", "/x", body={}) == {"ok": 1}
    finally:
        other.close()


def _of_tls(reason: BaseException) -> SSLError:
    return SSLError(reason)  # type: ignore[arg-type]


def test_a_refused_certificate_means_that_nothing_was_sent() -> None:
    error = network_error(
        _of_tls(ssl.SSLCertVerificationError(1, "self-signed")), "https://x"
    )
    assert isinstance(error, ConnectFailed)
    assert not error.retriable


def test_an_extension_that_a_certificate_lacks_is_named_with_what_to_do() -> None:
    for reason in (
        "Missing Authority Key Identifier",
        "CA cert does not include key usage extension",
    ):
        said = f"certificate verify failed: {reason} (_ssl.c:1032)"
        error = network_error(_of_tls(ssl.SSLCertVerificationError(1, said)), "https://x")
        assert reason in str(error) and "openssl verify -x509_strict" in str(error)
    other = network_error(
        _of_tls(ssl.SSLCertVerificationError(1, "certificate has expired")), "https://x"
    )
    assert "extension" not in str(other)


def test_tls_that_breaks_later_leaves_the_outcome_unknown() -> None:
    damaged = ssl.SSLError(1, "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC]")
    for reason in (damaged, SSLError(damaged), ssl.SSLEOFError(8, "EOF occurred")):
        error = network_error(_of_tls(reason), "https://x")
        assert isinstance(error, AnswerLost)
        assert error.outcome_unknown


def test_speaking_tls_to_a_plain_server_is_told_at_once(
    server: Server, connect: Connect
) -> None:
    with pytest.raises(ConnectFailed) as caught:
        connect(server.url.replace("http:", "https:")).request("GET", "/x")
    assert not caught.value.retriable


def test_threads_of_a_process_share_one_set_of_connections(connect: Connect) -> None:
    transport = connect("http://127.0.0.1:1")
    together = threading.Barrier(8)

    def look(_: int) -> object:
        together.wait(10)
        return transport._session_of_process()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(look, range(8))))) == 1
