"""The version of the package, of `catmq --version` and of the server.

The server reads the text of this file without importing the package.
"""

import platform

VERSION = "0.1.0"
SDK = f"catmq-client/{VERSION} python/{platform.python_version()}"


def is_older(release: str, other: str) -> bool:
    """Return True if a release is before another. A missing number counts as 0.

    >>> is_older("0.9.1", "0.10"), is_older("0.3.0", "0.3"), is_older("0.3.0", "")
    (True, False, False)
    """
    return _release_numbers(release) < _release_numbers(other)


def _release_numbers(release: str) -> tuple[int, ...]:
    digits = "".join(char if char.isdigit() else " " for char in release).split()
    return tuple([*map(int, digits), 0, 0, 0][:3])
