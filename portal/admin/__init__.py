"""The lists of Django's admin site. Django imports this package, which registers all of
them.
"""

from __future__ import annotations

from portal.admin import names, rebalances, tables

names.translate_names()

__all__ = ["names", "rebalances", "tables"]
