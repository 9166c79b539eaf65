"""Rights that accounts of MySQL and MariaDB need.

The checks of a node test whether an account has them, `manage.py grants` prints the GRANT
statements, and docs/reference/grants.md is generated from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from metadata.grouping import grouped


class Grant(Struct, frozen=True):
    """A right that an account needs.

    `right` is its name in MariaDB, "" if it is not needed there. `mysql` is its name in MySQL,
    "" if that is the same. `why` says what the right is used for. It is granted on one
    database, on *.* if `everywhere`, or on a `table` of the server. Without an `optional`
    right, some results are less exact.
    """

    right: str
    why: str
    mysql: str = ""
    everywhere: bool = False
    optional: bool = False
    table: str = ""

    def named(self, flavour: str) -> str:
        """Return the name of the right in "mariadb" or "mysql", "" if it is not needed there."""
        return self.mysql if flavour == "mysql" and self.mysql else self.right

    @property
    def scope(self) -> str:
        if self.table:
            return f"`{self.table}`"
        return "server" if self.everywhere else "database"


NODE = (
    Grant("SELECT", "pulls, look-ups, verification"),
    Grant("INSERT", "sends, subscriptions, new partitions"),
    Grant("UPDATE", "log end offsets, commits, fences"),
    Grant("DELETE", "retention, delayed messages, unsubscribing"),
    Grant("CREATE", "new queues, new partitions"),
    Grant("ALTER", "new partitions, retention"),
    Grant("DROP", "retention, deleting topics"),
    Grant(
        "PROCESS",
        "exact sizes of nodes; a look at long transactions before a table is altered",
        everywhere=True,
        optional=True,
    ),
)
PROMOTION = (
    Grant("PROCESS", "seeing whether a server still copies another one", everywhere=True),
    Grant(
        "REPLICATION SLAVE ADMIN",
        "STOP REPLICA on the server that is promoted",
        mysql="REPLICATION_SLAVE_ADMIN",
        everywhere=True,
    ),
    Grant(
        "READ_ONLY ADMIN",
        "ending read_only on the server that is promoted, setting it on the old primary",
        mysql="SYSTEM_VARIABLES_ADMIN",
        everywhere=True,
    ),
)
GROUP = (
    Grant(
        "",
        "finding the primary, and the members in contact",
        mysql="SELECT",
        table="performance_schema.replication_group_members",
    ),
    Grant(
        "",
        "checks: transactions that wait on a member",
        mysql="SELECT",
        table="performance_schema.replication_group_member_stats",
    ),
)
READER = (Grant("SELECT", "Spark jobs, archives"),)
BACKUP = (
    Grant("SELECT", "reading tables"),
    Grant(
        "",
        "a position in the binary log that fits the dump",
        mysql="RELOAD",
        everywhere=True,
    ),
    Grant(
        "",
        "a position in the binary log that fits the dump",
        mysql="REPLICATION CLIENT",
        everywhere=True,
    ),
)
METADATA = (
    Grant("SELECT", "everything"),
    Grant("INSERT", "everything"),
    Grant("UPDATE", "everything"),
    Grant("DELETE", "everything"),
    Grant("CREATE", "migrations: tables"),
    Grant("ALTER", "migrations: columns"),
    Grant("INDEX", "migrations: indexes"),
    Grant("", "migrations: foreign keys", mysql="REFERENCES"),
    Grant("DROP", "migrations: removed tables"),
)
ACCOUNTS = {  # account → (purpose, rights)
    "node": ("brokers, on a node's database", NODE),
    "promotion": (
        "brokers, in addition, for promote_node on the primary and its replica",
        PROMOTION,
    ),
    "group": (
        "brokers, in addition, on the members of a MySQL group, for a node and for metadata",
        GROUP,
    ),
    "reader": ("people and jobs that read a node (set_reader)", READER),
    "backup": ("mariadb-dump or mysqldump of one database", BACKUP),
    "metadata": ("brokers and jobs, on the metadata database", METADATA),
}
FLAVOURS = {"mariadb": "MariaDB", "mysql": "MySQL"}


def grant_statements(
    grants: Sequence[Grant], *, flavour: str, database: str, username: str, host: str = "%"
) -> list[str]:
    """Return the GRANT statements for an account, optional rights last.

    >>> grant_statements(READER, flavour="mysql", database="node1", username="spark")
    ["GRANT SELECT ON `node1`.* TO 'spark'@'%';"]
    """
    account = f"'{username}'@'{host}'"
    statements = []
    # Rights without a name are not needed on this flavour of server.
    needed = [grant for grant in grants if grant.named(flavour)]
    # One statement per scope. Optional rights have a statement of their own, so that an
    # operator can leave it out.
    for (everywhere, table, _), rights in grouped(
        ((grant.everywhere, grant.table, grant.optional), grant) for grant in needed
    ).items():
        target = table or ("*.*" if everywhere else f"`{database}`.*")
        statements.append(
            f"GRANT {', '.join(grant.named(flavour) for grant in rights)} ON {target} TO {account};"
        )
    return statements
