"""Retention: deletes messages that are too old, or more than a topic may keep.

Each queue is kept from an offset on, which `plan` computes:

* Messages younger than the topic's `retention_days` are kept.
* Messages that an active group has not read are kept longer, up to `keep_unread_days`.
* A queue keeps at most its share of the topic's `retention_bytes`, read or not.

`clean` executes the plan. It raises the log start offset (`low`) in a commit of its own,
after which pulls below it are answered `cleaned`. It waits until no pull that began before
can still run, and then drops whole partitions. Where a table has no partitions, it deletes
rows in small batches. Nothing at or above `low` can be deleted, and every step may be
repeated. `purge` does the same up to the offset that an archive has proved to hold.
"""

from __future__ import annotations

from messagestore.retention.cleaning import PASS_S, REST_S, Cleaned, clean
from messagestore.retention.planning import Loss, QueuePlan
from messagestore.retention.purging import purge
from messagestore.sweeping import Progress

__all__ = ["PASS_S", "REST_S", "Cleaned", "Loss", "Progress", "QueuePlan", "clean", "purge"]
