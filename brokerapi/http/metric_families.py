"""Metric families that are built for each scrape from figures that were read before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

# (values of the labels, value) of each sample
Rows = Iterable[tuple[Any, float | None]]


def gauge(name: str, text: str, labels: tuple[str, ...], rows: Rows) -> Metric:
    """Return a gauge with a sample for each row whose value is known."""
    metric = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        # An unknown value has no sample: 0 would look like a figure.
        if value is not None:
            metric.add_metric(values, value)
    return metric
