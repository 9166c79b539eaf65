"""A Prometheus that scrapes a broker every second."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from tests.support import debian
from tests.support.environment import ROOT, free_port
from tests.support.waiting import until

RULES = ROOT / "deploy" / "monitoring" / "rules.yml"


class Prometheus:
    """Its URL, and queries to it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        answer = requests.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the (labels, value) of each sample of a query."""
        result = self.get("query", query=expression)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def scrapes(self) -> int:
        """Return the number of scrapes that succeeded."""
        samples = self.query('sum(sum_over_time(up{job="catmq"}[5m]))')
        return int(samples[0][1]) if samples else 0


@contextmanager
def prometheus(broker_url: str, directory: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the rules of deploy/monitoring. Yield it once it has scraped the
    broker. Skips the test if Debian's package cannot be had.
    """
    binary = debian.program("prometheus", package="prometheus")
    config = {
        # The interval is the limit of a scrape, too: shorter, a busy machine would miss some,
        # and a query right after a missed scrape has no result.
        "global": {
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "evaluation_interval": "1s",
        },
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "catmq",
                "static_configs": [{"targets": [urlsplit(broker_url).netloc]}],
            }
        ],
    }
    # JSON is YAML.
    (directory / "prometheus.yml").write_text(json.dumps(config))
    address = f"127.0.0.1:{free_port()}"
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    server = Prometheus(f"http://{address}")

    def has_scraped() -> bool:
        assert process.poll() is None, (directory / "prometheus.log").read_text()[-2000:]
        try:
            # It answers queries with 503 while it starts.
            is_ready = requests.get(f"http://{address}/-/ready", timeout=10).ok
        except requests.ConnectionError:
            return False
        return is_ready and server.scrapes() > 0

    try:
        until(has_scraped, limit_s=60, every_s=0.1)
        yield server
    finally:
        process.kill()
        process.wait()
