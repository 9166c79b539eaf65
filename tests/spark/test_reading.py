"""Batch reads: the same rows as a pull gives, no more than was asked for, and never a
silent hole.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_tasks.nodes import plans
from tests.spark.stage import Stage
from tests.support.certificates import Authority
from tests.support.waiting import until


def table(
    spark: SparkSession, topic: str, schema: str | None = None, **options: object
) -> DataFrame:
    """A topic as a table."""
    reader = spark.read.format("catmq").option("topic", topic)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return (reader.schema(schema) if schema else reader).load()


def refused(frame: DataFrame) -> str:
    """What the driver or a task says when the table is read."""
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    return str(caught.value)


@pytest.mark.everyday
def test_a_read_gives_what_a_pull_gives(
    stage: Stage, spark: SparkSession, node: str
) -> None:
    topic = stage.topic(node)
    stage.fill(topic, 2_500)
    read = (
        table(spark, topic, rowsPerPartition=400, chunkRows=150)
        .orderBy("queue", "offset")
        .collect()
    )
    assert [as_pulled(row.asDict()) for row in read] == [
        wanted(one) for one in stage.pulled(topic)
    ]
    assert len(read) == 2_500


@pytest.mark.everyday
def test_headers_are_a_map_by_option(stage: Stage, spark: SparkSession, node: str) -> None:
    topic = stage.topic(node)
    odd = {"a": 'quote " and \\', "B": "ü\n", "c.d": ""}
    stage.send(topic, [{"body": b"0", "headers": odd}, {"body": b"1"}])
    as_json = table(spark, topic)
    assert as_json.schema["headers"].dataType.simpleString() == "string"
    frame = table(spark, topic, headers="map")
    assert frame.schema["headers"].dataType.simpleString() == "map<string,string>"
    rows = frame.select("body", "headers", frame["headers"]["c.d"].alias("one")).collect()
    assert {bytes(row["body"]): row["headers"] for row in rows} == {b"0": odd, b"1": None}
    assert {row["one"] for row in rows} == {"", None}
    assert {
        row["headers"] and json.dumps(json.loads(row["headers"]))
        for row in as_json.collect()
    } == {
        None,
        json.dumps(odd),
    }
    named = table(spark, topic, "headers map<string,string>", headers="Map")
    assert {tuple(sorted(row["headers"] or ())) for row in named.collect()} == {
        (),
        tuple(sorted(odd)),
    }
    # Rows with maps can be written again.
    copy = stage.topic(node)
    frame.select("body", "headers").write.format("catmq").mode("append").option(
        "topic", copy
    ).save()
    copied = {m["body_bytes"]: m.get("headers") or {} for m in stage.pulled(copy)}
    assert copied == {b"0": odd, b"1": {}}


def test_a_schema_that_contradicts_the_option_of_headers_is_refused(
    stage: Stage, spark: SparkSession
) -> None:
    topic = stage.topic("main")
    assert "option headers is json" in refused(
        table(spark, topic, "headers map<string,string>")
    )
    assert "option headers is map" in refused(
        table(spark, topic, "headers string", headers="map")
    )
    with pytest.raises(PySparkException, match="must be json or map, not 'struct'"):
        table(spark, topic, headers="struct")


def as_pulled(row: dict[str, Any]) -> dict[str, Any]:
    """A row of Spark in the words of the API."""
    at = row["stored_at"].replace(tzinfo=UTC)
    return {
        "queue": row["queue"],
        "offset": row["offset"],
        "key": row["key"],
        "tag": row["tag"],
        "headers": json.loads(row["headers"]) if row["headers"] else {},
        "body": bytes(row["body"]),
        "stored_at_ms": round(at.timestamp() * 1000),
    }


def wanted(message: dict[str, Any]) -> dict[str, Any]:
    """A pulled message without what a table does not have."""
    return {
        "queue": message["queue"],
        "offset": message["offset"],
        "key": message.get("key"),
        "tag": message.get("tag"),
        "headers": message.get("headers") or {},
        "body": message["body_bytes"],
        "stored_at_ms": message["stored_at_ms"],
    }


def test_an_empty_topic_is_an_empty_table(stage: Stage, spark: SparkSession) -> None:
    assert table(spark, stage.topic("maria")).count() == 0


def test_partitions_are_ranges_of_queues(stage: Stage, spark: SparkSession) -> None:
    topic = stage.topic("maria", queues=1)
    stage.fill(topic, 1_000)
    frame = table(spark, topic, "offset bigint", rowsPerPartition=300)
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(row.offset for row in frame.collect()) == list(range(1_000))


def test_filters_narrow_what_is_read(stage: Stage, spark: SparkSession, node: str) -> None:
    topic = stage.topic(node)
    stage.fill(topic, 1_200)
    first, _ = stage.queues(topic)
    frame = table(spark, topic, rowsPerPartition=100)
    mine = [one for one in stage.pulled(topic) if one["queue"] == first]
    few = frame.where(
        (F.col("queue") == first) & (F.col("offset") >= 10) & (F.col("offset") < 20)
    )
    assert few.rdd.getNumPartitions() == 1
    assert [row.offset for row in few.collect()] == list(range(10, 20))
    keyed = frame.where(F.col("key") == "key-3")
    assert keyed.count() == len([n for n in range(1_200) if n % 7 == 3])
    assert frame.where(
        F.col("tag").isin("even") & F.col("key").isin("key-1", "key-2")
    ).count() == len([n for n in range(1_200) if n % 2 == 0 and n % 7 in (1, 2)])
    middle = mine[len(mine) // 2]["stored_at_ms"]
    later = frame.where((F.col("queue") == first) & (F.col("stored_at") >= at(middle)))
    assert later.count() == len([one for one in mine if one["stored_at_ms"] >= middle])
    assert (
        later.rdd.getNumPartitions()
        < frame.where(F.col("queue") == first).rdd.getNumPartitions() + 1
    )


def at(ms: int) -> datetime:
    """A time as Spark compares it."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_a_key_with_a_blank_at_its_end_is_another_key(
    stage: Stage, spark: SparkSession, node: str
) -> None:
    topic = stage.topic(node, queues=1)
    stage.send(
        topic,
        [
            {"body": b"1", "key": "a"},
            {"body": b"2", "key": "a "},
            {"body": b"3", "key": "a'"},
        ],
    )
    frame = table(spark, topic)
    assert [bytes(row.body) for row in frame.where(F.col("key") == "a").collect()] == [b"1"]
    assert [bytes(row.body) for row in frame.where(F.col("key") == "a'").collect()] == [
        b"3"
    ]


def test_only_columns_of_the_schema_are_fetched(stage: Stage, spark: SparkSession) -> None:
    topic = stage.topic("main", queues=1)
    stage.fill(topic, 50)
    (queue,) = stage.queues(topic)
    stage.execute("main", f"ALTER TABLE {{message_{queue}}} RENAME COLUMN body TO hidden")
    assert table(spark, topic, "key string, offset bigint").count() == 50
    assert "no such column: body" in refused(table(spark, topic))


def test_large_bodies_come_in_small_chunks(
    stage: Stage, spark: SparkSession, node: str
) -> None:
    topic = stage.topic(node, queues=1)
    stage.send(topic, ({"body": bytes([n]) * (900 << 10)} for n in range(60)))
    found = table(spark, topic).select(
        F.sha2("body", 256).alias("sum"), F.length("body").alias("n")
    )
    rows = found.collect()
    assert len({row["sum"] for row in rows}) == 60
    assert {row["n"] for row in rows} == {900 << 10}


def test_a_range_by_offsets_and_by_time(
    stage: Stage, spark: SparkSession, node: str
) -> None:
    topic = stage.topic(node, queues=1)
    stage.fill(topic, 300)
    (queue,) = stage.queues(topic)
    options = {
        "startingOffsets": f'{{"{queue}": 100}}',
        "endingOffsets": f'{{"{queue}": 160}}',
    }
    assert table(spark, topic, "offset bigint", **options).count() == 60
    when = [one["stored_at_ms"] for one in stage.pulled(topic)]
    middle = when[len(when) // 2]
    assert table(spark, topic, "offset bigint", startingTimestamp=middle).count() == sum(
        one >= middle for one in when
    )
    assert table(spark, topic, "offset bigint", endingTimestamp=middle).count() == sum(
        one < middle for one in when
    )


def test_offsets_that_were_declared_lost_are_passed_over(
    stage: Stage, spark: SparkSession, node: str
) -> None:
    topic = stage.topic(node, queues=1)
    stage.fill(topic, 100)
    (queue,) = stage.queues(topic)
    stage.execute(node, f"INSERT INTO {{queue_gap}} VALUES ({queue}, 40, 60, 'promotion')")
    stage.execute(
        node, f"DELETE FROM {{message_{queue}}} WHERE msg_offset >= 40 AND msg_offset < 60"
    )
    offsets = sorted(row.offset for row in table(spark, topic, "offset bigint").collect())
    assert offsets == [*range(40), *range(60, 100)]


def test_a_hole_that_nobody_declared_fails_the_read(
    stage: Stage, spark: SparkSession, node: str
) -> None:
    topic = stage.topic(node, queues=1)
    stage.fill(topic, 100)
    (queue,) = stage.queues(topic)
    stage.execute(node, f"DELETE FROM {{message_{queue}}} WHERE msg_offset = 57")
    assert "offset 57 is missing and nobody declared it lost" in refused(
        table(spark, topic)
    )
    hidden = table(spark, topic).where(F.col("key") == "key-0")
    assert "offset 57 is missing" in refused(hidden), "also where the node filters"


def test_a_range_below_what_is_kept_is_refused(
    stage: Stage, spark: SparkSession, node: str
) -> None:
    topic = stage.topic(node, queues=1)
    stage.fill(topic, 100)
    (queue,) = stage.queues(topic)
    stage.execute(node, f"UPDATE {{queue_head}} SET low = 30 WHERE queue_id = {queue}")
    assert table(spark, topic).count() == 70
    below = table(spark, topic, startingOffsets=f'{{"{queue}": 10}}')
    assert "offsets 10 … 29 are no longer on node" in refused(below)
    above = table(spark, topic, startingOffsets=f'{{"{queue}": 101}}')
    assert "offset 101 is not stored yet" in refused(above)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rowsPerPartion": 5}, "did you mean rowsPerPartition?"),
        ({"queues": "999999"}, "999999 is not a queue of topic"),
        ({"queues": "a"}, "option queues must be ids"),
        ({"chunkRows": 0}, "option chunkRows must be a whole number of at least 1"),
        (
            {"startingOffsets": "[1]"},
            "option startingOffsets must be earliest or latest or such as",
        ),
    ],
)
def test_a_wrong_option_is_named(
    stage: Stage, spark: SparkSession, options: dict[str, object], says: str
) -> None:
    topic = stage.topic("main", queues=1)
    # Some options are checked when the table is named, others when it is read.
    with pytest.raises(PySparkException) as caught:
        table(spark, topic, **options).collect()
    assert says in str(caught.value)


def test_an_unknown_topic_and_column_are_named(stage: Stage, spark: SparkSession) -> None:
    assert "Topic nothing does not exist" in refused(table(spark, "nothing"))
    topic = stage.topic("main", queues=1)
    assert "colour is not a column of a message" in refused(
        table(spark, topic, "colour string")
    )


def test_no_password_is_seen(
    stage: Stage, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = stage.topic("maria", queues=1)
    stage.fill(topic, 20)
    frame = table(spark, topic).where(F.col("offset") > 3)
    frame.explain(extended=True)
    frame.collect()
    plan = frame._jdf.queryExecution().toString()
    shown = plan + "".join(capfd.readouterr()) + repr(plans.fetch(topic))
    assert "offset" in shown
    for secret in (stage.password, stage.server.api_key):
        assert secret not in shown
        assert secret not in str(spark.sparkContext.getConf().getAll())


def test_a_node_is_read_by_tls_as_brokers_reach_it(
    stage: Stage, spark: SparkSession, authority: Authority
) -> None:
    topic = stage.topic("maria")
    stage.fill(topic, 500)
    reader = stage.admin.read_plan(topic)["nodes"][0]["username"]

    def plans_say(mode: str) -> bool:
        """Ask often enough to meet every worker, each of which follows a change by itself."""
        return all(
            stage.admin.read_plan(topic)["nodes"][0]["tls"] == mode for _ in range(16)
        )

    def change(mode: str, ca: str) -> None:
        asked = {"tls": mode, "tls_ca": ca}
        assert stage.server.call("PATCH", "/api/v1/nodes/maria", asked)[0] == 200
        until(lambda: plans_say(mode))

    change("verify", str(authority.ca))
    stage.mariadb.execute(f"ALTER USER {reader}@'127.0.0.1' REQUIRE SSL")
    try:
        rows = table(spark, topic).select("body").collect()
        change("off", "")
        assert "Access denied" in refused(table(spark, topic))  # it was TLS that let it in
    finally:
        stage.mariadb.execute(f"ALTER USER {reader}@'127.0.0.1' REQUIRE NONE")
        change("off", "")
    assert sorted(bytes(row.body) for row in rows) == sorted(
        f"body {n} ü".encode() for n in range(500)
    )
