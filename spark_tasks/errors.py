"""Errors of jobs and the data source that a person must act on. Each text names the remedy."""

from __future__ import annotations


class JobError(Exception):
    """Base of all: the job stopped. Results that it published before stay valid."""


class OptionError(JobError, ValueError):
    """An option is missing, unknown or out of range."""


class NodeError(JobError):
    """A node cannot be reached, or refuses the account."""


class RangeError(JobError):
    """Requested messages are deleted already, or not stored yet."""


class HoleError(JobError):
    """Offsets are missing without a declared gap. Rows that were read must not be trusted."""


class ArchiveError(JobError):
    """An archive is damaged, locked, or belongs to another topic."""
