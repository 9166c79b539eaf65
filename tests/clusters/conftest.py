"""A cluster of each kind for all tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import clusters


@pytest.fixture(scope="session", params=("galera", "group"))
def shared_cluster(request: pytest.FixtureRequest) -> Iterator[clusters.Cluster]:
    """A cluster of the session."""
    with (
        tempfile.TemporaryDirectory(prefix=f"catmq-{request.param}-") as directory,
        clusters.running(request.param, Path(directory, "cluster")) as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(shared_cluster: clusters.Cluster) -> Iterator[clusters.Cluster]:
    """The session's cluster of a kind; all members are joined before and after the test."""
    yield shared_cluster
    shared_cluster.await_whole()
