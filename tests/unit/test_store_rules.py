"""The store's pure parts: statements, density, ids, limits."""

from __future__ import annotations

from uuid import uuid4

import pytest

from messagestore.engine import batch_ids, db_errors, messages
from messagestore.engine.messages import NewMessage
from messagestore.engine.mysql_session import MySqlSession, syncs_before_it_shows
from messagestore.engine.transaction_strings import Result
from messagestore.heads import gap_check
from messagestore.tables import message_sql
from messagestore.tables.shapes import NewBatch
from messagestore.tables.statements import load, parse
from metadata.config import config
from metadata.errors import Invalid, OutcomeUnknown, StoreCorrupt, TooLarge
from metadata.rules.nodes import Engine


def test_both_engines_know_the_same_verbs() -> None:
    mysql, sqlite = set(load(Engine.MYSQL)), set(load(Engine.SQLITE))
    of_servers = {
        "select_replication",
        "stop_receiving",
        "stop_replicating",
        "select_connections",
    }
    of_servers |= {
        "forbid_writes",
        "forbid_all_writes",
        "allow_writes",
        "kill_connection",
        "select_server",
    }
    of_servers |= {
        "select_place",
        "set_mark",
        "select_version_comment",
        "select_proxy_version",
        "show_limits",
    }
    of_servers |= {
        "select_gtid_mariadb",
        "select_gtid_mysql",
        "show_binlog_status",
        "show_master_status",
    }
    of_servers |= {
        "try_process",
        "try_read_only",
        "select_privileges",
        "select_account",
        "select_tls",
    }
    of_servers |= {"select_wsrep", "show_isolation"}
    of_servers |= {"show_operation", "show_operation_status"}
    partitions_tried = {"try_alter"}
    partitions = {"select_partitions", "add_partitions", "drop_partition"}
    partitions |= {"probe_key_index", "rebuild_partition"}
    locks = {"limit_lock_wait", "take_table_lock", "select_long_transactions"}
    sizes = {"select_tablespaces", "select_table_sizes", "select_queue_sizes"}
    strings = {"publish_open", "publish_open_mariadb", "publish_whole_mariadb"}
    strings |= {"publish_first_mariadb", "delay_open", "delay_close", "pulse"}
    strings |= {"move_head", "lock_delayed"}
    assert (
        mysql - sqlite
        == strings | of_servers | partitions | partitions_tried | locks | sizes
    )
    pieces = {"publish_head", "publish_raise", "publish_batch", "delay_head", "delay_batch"}
    assert sqlite - mysql == pieces | {"select_file_size"}


def test_a_send_to_galera_ends_with_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    session = MySqlSession.__new__(MySqlSession)
    session.flavour, session.max_packet, session.is_galera = "mariadb", 1 << 24, True
    texts = []

    def send(text: bytes, *, statements: int, ends_transaction: bool) -> list[Result]:
        texts.append(text)
        return [Result([(7,)], 1), Result([("0 0 1 8 1 8 1 8 ",)], 1), Result((), 0)]

    monkeypatch.setattr(session, "send", send)
    batch = NewBatch(b"i" * 16, b"d" * 32, [NewMessage(body=b"x")], "producer")

    assert message_sql.insert_messages(session, queue=1, node_epoch=1, batches=[batch]) == 7
    (text,) = texts
    assert text.startswith(b"BEGIN NOT ATOMIC") and text.endswith(b"; COMMIT; END")


def test_a_statement_is_rendered_with_escaped_values_and_plain_holes() -> None:
    statement = parse("-- name: s\nSELECT a FROM {table} WHERE b = :b AND c = ':not'")["s"]
    rendered = statement.render(
        {"table": "t", "b": "x", "not": "y"}, lambda given: b"<%b>" % str(given).encode()
    )
    assert rendered == b"SELECT a FROM t WHERE b = <x> AND c = '<y>'"


@pytest.mark.parametrize(
    ("variables", "durable"),
    [
        ({"log_bin": "ON", "sync_binlog": "1"}, True),
        ({"log_bin": "ON", "sync_binlog": "1", "binlog_storage_engine": ""}, True),
        ({"log_bin": "ON", "sync_binlog": "1", "binlog_storage_engine": "innodb"}, False),
        ({"log_bin": "ON", "sync_binlog": "0"}, False),
        ({"log_bin": "OFF", "sync_binlog": "1"}, False),
    ],
)
def test_only_a_synced_binary_log_of_its_own_lets_a_server_show_what_is_durable(
    variables: dict[str, str], durable: bool
) -> None:
    assert syncs_before_it_shows(variables) is durable


def test_a_statement_with_a_missing_value_is_refused() -> None:
    with pytest.raises(KeyError):
        parse("-- name: s\nSELECT :b")["s"].render({}, lambda given: b"")


def test_every_hole_in_the_rows_is_found() -> None:
    for missing in range(20):
        offsets = [offset for offset in range(20) if offset != missing]
        assert gap_check.dense_length(0, offsets) == missing


def test_a_position_below_low_is_cleaned_even_inside_a_gap() -> None:
    assert gap_check.explain_missing(5, low=9, gaps=[(0, 20)]).state == "cleaned"


def test_a_gap_ends_where_it_says() -> None:
    verdict = gap_check.explain_missing(5, low=0, gaps=[(5, 6)])
    assert (verdict.state, verdict.next_offset, verdict.gap) == ("lost_tail", 6, (5, 6))
    assert gap_check.explain_missing(6, low=0, gaps=[(5, 6)]).state == "corrupt"


def test_batch_ids_are_uuids_of_version_7_and_others_are_refused() -> None:
    made = batch_ids.new()
    assert (made.version, made.variant) == (7, uuid4().variant)
    assert batch_ids.check(made) == made
    with pytest.raises(Invalid, match="version 7"):
        batch_ids.check(uuid4())


def test_later_batch_ids_sort_behind_earlier_ones() -> None:
    first, second = batch_ids.new(), batch_ids.new()
    assert first.int >> 80 <= second.int >> 80


@pytest.mark.parametrize(
    "text", ["", "7", "7-", "-1", "7-x", "7-1-2", "-7-1", "\u0667-1", "1" * 30 + "-1"]
)
def test_what_is_not_a_message_id_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="message_id"):
        messages.parse_message_id(text)


def test_a_digest_tells_batches_apart_whatever_the_order_of_their_headers() -> None:
    one = NewMessage(body=b"a", headers={"x": "1", "y": "2"})
    same = NewMessage(body=b"a", headers={"y": "2", "x": "1"})
    assert messages.digest([one]) == messages.digest([same])
    different = [
        NewMessage(body=b"b"),
        NewMessage(body=b"a", key="k"),
        NewMessage(body=b"a", tag="k"),
    ]
    assert len({messages.digest([message]) for message in different}) == 3
    assert messages.digest([one]) != messages.digest([one, one])


def test_every_wrong_field_of_every_message_is_named() -> None:
    wrong = [
        NewMessage(body=b""),
        NewMessage(body=b"", key="k" * 201, tag="t" * 101),
        NewMessage(body=b"", trace_id="x" * 101),
    ]
    with pytest.raises(Invalid) as caught:
        messages.validate(wrong)
    assert [error.field for error in caught.value.errors] == [
        "messages[1].key",
        "messages[1].tag",
        "messages[2].trace_id",
    ]


def test_a_body_over_the_limit_is_too_large_and_one_at_the_limit_is_not() -> None:
    messages.validate([NewMessage(body=b"x" * config.max_body_bytes)])
    with pytest.raises(TooLarge, match=str(config.max_body_bytes)):
        messages.validate([NewMessage(body=b"x" * (config.max_body_bytes + 1))])


def test_empty_and_overfull_batches_are_refused() -> None:
    with pytest.raises(Invalid, match="at least one"):
        messages.validate([])
    with pytest.raises(TooLarge, match=str(config.max_messages)):
        messages.validate([NewMessage(body=b"")] * (config.max_messages + 1))


def test_too_many_headers_are_refused() -> None:
    with pytest.raises(Invalid, match=r"messages\[0\].headers"):
        messages.validate(
            [NewMessage(body=b"", headers={str(index): "" for index in range(33)})]
        )


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1048, db_errors.Refused),
        (1062, db_errors.Duplicate),
        (1213, db_errors.RolledBack),
        (1205, db_errors.RolledBack),
        (1799, db_errors.RolledBack),
        (1176, db_errors.NoIndex),
        (1846, db_errors.NotInPlace),
        (1020, db_errors.RolledBack),
        (2013, db_errors.Ambiguous),
        (1927, db_errors.Ambiguous),
        (1180, db_errors.Ambiguous),
        (1047, db_errors.NotReady),
        (3782, db_errors.NotReady),
        (3797, db_errors.NotReady),
        (3100, db_errors.Ambiguous),
        (1146, db_errors.Altered),
        (1406, db_errors.Final),
        (1142, db_errors.Denied),
        (1227, db_errors.Denied),
        (1153, db_errors.Final),
        (0, db_errors.Ambiguous),
        (9999, db_errors.Final),
    ],
)
def test_an_error_number_decides_what_may_be_done(
    number: int, kind: type[Exception]
) -> None:
    assert type(db_errors.from_mysql(number, "", "n")) is kind


def test_faults_that_nobody_handles_still_tell_the_truth() -> None:
    assert issubclass(db_errors.Ambiguous, OutcomeUnknown) and issubclass(
        db_errors.Altered, StoreCorrupt
    )
    assert db_errors.from_mysql(1114, "full", "n").code == "node_full"


@pytest.mark.parametrize("flavour", ["mariadb", "mysql"])
def test_a_send_whose_answer_has_no_offset_is_in_doubt(
    flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = MySqlSession.__new__(MySqlSession)
    session.flavour, session.max_packet = flavour, 1 << 24
    session.is_galera = False
    # As through a proxy that drops insert ids, or variables between statements.
    answers = [Result([(None,)], 1), Result((), 0)]
    if flavour == "mysql":
        answers = [Result((), 0)] * 6
    monkeypatch.setattr(
        session, "send", lambda text, *, statements, **_: answers[:statements]
    )
    batch = NewBatch(b"i" * 16, b"d" * 32, [NewMessage(body=b"x")], "producer")

    with pytest.raises(db_errors.Ambiguous, match="does not say where"):
        message_sql.insert_messages(session, queue=1, node_epoch=1, batches=[batch])
