"""The admin's pages; Django imports this package and with it all of them."""

from __future__ import annotations

from portal.admin import names, rebalances, tables

names.translate()

__all__ = ["names", "rebalances", "tables"]
