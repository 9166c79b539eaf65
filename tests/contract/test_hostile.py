"""Requests that are meant to cost much: each is answered in bounded time and memory, and
does little.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import requests
from drf_spectacular.generators import SchemaGenerator

from brokerapi import docs
from brokerapi.http import longpoll
from brokerapi.shapes import fields
from catmq_site import wsgi
from messagestore.inspect import search
from metadata.limits.places import Places
from metadata.membership import broadcast_instances
from metadata.models import AuditLog
from metadata.rules.membership.addresses import parse_networks
from tests.support.broker import MSGPACK, Broker, problem
from tests.support.members import reader

UUID = "01890a5d-ac96-774b-bcce-b302099a80%02d"


def schemas(broker: Broker) -> list[requests.Response]:
    """The schema, asked for in every way, three times each."""
    url = f"{broker.url}/api/v1/schema"
    accepts = ("application/vnd.oai.openapi", "application/vnd.oai.openapi+json", "*/*")
    asked = [(url, {"Accept": accept}) for accept in accepts] + [(f"{url}?format=json", {})]
    return [
        requests.get(where, headers=headers, timeout=40) for where, headers in asked * 3
    ]


def test_the_schema_is_made_once_however_often_it_is_asked_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    generate = SchemaGenerator.get_schema

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        made.append(threading.get_ident())
        return generate(self, *args, **options)

    monkeypatch.setattr(SchemaGenerator, "get_schema", counted)
    for cached in (docs._schema, docs._render_schema, docs._page):
        cached.cache_clear()
    answers = schemas(broker)
    requests.get(f"{broker.url}/api/v1/docs", timeout=40)

    assert len(made) == 1
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 2  # YAML and JSON


def test_the_schema_takes_no_other_method_and_no_other_form(broker: Broker) -> None:
    url = f"{broker.url}/api/v1/schema"
    problem(requests.post(url, timeout=40), 405, "method_not_allowed")
    problem(requests.get(f"{url}?format=xml", timeout=40), 400, "invalid", "format")


def booleans(value: Any, path: str = "") -> Iterator[str]:
    """Return where something that must be a schema is true or false: generators of clients
    stop there.
    """
    if isinstance(value, list):
        for index, part in enumerate(value):
            yield from booleans(part, f"{path}/{index}")
    elif isinstance(value, dict):
        for name, part in value.items():
            if isinstance(part, bool) and name in (
                "items",
                "contains",
                "not",
                "schema",
                "propertyNames",
            ):
                yield f"{path}/{name}"
            if name in ("properties", "$defs", "schemas", "patternProperties"):
                yield from (
                    f"{path}/{name}/{one}"
                    for one, of in part.items()
                    if isinstance(of, bool)
                )
            yield from booleans(part, f"{path}/{name}")


def test_generators_of_clients_find_a_schema_wherever_they_look_for_one(
    broker: Broker,
) -> None:
    schema = msgspec.json.decode(docs.schema("json", packed=False))

    assert list(booleans(schema)) == []
    rows = schema["components"]["schemas"]["PulledAnswer"]["properties"]["rows"]["items"]
    assert len(rows["prefixItems"]) == rows["maxItems"] == 8


def test_of_many_unknown_fields_the_first_are_named(broker: Broker) -> None:
    body = {"name": "new", **{f"field-{number}": number for number in range(10_000)}}
    answer = broker.call("POST", "/topics", body)
    found = problem(answer, 400, "invalid", "field-0")

    assert len(found["errors"]) == fields.MOST_NAMED
    assert len(answer.content) < 10_000


def test_a_long_name_of_an_unknown_field_is_told_in_part(broker: Broker) -> None:
    answer = broker.call("POST", "/topics", {"x" * 200_000: 1})
    problem(answer, 400, "invalid", "x" * fields.MOST_NAME_CHARS)
    assert len(answer.content) < 2_000


def test_a_management_request_of_too_many_bytes_is_too_large(
    broker: Broker, topic: str
) -> None:
    body = {"name": "new", "description": "x" * (256 << 10)}
    for path, method in (
        ("/topics", "POST"),
        (f"/topics/{topic}", "PATCH"),
        ("/keys", "POST"),
    ):
        assert (
            "262144 bytes"
            in problem(broker.call(method, path, body), 413, "too_large")["detail"]
        )


def test_a_management_request_of_too_many_values_is_refused(broker: Broker) -> None:
    many = broker.call(
        "POST", "/keys", {"name": "k", "rights": {"produce": ["x"] * 30_000}}
    )
    assert "more than" in problem(many, 400, "invalid", "(body)")["detail"]


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", "/topics", "manage on topic new"),
        ("PATCH", "/topics/orders", "manage on topic orders"),
        ("POST", "/topics/orders/expand", "manage on topic orders"),
        ("POST", "/groups", "manage on group new"),
        ("PATCH", "/groups/billing", "manage on group billing"),
        ("PATCH", "/groups/billing/offsets", "manage on group billing"),
        ("POST", "/groups/billing/dead/redrive", "manage on group billing"),
    ],
)
def test_who_lacks_the_right_is_told_so_before_the_fields_are_checked(
    *, broker: Broker, topic: str, method: str, path: str, right: str
) -> None:
    weak = broker.as_key({"produce": ["*"]})
    body = {"name": "new", **{f"field-{number}": 1 for number in range(1000)}}
    assert right in problem(weak.call(method, path, body), 403, "forbidden")["detail"]


def test_text_that_is_no_utf8_is_malformed_in_messagepack_wherever_it_stands(
    broker: Broker, topic: str
) -> None:
    good = msgspec.msgpack.encode({"messages": [{"body": "a", "key": "KEY", "tag": "TAG"}]})
    for word in (b"KEY", b"TAG", b"body", b"messages"):
        body = good.replace(word, b"\xff" * len(word))
        answer = broker.call(
            "POST", f"/topics/{topic}/messages", body, headers={"Content-Type": MSGPACK}
        )
        problem(answer, 400, "malformed")


@pytest.mark.parametrize(
    "path", ["/api/v1", "/livez", "/metrics", "/api/v1/topics", "/api/nowhere"]
)
def test_no_answer_to_a_program_is_kept_or_taken_for_a_page(
    broker: Broker, path: str
) -> None:
    answer = broker.call("GET", f"{broker.url}{path}")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("places", "status", "code"), [((9, 0), 429, "rate_limited"), ((0, 9), 503, "busy")]
)
def test_above_the_limit_of_searches_one_is_refused_at_once(
    *,
    broker: Broker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    places: Any,
    status: int,
    code: str,
) -> None:
    most, most_per_caller = places
    monkeypatch.setattr(
        search, "_slots", Places(most=most, most_per_caller=most_per_caller)
    )
    answer = broker.call("GET", f"/topics/{topic}/messages?contains=x")
    assert problem(answer, status, code)["retry_after_ms"] == search.BUSY_MS


def test_a_search_gives_its_place_back_also_when_it_fails(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(search, "_slots", Places(most=1, most_per_caller=1))
    for _ in range(3):
        broker.ok("GET", f"/topics/{topic}/messages?contains=x")
    with monkeypatch.context() as patch:
        patch.setattr(search.durability, "head_of", fails)
        assert broker.call("GET", f"/topics/{topic}/messages?contains=x").status_code == 500
    broker.ok("GET", f"/topics/{topic}/messages?contains=x")


def test_one_consumer_cannot_take_all_places_of_waiting_pulls(
    broker: Broker, queue: int
) -> None:
    greedy = reader(broker)
    who = greedy.path.removeprefix("/consumers/")
    taken = [who for _ in range(longpoll.PLACES_PER_CONSUMER) if longpoll._places.take(who)]
    try:
        assert "retry_after_ms" in greedy.pull(greedy.position(queue, 0), wait_ms=5_000)
        assert longpoll._places.take("another consumer")
        taken.append("another consumer")
    finally:
        for one in taken:
            longpoll._places.give_back(one)


def test_a_broadcasting_group_has_so_many_instances_at_most(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast_instances, "MAX_INSTANCES", 2)
    broker.ok("POST", "/groups", {"name": "all", "mode": "broadcasting"})

    def join(number: int) -> requests.Response:
        body = {
            "name": f"c{number}",
            "incarnation": UUID % number,
            "instance_id": f"i{number}",
            "topics": [topic],
        }
        return broker.call("POST", "/groups/all/consumers", body)

    assert [join(number).status_code for number in (1, 2)] == [201, 201]
    assert "has 2 instances" in problem(join(3), 409, "in_use")["detail"]
    assert join(2).status_code == 201, "who is known may return"


@pytest.mark.parametrize(
    ("trusted", "seen"), [((), "127.0.0.1"), (("127.0.0.0/8",), "192.0.2.7")]
)
def test_only_a_trusted_proxy_may_name_the_client(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, trusted: tuple[str, ...], seen: str
) -> None:
    monkeypatch.setattr(wsgi, "_TRUSTED_PROXIES", parse_networks(trusted))
    headers = {"X-Forwarded-For": "6.6.6.6, 192.0.2.7"}
    broker.ok("POST", "/topics", {"name": "seen", "queues": 1}, headers=headers)

    assert (
        AuditLog.objects.filter(kind="topic", name="seen").values_list(
            "address", flat=True
        )[0]
        == seen
    )
