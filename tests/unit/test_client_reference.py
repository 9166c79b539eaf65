"""docs/reference/client.md names every option with its default, and every error that users
meet.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from catmq_client import errors
from catmq_client.contrib.kombu.options import TransportOptions
from catmq_client.options import ConsumerOptions, ProducerOptions, ShareConsumerOptions

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "client.md").read_text()
BASES = {"CatmqError", "Refused", "SendError", "ReadError", "ConsumerError"}


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("## Producer", ProducerOptions),
        ("## Consumer", ConsumerOptions),
        ("## ShareConsumer", ShareConsumerOptions),
    ],
)
def test_the_table_of_options_has_every_option_with_its_default(
    heading: str,
    kind: type[ProducerOptions] | type[ConsumerOptions] | type[ShareConsumerOptions],
) -> None:
    section = PAGE.partition(heading + "\n")[2].partition("\n## ")[0]
    table = section.partition("| option |")[2]
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", table, re.MULTILINE)
    assert rows == [(option.name, str(option.default)) for option in fields(kind)]


def test_the_table_of_the_celery_transport_has_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "celery.md").read_text()
    section = page.partition("## Options\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", section, re.MULTILINE)
    assert rows == [
        (option.name, str(option.default)) for option in fields(TransportOptions)
    ]


def test_the_table_of_errors_has_every_error() -> None:
    section = PAGE.partition("## Errors\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([A-Z]\w+)`", section)) - {"ValueError"}
    known = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.CatmqError)
    }
    assert named == known - BASES
