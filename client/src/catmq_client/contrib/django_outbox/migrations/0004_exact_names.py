"""Keys, tags and topics are compared byte by byte, and take any character, also on MySQL
and MariaDB.

Their default collations do not tell `A` from `a`, and utf8mb3 has no emoji. The tables are
copied. That takes long only if many messages wait in the outbox, and nobody can send
meanwhile.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations


def compare_bytes(apps: Any, editor: Any) -> None:
    if editor.connection.vendor != "mysql":
        return
    # utf8mb4_bin ignores blanks at the end.
    collation = (
        "utf8mb4_nopad_bin" if editor.connection.mysql_is_mariadb else "utf8mb4_0900_bin"
    )
    for name in ("OutboxMessage", "OutboxRelay"):
        table = editor.quote_name(apps.get_model("catmq_outbox", name)._meta.db_table)
        editor.execute(
            f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}"
        )


class Migration(migrations.Migration):
    dependencies: ClassVar[list[Any]] = [("catmq_outbox", "0003_relay_address")]

    operations: ClassVar[list[Any]] = [
        migrations.RunPython(compare_bytes, migrations.RunPython.noop, atomic=False),
    ]
