"""The management API as typed calls; see Admin."""

from __future__ import annotations

from catmq_client.admin.api import Admin

__all__ = ["Admin"]
