"""When a broker has heard from the metadata database: when a statement was answered, and
then only.
"""

from __future__ import annotations

import threading

import pytest
from django.db import OperationalError, connection

from metadata.db.contact import contact
from metadata.db.transactions import reachable, transactional
from metadata.errors import MetadataUnavailable
from metadata.membership import java_beats
from metadata.models import Broker

pytestmark = [pytest.mark.usefixtures("metadata_db"), pytest.mark.one_engine]


@pytest.fixture
def before() -> float:
    """A moment at which nothing was heard for a while."""
    threading.Event().wait(0.05)
    return contact.silent_s()


def test_a_statement_that_was_answered_is_heard(before: float) -> None:
    with reachable():
        Broker.objects.count()
    assert contact.silent_s() < before


def test_a_transaction_is_heard(before: float) -> None:
    transactional(Broker.objects.filter(pk=0).delete)()
    assert contact.silent_s() < before


def test_a_block_that_asked_nothing_has_heard_nothing(before: float) -> None:
    with reachable():
        assert list(Broker.objects.filter(pk__in=[])) == []
    assert contact.silent_s() >= before


def test_a_flush_of_nothing_has_heard_nothing(before: float) -> None:
    java_beats.flush()
    assert contact.silent_s() >= before


def test_a_block_that_failed_after_an_answer_has_heard_nothing(before: float) -> None:
    with pytest.raises(MetadataUnavailable), reachable():
        Broker.objects.count()
        raise OperationalError(2013, "Lost connection")
    assert contact.silent_s() >= before
    assert connection.execute_wrappers == []
