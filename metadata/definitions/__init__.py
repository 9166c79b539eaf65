"""Definitions of topics, groups and subscriptions: the export, and the plan of an import."""
