"""How a broker says that it lives, what it can do, and what it counted."""

from __future__ import annotations

import html
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
from django.core.management import call_command
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from brokerapi.http import draining
from brokerapi.http.metrics import WorkerFiles
from messagestore.heads import corruption
from messagestore.nodes import registry
from messagestore.produce import publish
from metadata.cache import snapshot
from metadata.config import config
from metadata.errors import Code, MetadataUnavailable, NodeUnavailable, OutcomeUnknown
from metadata.nodes import node_rows
from tests.support import rows
from tests.support.broker import Broker, problem
from tests.support.environment import ROOT


def get(broker: Broker, path: str) -> requests.Response:
    """A request without any key."""
    return requests.get(broker.url + path, timeout=10)


def ready(broker: Broker) -> tuple[int, str, list[str]]:
    """(status, status in words, because) of /readyz."""
    answer = get(broker, "/readyz")
    return answer.status_code, answer.json()["status"], answer.json()["because"]


def test_a_broker_lives_without_asking_a_database(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise MetadataUnavailable("frozen")

    monkeypatch.setattr(snapshot, "current", away)
    assert get(broker, "/livez").json() == {"status": "ok", "because": []}


def test_a_broker_is_ready_while_something_can_be_served(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ready(broker) == (200, "ok", [])
    monkeypatch.setattr(registry, "latencies", lambda: {"a": 0.1, "b": None})
    assert ready(broker) == (200, "degraded", ["node b does not answer"])
    monkeypatch.setattr(registry, "latencies", lambda: {"a": None, "b": None})
    assert ready(broker)[:2] == (503, "unready")


def test_a_broker_is_degraded_before_its_first_node_and_unready_when_all_are_offline(
    bare_broker: Broker,
) -> None:
    assert ready(bare_broker) == (200, "degraded", ["no node is registered"])
    rows.node("a")
    snapshot.refresh()
    assert ready(bare_broker)[0] == 200
    node_rows.update(name="a", settings={"state": "offline"}, actor=rows.ME)
    snapshot.refresh()
    assert ready(bare_broker) == (503, "unready", ["all nodes are offline"])


def test_a_broker_that_met_a_suspect_queue_is_degraded_and_counts_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corruption, "current", lambda: [7, 12])
    assert ready(broker) == (200, "degraded", ["queue 7 is corrupt", "queue 12 is corrupt"])
    assert metric(broker, "catmq_corrupt_queues") == 2


def test_a_broker_with_an_old_snapshot_is_degraded_and_without_one_unready(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "age_s", lambda: 60.0)
    assert ready(broker)[:2] == (200, "degraded")

    def none() -> None:
        raise MetadataUnavailable("never answered")

    monkeypatch.setattr(snapshot, "current", none)
    assert ready(broker)[:2] == (503, "unready")


def test_a_draining_broker_is_not_ready(broker: Broker) -> None:
    draining.stop()
    assert ready(broker) == (503, "unready", ["this broker is stopping"])
    assert get(broker, "/livez").status_code == 200


def metric(broker: Broker, line: str) -> float:
    """The value of one line of /metrics, 0 if it is not there."""
    for found in get(broker, "/metrics").text.splitlines():
        if found.startswith(line + " "):
            return float(found.rpartition(" ")[2])
    return 0.0


def test_a_method_that_a_client_made_up_is_no_label(broker: Broker) -> None:
    other = 'catmq_requests_total{method="other",route="livez",status="405"}'
    before = metric(broker, other)
    assert requests.request("BREW", broker.url + "/livez", timeout=10).status_code == 405
    assert metric(broker, other) == before + 1
    assert 'method="BREW"' not in get(broker, "/metrics").text


def test_metrics_count_requests_messages_and_errors(broker: Broker, topic: str) -> None:
    route = (
        'catmq_requests_total{method="POST",route="api/v1/topics/<str:topic>/messages",'
        'status="200"}'
    )
    error = 'catmq_errors_total{code="topic_not_found"}'
    lines = (route, error, "catmq_messages_sent_total")
    before = [metric(broker, line) for line in lines]
    broker.ok("POST", f"/topics/{topic}/messages", {"messages": [{"body": ""}] * 3})
    broker.call("GET", "/topics/nope")
    assert [metric(broker, line) for line in lines] == [
        before[0] + 1,
        before[1] + 1,
        before[2] + 3,
    ]
    assert metric(broker, "catmq_snapshot_age_seconds") >= 0
    registry.probe()
    assert 0 < metric(broker, 'catmq_node_seconds{node="main"}') < 10


COUNT_AND_SHOW = """
import sys, django
django.setup()
from brokerapi.http import metrics
metrics.SENT.inc(int(sys.argv[1]))
print(metrics.exposition()[0].decode())
"""


def test_metrics_are_added_up_over_processes(metadata_db: None, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "CATMQ_DATA_DIR": str(config.data_dir),
    }
    shown = ""
    for number in ("2", "5"):
        command = [sys.executable, "-c", COUNT_AND_SHOW, number]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        shown = done.stdout
    assert "catmq_messages_sent_total 7.0" in shown


def test_files_of_workers_that_cannot_be_read_are_left_out_of_metrics(
    tmp_path: Path,
) -> None:
    for pid in (1, 2):
        file = MmapedDict(f"{tmp_path}/counter_{pid}.db")
        file.write_value(
            mmap_key("catmq_pulls", "catmq_pulls_total", [], [], "Pulls."), 2.0, 0.0
        )
        file.close()
    whole = (tmp_path / "counter_1.db").read_bytes()
    header, key = whole[:8], whole.index(b"[")
    (tmp_path / "counter_3.db").touch()  # killed between the creation and the header
    (tmp_path / "counter_4.db").write_bytes(whole[:40])
    (tmp_path / "counter_5.db").write_bytes(header + b"\xff" * 64)
    (tmp_path / "counter_6.db").write_bytes(whole[:key] + b"!" + whole[key + 1 :])
    (tmp_path / "counter_7.db").symlink_to("removed")  # between the listing and the reading
    (metric,) = WorkerFiles(tmp_path).collect()
    assert [(sample.name, sample.value) for sample in metric.samples] == [
        ("catmq_pulls_total", 4.0)
    ]


def test_the_api_tells_version_and_limits(broker: Broker) -> None:
    about = get(broker, "/api/v1").json()
    assert (about["name"], about["api_version"]) == ("catmq", 1)
    assert about["limits"]["request_max_bytes"] == config.request_max_bytes
    assert about["limits"]["max_messages"] == config.max_messages
    assert "max_waiters" not in about["limits"]


def test_the_schema_is_valid_and_complete(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "schema.yml"
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(file))
    answer = get(broker, "/api/v1/schema?format=json")
    schema: Any = msgspec.json.decode(answer.content)
    send = schema["paths"]["/api/v1/topics/{topic}/messages"]["post"]
    assert set(send["requestBody"]["content"]) == {
        "application/json",
        "application/msgpack",
    }
    assert {"SendRequest", "JsonMessage", "PullAnswer", "Problem"} <= set(
        schema["components"]["schemas"]
    )


def test_the_docs_page_loads_only_its_own_script_and_explains_every_code(
    broker: Broker,
) -> None:
    page = get(broker, "/api/v1/docs")
    assert page.headers["Content-Type"].startswith("text/html")
    assert re.findall(r"<script[^>]*>[^<]*", page.text) == ['<script src="docs.js" defer>']
    assert (
        "default-src 'none'; script-src 'self';" in page.headers["Content-Security-Policy"]
    )
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    assert (
        get(broker, "/api/v1/docs.js").headers["Content-Type"]
        == "text/javascript; charset=utf-8"
    )
    assert not re.search(r"(src|href)=\"?http", page.text) and "@import" not in page.text
    assert "/api/v1/topics/{topic}/messages" in page.text
    for code in Code:
        assert f'id="{code}"' in page.text


def test_every_property_and_parameter_of_the_schema_is_described(broker: Broker) -> None:
    schema = get(broker, "/api/v1/schema?format=json").json()
    parts = schema["components"]["schemas"].items()
    silent = [
        f"{part}.{name}"
        for part, one in parts
        for name, each in one.get("properties", {}).items()
        if not each.get("description")
    ]
    asked = [each["name"] for path in schema["paths"].values() for one in path.values()
             for each in one.get("parameters", ()) if not each.get("description")]  # fmt: skip
    assert (silent, asked) == ([], []), (
        "brokerapi/descriptions.py has one text for each name"
    )


def test_the_examples_of_the_docs_page_are_taken_by_the_shapes(broker: Broker) -> None:
    """The request that the page shows is sent as it stands: no field of it is wrong."""
    page = html.unescape(get(broker, "/api/v1/docs").text)
    shown = re.findall(
        r'curl -X (\w+) "\$CATMQ_URL/api/v1([^"]+)"[^<]*?-d \'([^<]*?)\'</pre>', page
    )
    assert len(shown) > 20
    for method, path, body in shown:
        answer = broker.call(method, path.replace("/orders", "/nothing"), json.loads(body))
        # it is not there
        wrong = answer.status_code == 400 and answer.json()["code"] != "node_refused"
        assert not wrong, (method, path, body, answer.text)


def test_a_fault_of_the_broker_carries_an_id_that_is_in_its_log(
    broker: Broker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fault(**_: Any) -> None:
        raise RuntimeError("the secret of the broker")

    monkeypatch.setattr(publish, "send", fault)
    with caplog.at_level(logging.ERROR):
        answer = broker.call(
            "POST", f"/topics/{topic}/messages", {"messages": [{"body": ""}]}
        )
    found = problem(answer, 500, "internal")
    assert "secret" not in answer.text
    assert found["id"] in found["detail"]
    assert found["id"] in caplog.text
    assert "the secret of the broker" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NodeUnavailable("node main is away", retry_after_ms=1500), 503),
        (OutcomeUnknown("nobody knows"), 504),
    ],
)
def test_an_error_that_may_be_repeated_says_so(
    *,
    broker: Broker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
) -> None:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr(publish, "send", fail)
    answer = broker.call("POST", f"/topics/{topic}/messages", {"messages": [{"body": ""}]})
    found = problem(answer, status, str(error.code))  # type: ignore[attr-defined]
    assert found["retriable"] is True
    if status == 503:
        assert (found["retry_after_ms"], answer.headers["Retry-After"]) == (1500, "2")


def test_a_send_of_which_a_part_is_refused_names_each_fate(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        publish.FateRun(1, publish.Receipt(7, 3)),
        publish.FateRun(1, NodeUnavailable("away")),
    ]
    monkeypatch.setattr(publish, "send", lambda **_: runs)
    answer = broker.ok(
        "POST", f"/topics/{topic}/messages", {"messages": [{"body": ""}] * 2}
    )
    assert answer["results"] == [
        {"queue": 7, "offset": 3, "message_id": "7-3"},
        {"error": {"code": "node_unavailable", "detail": "away", "retriable": True}},
    ]
