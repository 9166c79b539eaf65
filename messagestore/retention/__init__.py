"""Retention: what is too old, or too much, is no longer served, and then deleted.

A queue is kept from an offset on: everything younger than the topic's `retention_days`; longer, up to
`keep_unread_days`, what an active group has not read; and at most its share of `retention_bytes`, whoever
has read what. `plan` finds that offset and what stands below it, `clean` carries it out: it raises `low` in a
commit of its own, from which on pulls answer `cleaned`, waits until no pull is under way that began before,
and then drops whole partitions, or deletes rows in small batches where there are none. Nothing at or above
`low` can be deleted, and everything may be repeated at any point. `purge` does the same up to where an
archive proves that it holds the messages.
"""

from __future__ import annotations

from messagestore.retention.cleaning import PASS_S, REST_S, Cleaned, clean
from messagestore.retention.planning import Loss, QueuePlan
from messagestore.retention.purging import purge
from messagestore.sweeping import Progress

__all__ = ["PASS_S", "REST_S", "Cleaned", "Loss", "Progress", "QueuePlan", "clean", "purge"]
