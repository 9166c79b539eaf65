"""The command line for somebody unlucky: a wrong key, a missing topic, a broker that is
away.
"""

from __future__ import annotations

import pytest

from catmq_client.cli import main
from tests.support.answering import unused_url
from tests.support.broker import Broker


def test_a_wrong_key_is_said_with_where_it_comes_from(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "list", "--url", broker.url, "--api-key", "catmq_wrong"]) == 5
    said = capsys.readouterr().err
    assert "API key" in said
    assert (
        "Is this a key of these brokers? It comes from CATMQ_API_KEY or --api-key" in said
    )


@pytest.mark.parametrize(
    "command", ["topic show orders", "send orders hello", "peek orders"]
)
def test_a_missing_topic_is_said_with_the_command_that_creates_it(
    broker: Broker, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert (
        main([*command.split(), "--url", broker.url, "--api-key", broker.api_key or ""])
        == 4
    )
    said = capsys.readouterr().err
    assert (
        "Topic orders does not exist. Create it: catmq topic create orders --queues 4"
        in said
    )


def test_a_broker_that_is_away_is_said_with_its_address(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = unused_url()
    assert main(["topic", "list", "--url", url, "--api-key", "catmq_any"]) == 6
    said = capsys.readouterr().err
    assert f"Is a broker running there? CATMQ_URL or --url says {url}" in said
    assert "Traceback" not in said and "HTTPConnectionPool" not in said
