"""Errors of jobs and the data source that a person must act on; the text says what to do."""

from __future__ import annotations


class JobError(Exception):
    """Base of all: the job did nothing more, and what it published before stays whole."""


class OptionError(JobError, ValueError):
    """An option is missing, unknown or impossible."""


class NodeError(JobError):
    """A node cannot be reached, or refuses the account."""


class RangeError(JobError):
    """Messages that were asked for are no longer there, or not there yet."""


class HoleError(JobError):
    """Offsets are missing that nobody declared missing. Nothing that was read may be
    trusted.
    """


class ArchiveError(JobError):
    """An archive is damaged, locked, or not of this topic."""
