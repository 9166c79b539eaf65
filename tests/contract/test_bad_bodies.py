"""Bodies that cannot be taken: each answers a problem that names what is wrong, and stores
nothing.
"""

from __future__ import annotations

import gzip
import http.client
import io
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from django.test import RequestFactory

from brokerapi.http import parsers, value_limits
from brokerapi.shapes.message_shapes import SEND as SEND_BODY
from metadata.config import config
from metadata.errors import Malformed, TooLarge
from tests.support.broker import MSGPACK, Broker, problem

SEND = "/topics/orders/messages"


@pytest.fixture(autouse=True)
def _topic(topic: str) -> None:
    """Every test here sends to it."""


def heads(broker: Broker) -> int:
    """How many messages the topic holds."""
    return sum(queue["head"] for queue in broker.ok("GET", "/topics/orders")["queues"])


@pytest.mark.parametrize(
    "body",
    [b'{"messages":[', b"", b"nonsense", b'{"messages":[{"body":"\xff"}]}', b"[" * 5000],
)
def test_a_body_that_is_no_json_is_malformed_or_of_the_wrong_type(
    broker: Broker, body: bytes
) -> None:
    answer = broker.call("POST", SEND, body)
    problem(answer, 400, answer.json()["code"])
    assert answer.json()["code"] in ("malformed", "invalid")
    assert heads(broker) == 0


@pytest.mark.parametrize("body", [b"\x81", b"\xc1", b"\x82\xa8messages", b""])
def test_a_body_that_is_no_messagepack_is_malformed(broker: Broker, body: bytes) -> None:
    answer = broker.call("POST", SEND, body, headers={"Content-Type": MSGPACK})
    problem(answer, 400, "malformed")


def test_trailing_bytes_are_malformed_in_messagepack(broker: Broker) -> None:
    body = msgspec.msgpack.encode({"messages": [{"body": "a"}]}) + b"\x00"
    problem(
        broker.call("POST", SEND, body, headers={"Content-Type": MSGPACK}), 400, "malformed"
    )


def one(**fields: Any) -> dict[str, Any]:
    """A send of one good message and one with these fields."""
    return {"messages": [{"body": "good"}, fields]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "messages"),
        ([], "(body)"),
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"body": "a"}], "batchId": "x"}, "batchId"),
        ({"messages": [{"body": "a"}], "batch_id": "x"}, "batch_id"),
        (
            {
                "messages": [{"body": "a"}],
                "batch_id": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
            },
            "batch_id",
        ),
        (one(body="a", colour="red"), "messages[1].colour"),
        (one(body=1), "messages[1].body"),
        (one(body=None), "messages[1].body"),
        (one(), "messages[1].body"),
        (one(body="a", body_base64="YQ=="), "messages[1].body"),
        (one(body_base64="?"), "messages[1].body_base64"),
        (one(body="a", body_bytes="YQ=="), "messages[1].body_bytes"),
        (one(body="a", key=4), "messages[1].key"),
        (one(body="a", headers={"h": 1}), "messages[1].headers[...]"),
        (one(body="a", headers=[]), "messages[1].headers"),
        (one(body="a", queue=-1), "messages[1].queue"),
        (one(body="a", queue=1.5), "messages[1].queue"),
        (one(body="a", queue="1"), "messages[1].queue"),
        (one(body="a", queue=2**63), "messages[1].queue"),
        (one(body="a", key="k" * 201), "messages[1].key"),
        (one(body="a", tag="t" * 101), "messages[1].tag"),
        (one(body="a", trace_id="t" * 101), "messages[1].trace_id"),
        (one(body="a", headers={str(n): "" for n in range(33)}), "messages[1].headers"),
        (one(body="a", headers={"h": "v" * 8192}), "messages[1].headers"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_stored(
    broker: Broker, body: Any, field: str
) -> None:
    problem(broker.call("POST", SEND, body), 400, "invalid", field)
    assert heads(broker) == 0


def test_a_queue_that_is_not_the_topics_is_named_and_nothing_is_stored(
    broker: Broker,
) -> None:
    answer = broker.call("POST", SEND, one(body="a", queue=999_999))
    problem(answer, 404, "queue_not_found", "messages[1].queue")
    assert heads(broker) == 0


def test_messagepack_takes_raw_bytes_and_refuses_base64(broker: Broker) -> None:
    stored = broker.packed("POST", SEND, {"messages": [{"body_bytes": b"\xff"}]})
    assert stored["results"][0]["offset"] == 0
    body = msgspec.msgpack.encode({"messages": [{"body_base64": "YQ=="}]})
    answer = broker.call("POST", SEND, body, headers={"Content-Type": MSGPACK})
    problem(answer, 400, "invalid", "messages[0].body_base64")


def test_too_many_messages_are_refused_with_the_limit(broker: Broker) -> None:
    body = {"messages": [{"body": ""}] * (config.max_messages + 1)}
    found = problem(broker.call("POST", SEND, body), 413, "too_large")
    assert str(config.max_messages) in found["detail"]


def test_a_body_over_the_limit_is_refused_with_the_limit(broker: Broker) -> None:
    answer = broker.call(
        "POST", SEND, {"messages": [{"body": "x" * (config.max_body_bytes + 1)}]}
    )
    found = problem(answer, 413, "too_large", "messages[0].body")
    assert str(config.max_body_bytes) in found["detail"]
    broker.ok("POST", SEND, {"messages": [{"body": "x" * config.max_body_bytes}]})


def test_a_content_length_over_the_limit_is_refused_before_the_body_is_sent(
    broker: Broker,
) -> None:
    parts = urlsplit(broker.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.putrequest("POST", f"/api/v1{SEND}")
    for name, value in {
        "Authorization": f"Bearer {broker.api_key}",
        "Content-Type": "application/json",
        "Content-Length": str(config.request_max_bytes + 1),
    }.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = msgspec.json.decode(answer.read())
    connection.close()
    assert (answer.status, found["code"]) == (413, "too_large")
    assert str(config.request_max_bytes) in found["detail"]


class Endless(io.RawIOBase):
    """A body that goes on and on, counting what is read of it."""

    def __init__(self) -> None:
        self.taken = 0

    def read(self, size: int = -1) -> bytes:
        """`size` bytes more."""
        self.taken += size
        return b" " * size


def chunked(stream: Any) -> Any:
    """A request as gunicorn hands over one with a chunked body."""
    request = RequestFactory().post("/", content_type="application/json")
    del request.META["CONTENT_LENGTH"]
    request.META |= {
        "wsgi.input": stream,
        "wsgi.input_terminated": True,
        "HTTP_TRANSFER_ENCODING": "chunked",
    }
    return request


def test_a_chunked_body_is_read_to_its_end() -> None:
    assert parsers.read_bytes(chunked(io.BytesIO(b"x" * 100_000))) == b"x" * 100_000


def test_a_chunked_body_is_counted_and_cut_off_at_the_limit() -> None:
    stream = Endless()
    with pytest.raises(TooLarge, match=str(config.request_max_bytes)):
        parsers.read_bytes(chunked(stream))
    assert stream.taken <= config.request_max_bytes + parsers.CHUNK_BYTES


def test_a_body_that_ends_before_its_content_length_is_malformed() -> None:
    request = RequestFactory().post("/", data=b"abc", content_type="application/json")
    request.META |= {"CONTENT_LENGTH": "10", "wsgi.input": io.BytesIO(b"abc")}
    with pytest.raises(Malformed, match="7 bytes before"):
        parsers.read_bytes(request)


def test_a_body_that_cannot_be_read_is_malformed() -> None:
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise OSError("Invalid chunk size")

    with pytest.raises(Malformed, match="Invalid chunk size"):
        parsers.read_bytes(chunked(Broken()))


def gzipped(broker: Broker, body: bytes) -> Any:
    """The answer to a send whose body is sent as gzip."""
    return broker.call("POST", SEND, body, headers={"Content-Encoding": "gzip"})


def test_a_gzipped_request_is_taken(broker: Broker) -> None:
    body = b'{"messages":[{"body":"a"}]}'
    assert gzipped(broker, gzip.compress(body)).status_code == 200
    assert (
        gzipped(broker, gzip.compress(body[:10]) + gzip.compress(body[10:])).status_code
        == 200
    )
    assert heads(broker) == 2


def test_a_gzip_bomb_is_refused_with_the_limit(broker: Broker) -> None:
    bomb = gzip.compress(b" " * (config.request_max_unpacked_bytes + 1))
    assert len(bomb) < 100_000
    found = problem(gzipped(broker, bomb), 413, "too_large")
    assert str(config.request_max_unpacked_bytes) in found["detail"]


JSON, MANY = "application/json", 1_000_000
ARRAY = b"\xdd" + MANY.to_bytes(4, "big")
HEADERS = msgspec.msgpack.encode({str(number): "" for number in range(100_000)})


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (JSON, b'{"messages":[' + b"{}," * MANY + b"{}]}"),
        (JSON, b'{"messages":[' + b'"",' * MANY + b'""]}'),
        (MSGPACK, b"\x81\xa8messages" + ARRAY + b"\x80" * MANY),
        (MSGPACK, b"\x82\xa8messages" + ARRAY + b"\x80" * MANY + b"\xa8messages\x90"),
        (MSGPACK, b"\x81\xa8messages\x91\x81\xa7headers" + HEADERS),
        (MSGPACK, b"\x81\xa8messages\x91\x82\xa7headers" + HEADERS + b"\xa7headers\x80"),
    ],
)
def test_a_body_of_too_many_values_is_refused_before_they_are_made(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, kind: str, body: bytes
) -> None:
    monkeypatch.setattr(value_limits, "OTHER_BYTES", 256 << 10)
    monkeypatch.setattr(SEND_BODY, "_decode", {})
    monkeypatch.setattr(SEND_BODY, "_usual", None)
    answer = broker.call(
        "POST",
        SEND,
        gzip.compress(body),
        headers={"Content-Encoding": "gzip", "Content-Type": kind},
    )
    problem(answer, 413, "too_large")


def test_commas_in_texts_count_as_no_values() -> None:
    text = msgspec.json.encode({"messages": [{"body": '\\",' * value_limits.FEW_COMMAS}]})
    value_limits.check_json(text, 100)
    with pytest.raises(TooLarge):
        value_limits.check_json(
            b'{"a":"\\\\"' + b',"b":1' * value_limits.FEW_COMMAS + b"}", 100
        )


def test_values_of_messagepack_are_counted_as_they_are_nested() -> None:
    value = {
        "a": [1.5, -70_000, None, True, b"x" * 300, "y" * 70_000],
        "b": {"c": list(range(70_000))},
    }
    data = msgspec.msgpack.encode(value)
    value_limits.check_packed(data, 70_013)
    with pytest.raises(TooLarge):
        value_limits.check_packed(data, 70_012)


def test_who_may_not_send_is_told_so_before_the_body_is_read(broker: Broker) -> None:
    weak = broker.as_key({"consume": ["*"]})
    problem(weak.call("POST", SEND, b"["), 403, "forbidden")


def test_more_gzip_members_than_anybody_needs_are_malformed(broker: Broker) -> None:
    body = b'{"messages":[{"body":"a"}]}'
    most = gzip.compress(b"") * (parsers.MAX_GZIP_MEMBERS - 1) + gzip.compress(body)
    assert gzipped(broker, most).status_code == 200
    found = problem(gzipped(broker, gzip.compress(b"") + most), 400, "malformed")
    assert "more than 16 members" in found["detail"]


def test_broken_gzip_is_malformed(broker: Broker) -> None:
    problem(gzipped(broker, b"no gzip"), 400, "malformed")
    problem(gzipped(broker, gzip.compress(b'{"messages":[]}')[:-3]), 400, "malformed")


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "x",
    ],
)
def test_another_content_type_is_unsupported(broker: Broker, content_type: str) -> None:
    body = b'{"messages":[{"body":"a"}]}'
    answer = broker.call("POST", SEND, body, headers={"Content-Type": content_type})
    problem(answer, 415, "unsupported_media_type")


def test_another_content_encoding_is_unsupported(broker: Broker) -> None:
    answer = broker.call("POST", SEND, b"x", headers={"Content-Encoding": "br"})
    problem(answer, 415, "unsupported_media_type")


def test_an_answer_that_cannot_be_given_is_not_acceptable(broker: Broker) -> None:
    body = {"messages": [{"body": "a"}]}
    problem(
        broker.call("POST", SEND, body, headers={"Accept": "text/csv"}),
        406,
        "not_acceptable",
    )
    assert heads(broker) == 0


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ("*/*", "application/json"),
        ("application/msgpack", MSGPACK),
        ("application/json;q=0.5, application/msgpack", MSGPACK),
        ("application/msgpack;q=0, application/json", "application/json"),
        ("text/html, application/*;q=0.2", "application/json"),
    ],
)
def test_accept_chooses_the_format_of_the_answer(
    broker: Broker, accept: str, answered: str
) -> None:
    answer = broker.call("GET", "/topics", headers={"Accept": accept})
    assert answer.headers["Content-Type"] == answered


def test_a_large_answer_is_gzipped_if_the_client_takes_it(broker: Broker) -> None:
    packed = broker.call("GET", "/topics/orders", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    plain = broker.call("GET", "/topics/orders", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    assert packed.json()["layout"] == plain.json()["layout"]
    refused = broker.call("GET", "/topics/orders", headers={"Accept-Encoding": "gzip;q=0"})
    assert "Content-Encoding" not in refused.headers
