"""Changes of the tables of nodes, in the order in which releases made them;
`nodes/upgrade.py` applies them.

A release reads and writes nodes of its own VERSION and of the one before, so brokers of two
releases work on one node, before and after `manage.py upgrade_nodes`. Three rules keep it
so. A step adds a column at the end (NULL, or with a constant default) or a table, and never
takes one away. On MySQL and MariaDB it is
`ALGORITHM=INSTANT`, so that no table is copied. And it is one statement, or one transaction
on SQLite: so its
`column` tells whether it was made, also when the run that made it was killed.

What cannot be done so is another kind of table, for new queues. New tables have all steps
at once: whoever adds a step adds its column to the CREATE TABLE, too.
"""

from __future__ import annotations

from typing import NamedTuple

QUEUES = "message_<queue>"  # in the place of a table's name: the tables of all queues


class SchemaStep(NamedTuple):
    """A change of one table, or of those of all QUEUES. The step is made where the `column`
    exists.

    `statement` is a section of sql/<engine>.sql, with the hole `{table}` for that of a
    queue.
    """

    version: int
    table: str
    column: str
    statement: str
    purpose: str


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
)
VERSION = STEPS[-1].version
OLDEST = VERSION - 1
