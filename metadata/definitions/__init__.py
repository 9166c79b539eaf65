"""Definitions of topics, groups and subscriptions as a document: the export, and the plan of
an import.
"""
