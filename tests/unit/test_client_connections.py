"""What the client writes on its connections, when it keeps them, and what becomes of broken
answers.
"""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from urllib3 import HTTPConnectionPool

from catmq_client.cli.main import main
from catmq_client.errors import (
    MOST_PAUSE_MS,
    AnswerLost,
    CatmqError,
    ConnectFailed,
    OptionError,
    from_problem,
)
from catmq_client.http import transport, wire
from catmq_client.http.connections import _PlainConnection, _TlsConnection, send_whole
from catmq_client.http.transport import HttpTransport
from tests.support.verbatim import Verbatim, verbatim

OK = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n"
    + b'{"ok":1}'
)
Connect = Callable[..., HttpTransport]


@pytest.fixture
def server() -> Iterator[Verbatim]:
    with verbatim() as made:
        made.answer = lambda request: OK
        yield made


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Connect:
    def make(*args: Any, **options: Any) -> HttpTransport:
        transport = HttpTransport(
            *args, **{"discover": False, "codec": wire.JsonCodec(), **options}
        )
        request.addfinalizer(transport.close)
        return transport

    return make


class Tls(NamedTuple):
    """What a server speaks TLS with, and the file in which its clients find its
    certificate.
    """

    context: ssl.SSLContext
    certificate: str


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    home: Path = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number()
    )
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(
        now + timedelta(days=1)
    )
    names = [x509.DNSName("broker.example"), x509.IPAddress(ip_address("127.0.0.1"))]
    made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    (home / "cert").write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (home / "key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home / "cert", home / "key")
    return Tls(context, str(home / "cert"))


def head(request: bytes) -> list[str]:
    """The request line and the headers of a request."""
    return request.partition(b"\r\n\r\n")[0].decode().split("\r\n")


def hosts(request: bytes) -> list[str]:
    return [
        line.partition(": ")[2]
        for line in head(request)
        if line.lower().startswith("host:")
    ]


def test_a_request_is_written_as_http_wants_it(server: Verbatim, connect: Connect) -> None:
    connect(server.url, api_key="secret").request(
        "POST", "/a b", body={"x": 1}, params={"y": "ö\r\n"}
    )
    line, *fields = head(server.requests[0])
    assert line == "POST /a%20b?y=%C3%B6%0D%0A HTTP/1.1"
    assert fields[0] == f"Host: 127.0.0.1:{server.port}"
    assert {
        "Authorization: Bearer secret",
        "Content-Length: 7",
        "Accept-Encoding: identity",
    } < set(fields)
    names = [field.partition(":")[0].lower() for field in fields]
    assert len(names) == len(set(names))
    assert server.requests[0].endswith(b'\r\n\r\n{"x":1}')


def test_a_request_without_a_body_says_so_where_one_is_expected(
    server: Verbatim, connect: Connect
) -> None:
    transport = connect(server.url)
    for method in ("POST", "PATCH", "GET", "DELETE"):
        transport.request(method, "/x")
    told = ["Content-Length: 0" in head(request) for request in server.requests]
    assert told == [True, True, False, False]


@pytest.mark.parametrize(
    ("kind", "host", "port", "shown"),
    [
        (_PlainConnection, "broker", 80, "broker"),
        (_PlainConnection, "broker", 443, "broker:443"),
        (_PlainConnection, "broker", 8000, "broker:8000"),
        (_PlainConnection, "broker", None, "broker"),
        (_TlsConnection, "broker", 443, "broker"),
        (_TlsConnection, "broker", 80, "broker:80"),
        (_PlainConnection, "::1", 80, "[::1]"),
        (_PlainConnection, "::1", 8000, "[::1]:8000"),
        (_PlainConnection, "[::1]", 8000, "[::1]:8000"),
    ],
)
def test_the_host_is_told_with_its_port_unless_that_is_the_usual_one(
    kind: Any, host: str, port: int | None, shown: str
) -> None:
    assert kind(host, port)._host_header("/x") == shown


@pytest.mark.parametrize(("host", "shown"), [("broker", "broker"), ("::1", "[::1]")])
def test_the_host_behind_a_tunnel_is_that_of_the_broker(host: str, shown: str) -> None:
    connection = _TlsConnection("proxy", 3128)
    connection.set_tunnel(host, 443)
    assert connection._host_header("/x") == shown
    connection.set_tunnel(host, 8443)
    assert connection._host_header("/x") == f"{shown}:8443"


def test_the_host_that_a_proxy_is_told_has_no_password() -> None:
    assert (
        _PlainConnection("proxy", 3128)._host_header("http://ada:pass@broker:8000/x")
        == "broker:8000"
    )


def test_a_look_at_the_head_alone_waits_for_no_body(
    server: Verbatim, connect: Connect
) -> None:
    server.answer = lambda request: OK[:-8] if request.startswith(b"HEAD ") else OK
    transport = connect(server.url)
    assert [transport.request(method, "/x") for method in ("HEAD", "GET")] == [
        {},
        {"ok": 1},
    ]
    assert server.connections == 1


def test_a_proxy_gets_the_whole_url_and_the_host_in_it(
    server: Verbatim, connect: Connect
) -> None:
    proxy = server.url.replace("//", "//ada:pass@")
    transport = connect("http://broker.example:8000", proxies={"http": proxy})
    assert [transport.request("GET", "/x") for _ in range(2)] == [{"ok": 1}] * 2
    assert head(server.requests[0])[0] == "GET http://broker.example:8000/x HTTP/1.1"
    assert hosts(server.requests[0]) == ["broker.example:8000"]
    assert "Proxy-Authorization: Basic YWRhOnBhc3M=" in head(server.requests[0])
    assert server.connections == 1


def test_a_tunnel_is_kept_and_made_anew_after_its_end(tls: Tls, connect: Connect) -> None:
    with verbatim(tls=tls.context, tunnels=True) as proxy:
        proxy.answer = lambda request: (
            OK if b"/kept" in request else OK.replace(b"1.1", b"1.0", 1)
        )
        transport = connect(
            "https://broker.example", proxies={"https": proxy.url}, verify=tls.certificate
        )
        for path in ("/kept", "/last", "/kept"):
            assert transport.request("GET", path) == {"ok": 1}
        lines = [head(request)[0] for request in proxy.requests]
        tunnel = "CONNECT broker.example:443"
        assert [line.rpartition(" ")[0] for line in lines] == [
            tunnel, "GET /kept", "GET /last", tunnel, "GET /kept",
        ]  # fmt: skip
        assert hosts(proxy.requests[1]) == ["broker.example"]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_answer_that_is_lost_behind_a_proxy_leaves_the_outcome_unknown(
    tls: Tls, connect: Connect, scheme: str
) -> None:
    with verbatim(tls=tls.context, tunnels=True) as proxy:
        transport = connect(
            f"{scheme}://broker.example",
            proxies={scheme: proxy.url},
            verify=tls.certificate,
        )
        for answer in (None, bytearray(OK[:30])):
            proxy.answer = lambda request, answer=answer: answer
            with pytest.raises(AnswerLost) as caught:
                transport.request("POST", "/x", body={})
            assert caught.value.outcome_unknown
        proxy.answer = lambda request: OK
        assert transport.request("POST", "/x", body={}) == {"ok": 1}


def test_bytes_behind_an_answer_are_not_the_next_answer(
    server: Verbatim, connect: Connect
) -> None:
    surplus = OK.replace(b'{"ok":1}', b'{"ok":2}')
    server.answer = lambda request: OK + surplus
    transport = connect(server.url)
    assert [transport.request("GET", "/x") for _ in range(3)] == [{"ok": 1}] * 3
    assert server.connections == 3


@pytest.mark.parametrize("length", [8, 300_000])
def test_bytes_behind_an_answer_are_not_the_next_answer_within_tls(
    tls: Tls, connect: Connect, length: int
) -> None:
    body = b'{"ok":1}' + b" " * (length - 8)
    whole = OK.replace(b"Length: 8", b"Length: %d" % length).replace(b'{"ok":1}', body)
    with verbatim(tls=tls.context) as server:
        server.answer = lambda request: whole + OK.replace(b"1}", b"2}")
        transport = connect(server.url, verify=tls.certificate)
        assert [transport.request("GET", "/x") for _ in range(3)] == [{"ok": 1}] * 3


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        OK.replace(b"1.1", b"1.0", 1),
    ],
)
def test_a_connection_is_closed_that_the_broker_will_close(
    server: Verbatim, connect: Connect, answer: bytes
) -> None:
    server.answer = lambda request: answer
    transport = connect(server.url)
    assert [transport.request("GET", "/x") for _ in range(3)] == [{"ok": 1}] * 3
    assert server.connections == 3


BROKEN = {
    "nothing": b"",
    "half a head": OK[:30],
    "half a body": OK[:-3],
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "no number": OK.replace(b" 200 ", b" 2\xb20 "),
    "no header": OK.replace(b": 8", b" 8"),
    "no length": OK.replace(b": 8", b": eight"),
    "too long": OK.replace(b": 8", b": " + b"9" * 30),
    "no gzip": OK.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"),
    "no chunks": OK.replace(b"Content-Length: 8", b"Transfer-Encoding: chunked"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_leaves_the_outcome_unknown_and_its_connection_is_not_used_again(
    server: Verbatim, connect: Connect, name: str
) -> None:
    server.answer = lambda request: bytearray(BROKEN[name])
    transport = connect(server.url)
    with pytest.raises(AnswerLost) as caught:
        transport.request("POST", "/x", body={})
    assert caught.value.outcome_unknown
    server.answer = lambda request: OK
    assert transport.request("POST", "/x", body={}) == {"ok": 1}
    assert server.connections == 2


@pytest.mark.parametrize(
    "key",
    ["se\ncret", "secret\n", "se\r\nX-Own: 1", "\tsecret", "sécret", "schlüssel\u2603"],
)
def test_a_key_that_no_header_can_carry_is_refused_at_once_and_not_told(key: str) -> None:
    with pytest.raises(OptionError, match="API key") as caught:
        HttpTransport("http://127.0.0.1:1", api_key=key)
    assert isinstance(caught.value, CatmqError)
    assert key not in str(caught.value)


def test_a_key_of_the_environment_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATMQ_API_KEY", "secret\n")
    with pytest.raises(OptionError, match="API key"):
        HttpTransport("http://127.0.0.1:1")


@pytest.mark.parametrize(
    "field", [{"X": "a\nY: b"}, {"X": "a\rb"}, {"X\r\nY": "a"}, {"X": "\u2603"}]
)
def test_a_header_that_would_be_two_is_refused_before_anything_is_sent(
    server: Verbatim, field: dict[str, str]
) -> None:
    with HTTPConnectionPool("127.0.0.1", server.port) as pool:
        send_whole(pool)
        with pytest.raises(ValueError, match=r"line break|encode"):
            pool.urlopen("GET", "/x", headers=field, retries=False, redirect=False)
        assert server.connections == 0
        assert pool.urlopen("GET", "/x", headers={"X": "a"}, redirect=False).status == 200


@pytest.mark.parametrize("path", ["/x\ny", "/x\r\nHost: other", "/x HTTP/1.1\r\n\r\n"])
def test_a_path_with_a_line_break_is_no_second_line(
    server: Verbatim, connect: Connect, path: str
) -> None:
    connection = _PlainConnection("127.0.0.1", server.port)
    with pytest.raises(ValueError, match="line break"):
        connection.request("GET", path)
    assert (connection.sock, server.connections) == (None, 0)
    connect(server.url).request("GET", path)  # it is quoted there
    assert len(head(server.requests[0])) == 5 and hosts(server.requests[0]) == [
        f"127.0.0.1:{server.port}"
    ]


def test_a_large_body_may_take_longer_than_a_connection(
    server: Verbatim, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT_S", 0.4)
    server.pause_s = 0.01
    body = {"messages": [{"body_bytes": b"x" * (8 << 20)}]}
    assert connect(server.url).request("POST", "/a", body=body) == {"ok": 1}
    assert len(server.requests[0]) > 8 << 20


@pytest.mark.parametrize("kind", ["json", "problem+json", "msgpack"])
def test_an_answer_of_endless_depth_is_one_that_cannot_be_read(
    server: Verbatim, connect: Connect, kind: str
) -> None:
    status = b"503 Service Unavailable" if kind == "problem+json" else b"200 OK"
    deep = (b"\x91" if kind == "msgpack" else b"[") * 200_000
    head = b"HTTP/1.1 %b\r\nContent-Type: application/%b\r\n" % (status, kind.encode())
    server.answer = lambda request: (
        head + b"Content-Length: %d\r\n\r\n%b" % (len(deep), deep)
    )
    with pytest.raises(AnswerLost):
        connect(server.url, codec=wire.best_codec()).request("GET", "/x")


def test_gzip_is_unpacked_only_if_it_was_asked_for(
    server: Verbatim, connect: Connect
) -> None:
    packed = gzip.compress(b'{"ok":1}')
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(
        packed
    )
    server.answer = lambda request: head + packed
    with pytest.raises(AnswerLost, match="nobody asked for"):
        connect(server.url).request("GET", "/x")
    assert connect(server.url, compression="gzip").request("GET", "/x") == {"ok": 1}


def test_what_a_problem_says_of_itself_is_not_believed_beyond_measure() -> None:
    odd: dict[str, Any] = {"code": {"a": 1}, "errors": ["x", 4], "retry_after_ms": "soon"}
    error = from_problem(429, odd)
    assert (list(error.errors), error.retry_after_ms) == ([], None)
    assert from_problem(429, {"retry_after_ms": 10**15}).retry_after_ms == MOST_PAUSE_MS


def test_a_request_that_could_not_be_sent_whole_was_not_carried_out(
    connect: Connect,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def cut() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_000)  # the rest is not read: the connection is reset

        cutting = threading.Thread(target=cut)
        cutting.start()
        transport = connect(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ConnectFailed, match="broke in the request") as caught:
            transport.request("POST", "/x", body={"body": "x" * (32 << 20)})
        cutting.join()
    assert not caught.value.outcome_unknown


def test_a_private_ca_is_named_by_the_environment_or_an_option(
    tls: Tls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = b'{"brokers":[]}'
    with verbatim(tls=tls.context) as server:
        server.answer = lambda request: OK.replace(b"Length: 8", b"Length: 14").replace(
            b'{"ok":1}', body
        )
        asked = ["brokers", "--url", server.url]
        assert main(asked) == 6
        assert "set CATMQ_CA_FILE or give --ca-file" in capsys.readouterr().err
        assert main([*asked, "--ca-file", tls.certificate]) == 0
        monkeypatch.setenv("CATMQ_CA_FILE", tls.certificate)
        assert main(asked) == 0
        assert HttpTransport(server.url, discover=False).request("GET", "/x") == {
            "brokers": []
        }
        with pytest.raises(OptionError, match="verify='/none'"):
            HttpTransport(server.url, verify="/none")
        monkeypatch.setenv("CATMQ_CA_FILE", "/none")
        assert main(asked) == 2
        assert "CATMQ_CA_FILE='/none': No such file or directory" in capsys.readouterr().err
        assert main([*asked, "--ca-file", __file__]) == 2
        assert "the file has no CA certificates" in capsys.readouterr().err
