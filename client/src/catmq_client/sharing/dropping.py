"""Reports of rejected messages for consumers that must not stand still; see
DroppingReporter.
"""

from __future__ import annotations

import logging

from catmq_client.reading.failure_reports import Report, Reporter

log = logging.getLogger("catmq.consumer")


class DroppingReporter(Reporter):
    """Reports failed messages. Where no retry node can keep dead letters, it drops them.

    They would be delivered again at once, and end the consumer at the second time; no
    worker can handle them.
    """

    def _go_back(self, batch: list[Report]) -> list[Report]:
        for report in batch:
            log.error(
                "%s is dropped, there is no retry node for dead letters: %s",
                report,
                report.error,
            )
            self._done(report)
        return []
