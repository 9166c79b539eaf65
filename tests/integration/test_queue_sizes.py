"""Queues are measured with their nodes, on both engines."""

from __future__ import annotations

from messagestore.nodes import disks
from metadata.models import DbNode, Queue
from metadata.nodes import size_rows
from tests.support import failing
from tests.support.environment import ENGINE
from tests.support.tampering import plant


def test_a_queue_is_as_large_as_what_is_in_it(node: str, failure_node: str) -> None:
    queue = failing.billing()
    assert disks.record() == 2
    empty = Queue.objects.get(pk=queue).bytes
    assert empty is not None
    failing.send(*[b"x" * 10_000] * 100)
    disks.record()
    full = Queue.objects.get(pk=queue).bytes
    if ENGINE == "sqlite":
        assert empty == 0 and 1_000_000 < (full or 0) < 1_100_000
    else:  # as its statistics say, which are not exact
        assert full is not None and full >= empty > 0


def test_only_what_a_node_was_measured_for_changes(node: str, failure_node: str) -> None:
    queue = failing.billing()
    main = DbNode.objects.get(name="main").pk
    assert size_rows.record_queue_sizes({main: {queue: 7}}) == 1
    assert size_rows.record_queue_sizes({main: {queue: 7}}) == 0
    # it was away
    assert size_rows.record_queue_sizes({}) == 0 and Queue.objects.get(pk=queue).bytes == 7
    assert (
        size_rows.record_queue_sizes({main: {}}) == 1
        and Queue.objects.get(pk=queue).bytes is None
    )


def test_a_queue_whose_table_is_gone_hides_no_other(node: str, failure_node: str) -> None:
    queue = failing.billing()
    failing.send(b"a")
    plant(queue, "DROP TABLE message_{q}")
    assert disks.record() == 2
    assert Queue.objects.get(pk=queue).bytes is None
    assert Queue.objects.exclude(pk=queue).filter(bytes__isnull=True).count() == 0
