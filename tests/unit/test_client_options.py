"""The options of producers and consumers: one declaration for checks, types and help()."""

from __future__ import annotations

import inspect
import pydoc
import re
import typing
from dataclasses import fields
from typing import Any

import pytest

import catmq_client
from catmq_client import Consumer, Producer, ShareConsumer, errors, keywords, options
from catmq_client.testing import FakeBroker
from tests.support import client_keywords

CASES = [
    (Producer, options.ProducerOptions, keywords.ProducerKeywords),
    (Consumer, options.ConsumerOptions, keywords.ConsumerKeywords),
    (ShareConsumer, options.ShareConsumerOptions, keywords.ShareConsumerKeywords),
]


@pytest.mark.parametrize(("owner", "declared", "typed"), CASES)
def test_the_types_for_editors_are_the_declared_options(
    owner: type, declared: type[Any], typed: type
) -> None:
    assert typing.get_type_hints(typed) == typing.get_type_hints(declared)
    assert typed.__optional_keys__ == {option.name for option in fields(declared)}  # type: ignore[attr-defined]
    (keyword_arguments,) = (
        parameter
        for parameter in inspect.signature(owner).parameters.values()
        if parameter.kind is inspect.Parameter.VAR_KEYWORD
    )
    assert keyword_arguments.annotation == f"Unpack[{typed.__name__}]"


def test_the_module_of_types_is_the_one_that_the_declaration_gives() -> None:
    assert client_keywords.PATH.read_text() == client_keywords.module_text()


@pytest.mark.parametrize(("owner", "declared", "typed"), CASES)
def test_help_lists_each_option_with_type_default_unit_and_meaning(
    owner: type, declared: type[Any], typed: type
) -> None:
    text = pydoc.plain(pydoc.render_doc(owner))
    words = " ".join(re.sub(r"^ \|", "", text, flags=re.MULTILINE).split())
    for option in fields(declared):
        declaration = option.metadata["declaration"]
        line = f"{option.name}: {option.type} = {option.default!r}"
        assert f"{line}{options.unit_and_range(option)} {declaration.meaning}" in words


def test_help_names_unit_and_range() -> None:
    text = pydoc.plain(pydoc.render_doc(ShareConsumer))
    assert "lease_ms: int | None = None (ms, 5000 to 3600000)" in text
    assert "auto_accept: bool = True\n" in text


@pytest.mark.parametrize(("owner", "declared", "typed"), CASES)
def test_units_in_names_are_the_declared_units(
    owner: type, declared: type[Any], typed: type
) -> None:
    for name, declaration in options.declared(declared).items():
        for suffix, unit in (("_ms", "ms"), ("_bytes", "bytes"), ("_messages", "messages")):
            if name.endswith(suffix):
                assert declaration.unit == unit, name


@pytest.mark.parametrize(
    ("owner", "given", "message"),
    [
        (
            Producer,
            {"linger": 5},
            "linger is not an option of a Producer: did you mean lin",
        ),
        (Consumer, {"group_id": "g"}, "group_id is not an option of a Consumer: did you"),
        (ShareConsumer, {"lease": 1}, "lease is not an option of a ShareConsumer: did you"),
        (Producer, {"linger_ms": -1}, "linger_ms=-1: write a whole number, at least 0"),
        (Producer, {"batch_bytes": 0}, "batch_bytes=0: write a whole number, at least 1"),
        (Producer, {"batch_bytes": None}, "batch_bytes=None: write a whole number"),
        (Producer, {"batch_bytes": True}, "batch_bytes=True: write a whole number"),
        (
            ShareConsumer,
            {"lease_ms": 1},
            "lease_ms=1: write a whole number, 5000 to 3600000",
        ),
        (
            ShareConsumer,
            {"run_messages": 1_001},
            "run_messages=1001: write a whole number, 1",
        ),
        (ShareConsumer, {"auto_accept": 1}, "auto_accept=1: write True or False"),
        (
            ShareConsumer,
            {"auto_offset_reset": "none"},
            "auto_offset_reset='none': write one of earliest, latest",
        ),
        (
            Consumer,
            {"mode": "share"},
            "mode='share': write one of clustering, broadcasting",
        ),
        (
            Consumer,
            {"mode": ["share"]},
            "mode=['share']: write one of clustering, broadcas",
        ),
        (Consumer, {"mode": "broadcasting"}, "mode='broadcasting' without instance_id"),
        (Consumer, {"instance_id": 7}, "instance_id=7: write text"),
        (Consumer, {"on_assigned": 7}, "on_assigned=7: give a function"),
    ],
)
def test_a_wrong_option_is_refused_with_its_remedy(
    owner: type, given: dict[str, Any], message: str
) -> None:
    broker = FakeBroker()
    arguments = {"transport": broker} | ({} if owner is Producer else {"group": "g"})
    with pytest.raises(errors.OptionError) as refused:
        owner(**arguments, **given)
    assert str(refused.value).startswith(message)


def test_none_is_a_value_of_the_options_whose_default_it_is() -> None:
    for declared in (options.ConsumerOptions, options.ShareConsumerOptions):
        given = {f.name: None for f in fields(declared) if f.default is None}
        assert options.check_options(declared, given) == declared()  # type: ignore[type-var]


def test_every_error_is_exported_at_the_top() -> None:
    public = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    assert public <= {*catmq_client.__all__}
    assert all(getattr(catmq_client, name) is getattr(errors, name) for name in public)
    assert [*catmq_client.__all__] == sorted(catmq_client.__all__)


def test_a_with_block_gives_the_object_itself() -> None:
    broker = FakeBroker()
    broker.create_topic("t", queues=1)
    with Producer(transport=broker) as producer:
        producer.send("t", b"1")
    handled: list[bytes] = []
    with Consumer(transport=broker, group="g", topics=["t"]) as consumer:

        def handle(message: catmq_client.Message) -> None:
            handled.append(message.body)
            consumer.stop()

        consumer.run(handle)
    assert type(consumer) is Consumer and type(producer) is Producer
    assert handled == [b"1"]
    with pytest.raises(errors.Closed):
        producer.send("t", b"2")
