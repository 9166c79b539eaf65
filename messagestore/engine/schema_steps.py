"""Changes of the tables of nodes, in the order of releases; `nodes/upgrade.py` applies
them.

A release reads and writes nodes of the versions OLDEST to VERSION, at least of the one before
its own, so brokers of two releases can share a node before and after
`manage.py upgrade_nodes`. Three rules make that possible:

- A step adds a column at the end (NULL, or with a constant default), a table, or an index of
  a table that has no partitions. It never removes any. Queries have to do without the index
  while it is missing.
- On MySQL and MariaDB no table is copied: a column is added with `ALGORITHM=INSTANT`, and an
  index is built with `ALGORITHM=INPLACE, LOCK=NONE`, while the table is read and written.
- It is one statement, or one transaction on SQLite. So its `column` or index exists if and
  only if the step was applied, even if the run was killed.

A change that cannot follow these rules needs another kind of table, for new queues. New
tables have all steps from the start: a new step also changes the CREATE TABLE.
"""

from __future__ import annotations

from typing import NamedTuple

QUEUES = "message_<queue>"  # as a table name: the message tables of all queues


class SchemaStep(NamedTuple):
    """A change of a table, or of the message tables of all QUEUES.

    The step was applied if `column` exists, or the index `index_name` if the step adds one.
    `statement` is a section of sql/<engine>.sql, with the placeholder `{table}` if it changes
    the tables of queues.
    """

    version: int
    table: str
    column: str
    statement: str
    purpose: str
    index_name: str = ""


STEPS: tuple[SchemaStep, ...] = (
    SchemaStep(
        version=2,
        table="node_identity",
        column="schema_version",
        statement="add_schema_version",
        purpose="the version of the tables, and the oldest release that may use them",
    ),
    SchemaStep(
        version=2,
        table="share_run",
        column="done",
        statement="create_share_tables",
        purpose="how far share groups have leased each queue, and the leases",
    ),
    SchemaStep(
        version=3,
        table="dead_message",
        column="",
        index_name="dead_message_key",
        statement="add_dead_key_index",
        purpose="dead letters of a key are found by an index",
    ),
)
VERSION = STEPS[-1].version
OLDEST = 1
