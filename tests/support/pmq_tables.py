"""Tables of PMQ's metadata database with their real columns, and the kinds of rows that
occur there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.mariadb import MariaDB

ABOUT = "insert_by VARCHAR(100), insert_time TIMESTAMP NULL, is_active TINYINT NOT NULL DEFAULT 0"
TABLES = {
    "topic": """
        name VARCHAR(100) NOT NULL UNIQUE, origin_name VARCHAR(100), dpt_name VARCHAR(45),
        owner_ids VARCHAR(200) NOT NULL DEFAULT '', owner_names VARCHAR(200) NOT NULL DEFAULT '',
        emails VARCHAR(1000), tels VARCHAR(1000), expect_day_count INT NOT NULL DEFAULT 1,
        business_type VARCHAR(200), save_day_num TINYINT NOT NULL DEFAULT 7,
        remark VARCHAR(100) NOT NULL DEFAULT '', token VARCHAR(45), normal_flag TINYINT DEFAULT 1,
        topic_type TINYINT, max_lag INT DEFAULT 10000, consumer_flag TINYINT DEFAULT 1,
        consumer_group_names VARCHAR(1000), app_id VARCHAR(100)""",
    "queue": """
        topic_id BIGINT NOT NULL, topic_name VARCHAR(100) NOT NULL DEFAULT '',
        db_node_id BIGINT NOT NULL,
        node_type TINYINT, ip VARCHAR(100), db_name VARCHAR(100) NOT NULL DEFAULT '',
        tb_name VARCHAR(100) NOT NULL DEFAULT '', read_only TINYINT NOT NULL DEFAULT 1,
        min_id BIGINT NOT NULL DEFAULT 0, lock_version BIGINT NOT NULL DEFAULT 1""",
    "consumer_group": """
        name VARCHAR(50) NOT NULL UNIQUE, dpt_name VARCHAR(100), topic_names TEXT,
        owner_ids VARCHAR(200) NOT NULL DEFAULT '', owner_names VARCHAR(200) NOT NULL DEFAULT '',
        alarm_emails VARCHAR(1000), tels VARCHAR(1000), ip_white_list VARCHAR(200),
        ip_black_list VARCHAR(200), alarm_flag TINYINT NOT NULL DEFAULT 1,
        trace_flag TINYINT DEFAULT 0,
        remark VARCHAR(100), rb_version BIGINT NOT NULL DEFAULT 0, meta_version BIGINT DEFAULT 0,
        version BIGINT DEFAULT 0, consumer_count TINYINT DEFAULT 0, app_id VARCHAR(45),
        consumer_quality TINYINT DEFAULT 0, mode INT NOT NULL DEFAULT 1, origin_name VARCHAR(50),
        sub_env VARCHAR(45) NOT NULL DEFAULT 'default', push_flag INT NOT NULL DEFAULT 0""",
    "consumer_group_topic": """
        consumer_group_id BIGINT NOT NULL, consumer_group_name VARCHAR(100) NOT NULL DEFAULT '',
        topic_id BIGINT, topic_name VARCHAR(100) NOT NULL DEFAULT '',
        origin_topic_name VARCHAR(100),
        topic_type TINYINT DEFAULT 1, retry_count INT DEFAULT 100, thread_size INT DEFAULT 10,
        max_lag INT DEFAULT 1000, tag VARCHAR(100), delay_process_time INT DEFAULT 0,
        pull_batch_size INT DEFAULT 50, consumer_batch_size INT DEFAULT 1, max_pull_time INT
        DEFAULT 5,
        alarm_emails TEXT, time_out INT DEFAULT 0, UNIQUE (consumer_group_id, topic_id)""",
    "queue_offset": """
        consumer_group_id BIGINT NOT NULL, consumer_group_name VARCHAR(100) NOT NULL DEFAULT '',
        consumer_name VARCHAR(100), consumer_id BIGINT DEFAULT 0, topic_id BIGINT NOT NULL,
        topic_name VARCHAR(100) NOT NULL DEFAULT '', origin_topic_name VARCHAR(100),
        topic_type TINYINT DEFAULT 1, queue_id BIGINT NOT NULL, `offset` BIGINT NOT NULL DEFAULT 0,
        start_offset BIGINT DEFAULT 0, offset_version BIGINT NOT NULL DEFAULT 0,
        stop_flag TINYINT DEFAULT 0, db_info VARCHAR(100), origin_consumer_group_name VARCHAR(50),
        consumer_group_mode INT NOT NULL DEFAULT 1, sub_env VARCHAR(45) NOT NULL DEFAULT 'default',
        UNIQUE (consumer_group_id, topic_id, queue_id)""",
}


class Pmq:
    """A metadata database of PMQ."""

    def __init__(self, server: MariaDB, schema: str) -> None:
        self.server, self.schema = server, schema
        for table, columns in TABLES.items():
            self.execute(
                f"CREATE TABLE `{table}` (id BIGINT AUTO_INCREMENT PRIMARY KEY, {columns}, {ABOUT})"
            )

    def execute(self, statement: str, arguments: tuple[object, ...] = ()) -> int:
        """Run a statement. Return the id of the inserted row."""
        connection = self.server.connect(database=self.schema)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, arguments or None)
                return int(cursor.lastrowid or 0)
        finally:
            connection.close()

    def add(self, table: str, **values: object) -> int:
        """Insert a row and return its id."""
        names = ", ".join(f"`{name}`" for name in values)
        placeholders = ", ".join(["%s"] * len(values))
        return self.execute(
            f"INSERT INTO `{table}` ({names}) VALUES ({placeholders})",
            tuple(values.values()),
        )

    def topic(
        self, name: str, *, queues: int = 2, closed: int = 0, **values: object
    ) -> int:
        """Create a topic with open and closed queues on two nodes."""
        defaults = {"topic_type": 1, "origin_name": name}
        topic = self.add("topic", name=name, **{**defaults, **values})
        for number in range(queues + closed):
            state = 1 if number < queues else 2
            location = {
                "db_node_id": 1 + number % 2,
                "tb_name": f"message_{number:02}",
                "read_only": state,
            }
            self.add("queue", topic_id=topic, topic_name=name, **location)
        return topic

    def group(
        self,
        name: str,
        topics: Mapping[str, Mapping[str, Any]] | None = None,
        **values: object,
    ) -> int:
        """Create a group with subscriptions, and the retry topic and offsets that PMQ
        creates for each.
        """
        group = self.add("consumer_group", name=name, **{"origin_name": name, **values})
        for topic, settings in (topics or {}).items():
            self.subscribe(name, group, topic, **settings)
        return group

    def subscribe(self, name: str, group: int, topic: str, **settings: Any) -> None:
        (row,) = self.server.execute(
            f"SELECT id FROM `{self.schema}`.topic WHERE name = %s", (topic,)
        )
        group_columns = {"consumer_group_id": group, "consumer_group_name": name}
        offset_columns = {
            name: settings.pop(name)
            for name in ("stop_flag", "consumer_name")
            if name in settings
        }
        self.add(
            "consumer_group_topic",
            **group_columns,
            topic_id=row[0],
            topic_name=topic,
            **settings,
        )
        queues = self.server.execute(
            f"SELECT id FROM `{self.schema}`.queue WHERE topic_id = %s", (row[0],)
        )
        for number, (queue,) in enumerate(queues):
            columns = {"queue_id": queue, "offset": 1_000 + number, **offset_columns}
            self.add(
                "queue_offset",
                **group_columns,
                topic_id=row[0],
                topic_name=topic,
                **columns,
            )
        retry = f"{name}_{topic}_fail"
        retry_topic = self.topic(retry, queues=1, origin_name=topic, topic_type=2)
        retry_columns = {
            "topic_id": retry_topic,
            "topic_name": retry,
            "origin_topic_name": topic,
            "topic_type": 2,
        }
        self.add("consumer_group_topic", **group_columns, **retry_columns)
        self.add(
            "queue_offset",
            **group_columns,
            **retry_columns,
            queue_id=900_000 + retry_topic,
            offset=5,
        )
