"""The version of the package, of `catmq --version` and of the server, which reads this file
alone.
"""

import platform

VERSION = "0.1.0"
SDK = f"catmq-client/{VERSION} python/{platform.python_version()}"


def is_older(release: str, than: str) -> bool:
    """Return True if a release is before another; what a number lacks counts as 0.

    >>> is_older("0.9.1", "0.10"), is_older("0.3.0", "0.3"), is_older("0.3.0", "")
    (True, False, False)
    """
    return _numbers(release) < _numbers(than)


def _numbers(release: str) -> tuple[int, ...]:
    words = "".join(one if one.isdigit() else " " for one in release).split()
    return tuple([*map(int, words), 0, 0, 0][:3])
