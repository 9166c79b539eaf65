"""Django's test runner without the tests of LEFT_OUT; statements are not counted, they are
another's.
"""

from __future__ import annotations

import sys
import unittest
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.test import TransactionTestCase
from django.test.runner import DiscoverRunner


@contextmanager
def _uncounted(*args: Any, **kwargs: Any) -> Any:
    yield


class Runner(DiscoverRunner):
    """Leaves tests out, and says how many."""

    def build_suite(self, *args: Any, **kwargs: Any) -> unittest.TestSuite:
        from tests.foreign.tasks import LEFT_OUT

        found = [*_tests(super().build_suite(*args, **kwargs))]
        kept = [one for one in found if not _names(one) & LEFT_OUT.keys()]
        unknown = LEFT_OUT.keys() - {name for one in found for name in _names(one)}
        if unknown:
            raise SystemExit(
                f"LEFT_OUT names tests that there are not: {', '.join(sorted(unknown))}"
            )
        sys.stderr.write(
            f"{len(kept)} tests, {len(found) - len(kept)} left out, see LEFT_OUT\n"
        )
        return unittest.TestSuite(kept)


def _names(test: Any) -> set[str]:
    """What a test may be called by in LEFT_OUT."""
    of_class = type(test).__name__
    return {of_class, test._testMethodName, f"{of_class}.{test._testMethodName}"}


def _tests(suite: Any) -> Any:
    for one in suite:
        yield from _tests(one) if isinstance(one, unittest.TestSuite) else (one,)


def main(labels: list[str]) -> int:
    django.setup()
    from tests.foreign.shim.management.commands import db_worker

    test_case: Any = TransactionTestCase
    real = test_case._fixture_teardown

    def teardown(self: Any) -> None:
        db_worker.broker.clear()
        real(self)

    test_case._fixture_teardown = teardown
    test_case.assertNumQueries = _uncounted
    settings.DEBUG = False
    return Runner(verbosity=1).run_tests(labels)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
