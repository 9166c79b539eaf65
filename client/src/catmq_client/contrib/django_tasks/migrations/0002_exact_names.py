"""Names of schedules are compared byte by byte, and take any character, also on MySQL and MariaDB."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations


def compare_bytes(apps: Any, editor: Any) -> None:
    if editor.connection.vendor != "mysql":
        return
    table = editor.quote_name(apps.get_model("catmq_tasks", "TaskSchedule")._meta.db_table)
    editor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")


class Migration(migrations.Migration):
    dependencies: ClassVar[list[Any]] = [("catmq_tasks", "0001_initial")]

    operations: ClassVar[list[Any]] = [
        migrations.RunPython(compare_bytes, migrations.RunPython.noop, atomic=False),
    ]
