"""Columns under the names that other systems use; alarms of corrupt queues under theirs."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

KINDS = (
    "unread_dropped", "node_low", "node_full", "node_filling", "node_away", "not_cleaned", "lag",
    "no_consumer", "dead_growing", "job_failed", "corrupt", "inconsistent",
)  # fmt: skip
RENAMED = (
    ("topic", "remark", "description"),
    ("consumergroup", "remark", "description"),
    ("dbnode", "special", "dedicated"),
    ("dbnode", "barred", "quarantined"),
    ("alarm", "turning_at", "pending_since"),
    ("alarm", "told", "notified"),
    ("alarm", "told_end", "notified_end"),
    ("alarmmail", "spell", "occurrence"),
    *(("sample", f"sixth_{number}", f"bucket_10s_{number}") for number in range(1, 7)),
)


def corrupt(apps: Any, _schema: object) -> None:
    """Give the alarms of queues with an undeclared hole their new kind."""
    apps.get_model("metadata", "Alarm").objects.filter(kind="suspect").update(
        kind="corrupt"
    )


def suspect(apps: Any, _schema: object) -> None:
    """Give them the old one back."""
    apps.get_model("metadata", "Alarm").objects.filter(kind="corrupt").update(
        kind="suspect"
    )


class Migration(migrations.Migration):
    """Renames keep every value. The check of alarm kinds is away while the kind changes."""

    dependencies = (("metadata", "0026_handled"),)

    operations = (
        *(
            migrations.RenameField(model_name=model, old_name=old, new_name=new)
            for model, old, new in RENAMED
        ),
        # the index follows its column, what Django knows of it does not
        migrations.SeparateDatabaseAndState(
            state_operations=(
                migrations.RemoveConstraint(model_name="alarmmail", name="alarm_mail_once"),
                migrations.AddConstraint(
                    model_name="alarmmail",
                    constraint=models.UniqueConstraint(
                        fields=("alarm", "occurrence", "what", "address"),
                        name="alarm_mail_once",
                    ),
                ),
            )
        ),
        migrations.RenameModel(old_name="DeadTally", new_name="DeadLetterCount"),
        migrations.AlterModelOptions(
            name="deadlettercount",
            options={
                "ordering": ("-newest_at", "-id"),
                "verbose_name_plural": "dead letter counts",
            },
        ),
        migrations.RemoveConstraint(model_name="alarm", name="alarm_kind"),
        migrations.RunPython(corrupt, suspect),
        migrations.AlterField(
            model_name="alarm",
            name="kind",
            field=models.CharField(
                choices=[(kind, kind.replace("_", " ").title()) for kind in KINDS],
                max_length=20,
            ),
        ),
        migrations.AddConstraint(
            model_name="alarm",
            constraint=models.CheckConstraint(
                condition=models.Q(kind__in=KINDS), name="alarm_kind"
            ),
        ),
    )
