"""catmq doctor through proxies: it says if one cuts long polls or buffers answers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from brokerapi.http import draining
from brokerapi.views import doctor
from catmq_client.cli.connection import Brokers
from catmq_client.cli.manage import connection_check
from catmq_client.cli.manage.cluster import add_findings
from tests.support import debian
from tests.support.broker import Broker, problem
from tests.support.certificates import Authority
from tests.support.environment import ROOT, free_port
from tests.support.prefix_proxy import prefix_proxy
from tests.support.relay import GATEWAY_TIMEOUT, relay
from tests.support.waiting import until

pytestmark = pytest.mark.one_engine
CONNECTION = "/doctor/connection"
LONGEST_MS = 2_000  # in place of the 30 s of a real broker


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "config", SimpleNamespace(max_wait_ms=LONGEST_MS))
    monkeypatch.setattr(connection_check, "PARTS_MS", 1_500)


def check(broker: Broker, url: str, *, verify: bool | str = True) -> dict[str, Any]:
    """Return the report of catmq doctor on nothing but the way to a broker."""
    checks = connection_check.start_checks(Brokers([url], broker.api_key, verify))
    for started in checks:
        started.join()
    assert [started.done for started in checks] == [True]
    report: Any = add_findings({"exit_code": 0, "checks": 3, "findings": []}, checks)
    assert report["checks"] == 4
    return dict(report)


def keys(report: dict[str, Any]) -> list[str]:
    return sorted(finding["key"] for finding in report["findings"])


def port(broker: Broker) -> int:
    return urlsplit(broker.url).port or 0


def test_a_direct_way_is_known_by_the_port_and_costs_one_short_request(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def must_not_wait(*_: Any) -> None:
        raise AssertionError("there is no proxy")

    monkeypatch.setattr(connection_check.ConnectionCheck, "_check_proxy", must_not_wait)
    report = check(broker, broker.url)
    assert (report["exit_code"], report["findings"]) == (0, [])


def test_a_proxy_that_passes_everything_on_is_no_finding(broker: Broker) -> None:
    with relay(port(broker)) as url:
        assert keys(check(broker, url)) == []


@pytest.mark.parametrize(
    "last_words", [b"", GATEWAY_TIMEOUT], ids=["closes", "answers 504"]
)
def test_a_proxy_that_cuts_long_polls_is_an_error(
    broker: Broker, last_words: bytes
) -> None:
    with relay(port(broker), idle_s=0.7, last_words=last_words) as url:
        report = check(broker, url)
    assert report["exit_code"] == 2
    (finding,) = report["findings"]
    assert (finding["key"], finding["kind"], finding["name"]) == (
        "proxy_cuts",
        "proxy",
        url,
    )
    cause = r"A proxy ended a request after (0\.\d|1\.\d) s that the broker holds for 2 s: "
    assert re.match(cause, finding["cause"]), finding
    assert ("HTTP 504" in finding["cause"]) is bool(last_words)
    assert "proxy_read_timeout" in finding["remedy"]


def test_a_proxy_that_buffers_is_a_warning(broker: Broker) -> None:
    with prefix_proxy(port(broker), "/mq", removes=True) as proxy:
        report = check(broker, proxy.url)
    assert (report["exit_code"], keys(report)) == (1, ["proxy_buffers"])
    assert "proxy_buffering off" in report["findings"][0]["remedy"]


def test_an_older_broker_has_nothing_to_compare_with(broker: Broker) -> None:
    (started,) = connection_check.start_checks(Brokers([broker.url], "wrong key"))
    started.join()
    assert (started.done, started.findings) == (False, [])


def test_a_held_request_ends_when_the_broker_is_drained(broker: Broker) -> None:
    assert broker.ok("GET", f"{CONNECTION}?wait_ms=50")["waited_ms"] >= 50
    draining.disable()
    try:
        assert broker.ok("GET", f"{CONNECTION}?wait_ms=20000")["waited_ms"] < 5_000
    finally:
        draining.enable()


def test_it_is_for_administrators_and_limited_as_pulls_are(broker: Broker) -> None:
    some = broker.as_key({"admin": ["orders*"]})
    problem(some.call("GET", CONNECTION), 403, "forbidden")
    problem(broker.call("GET", f"{CONNECTION}?wait_ms=30001"), 400, "invalid", "wait_ms")
    parts = broker.call("GET", f"{CONNECTION}?form=parts")
    assert parts.json()["max_wait_ms"] == LONGEST_MS
    assert broker.call("HEAD", f"{CONNECTION}?form=parts").status_code == 200


@contextmanager
def proxy_process(command: list[str], url: str, ca: Path) -> Iterator[None]:
    """Run a proxy until the end of the block, which begins when it passes requests on."""
    log = ca.with_name("proxy.log")
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)

    def passes_on() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return requests.get(f"{url}/livez", verify=str(ca), timeout=5).ok
        except requests.ConnectionError:
            return False

    try:
        until(passes_on, limit_s=30, every_s=0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def adapt(name: str, broker: Broker, directory: Path) -> tuple[str, int]:
    """Return a configuration of deploy/proxy for the broker, and the port that it uses."""
    text = (ROOT / "deploy/proxy" / name).read_text()
    text = re.sub(r"/etc/(nginx|caddy)/mq-key.pem", str(directory / "key.pem"), text)
    text = re.sub(r"/etc/(nginx|caddy)/mq.pem", str(directory / "cert.pem"), text)
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{port(broker)}")
    # A second broker that is away: requests go to the first.
    text = text.replace("127.0.0.1:8001", f"127.0.0.1:{free_port()}")
    return text.replace("mq.example", "127.0.0.1"), free_port()


def test_nginx_as_in_deploy_and_with_two_faults(broker: Broker, tmp_path: Path) -> None:
    nginx = debian.program("nginx", package="nginx")
    authority = Authority(tmp_path)
    site, tls_port = adapt("nginx.conf", broker, tmp_path)
    site = site.replace("listen 443 ssl", f"listen 127.0.0.1:{tls_port} ssl")
    site = site.replace("listen 80", f"listen 127.0.0.1:{free_port()}")
    url = f"https://127.0.0.1:{tls_port}"
    sites = {
        "as it is": site,
        "buffers": site.replace("proxy_buffering off", "proxy_buffering on"),
        "cuts": site.replace("proxy_read_timeout 60s", "proxy_read_timeout 1s"),
    }
    assert len(set(sites.values())) == 3
    faults = {}
    for name, text in sites.items():
        config = tmp_path / "nginx.conf"
        config.write_text(
            f"daemon off; master_process off; pid {tmp_path}/nginx.pid;\n"
            f"error_log {tmp_path}/error.log;\nevents {{}}\nhttp {{\naccess_log off;\n"
            + "".join(
                f"{kind}_temp_path {tmp_path}/{kind};\n"
                for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            )
            + text
            + "}\n"
        )
        command = [
            nginx,
            "-p",
            str(tmp_path),
            "-e",
            f"{tmp_path}/error.log",
            "-c",
            str(config),
        ]
        subprocess.run([*command, "-t"], check=True, capture_output=True)
        with proxy_process(command, url, authority.ca):
            faults[name] = keys(check(broker, url, verify=str(authority.ca)))
            metrics = requests.get(f"{url}/metrics", verify=str(authority.ca), timeout=5)
            assert metrics.status_code == 403
    assert faults == {"as it is": [], "buffers": ["proxy_buffers"], "cuts": ["proxy_cuts"]}


def test_caddy_as_in_deploy(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caddy = debian.program("caddy", package="caddy")
    monkeypatch.setenv("HOME", str(tmp_path))
    authority = Authority(tmp_path)
    site, tls_port = adapt("Caddyfile", broker, tmp_path)
    config = tmp_path / "Caddyfile"
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
    config.write_text(options + site.replace("127.0.0.1 {", f"127.0.0.1:{tls_port} {{", 1))
    command = [caddy, "run", "--adapter", "caddyfile", "--config", str(config)]
    url = f"https://127.0.0.1:{tls_port}"
    with proxy_process(command, url, authority.ca):
        assert keys(check(broker, url, verify=str(authority.ca))) == []
        metrics = requests.get(f"{url}/metrics", verify=str(authority.ca), timeout=5)
        assert metrics.status_code == 403
