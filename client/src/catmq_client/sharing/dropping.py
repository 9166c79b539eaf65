"""A reporter that drops rejected messages if no retry node can keep them: see
DroppingReporter.
"""

from __future__ import annotations

import logging

from catmq_client.reading.failure_reports import Report, Reporter

log: logging.Logger = logging.getLogger("catmq.consumer")


class DroppingReporter(Reporter):
    """Reports failed messages, and drops those that no retry node can keep as dead letters.

    The base class would rewind instead: such a message would be delivered again at once,
    and its second failure would end the consumer. No worker can handle these messages
    anyway.
    """

    def _rewind_queues(self, batch: list[Report]) -> list[Report]:
        for report in batch:
            log.error(
                "%s is dropped, there is no retry node for dead letters: %s",
                report,
                report.error,
            )
            self._finish(report)
        return []
