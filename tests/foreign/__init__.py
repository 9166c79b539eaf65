"""Suites of others, run against parts of this project. Nothing of theirs is here."""
