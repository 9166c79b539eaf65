"""Version and dependencies of the distribution catmq-server; the rest is in pyproject.toml.

Both are defined elsewhere: the version by the client, with which the server is released, and
the packages with their tested releases by requirements*.txt.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
VERSION = runpy.run_path(str(ROOT / "client/src/catmq_client/version.py"))["VERSION"]


def read_requirements(name: str) -> list[str]:
    """Return the requirements of a file, each also with later patch releases.

    The file pins what the tests ran with. An installation may need a security fix before
    there is a release of the server with it.
    """
    lines = (ROOT / name).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    return [re.sub("==", "~=", pin) for pin in pins]


setup(
    version=VERSION,
    # The version, the command `catmq`, and what Spark jobs read with.
    install_requires=[f"catmq-client=={VERSION}", *read_requirements("requirements.txt")],
    extras_require={
        "mysql": read_requirements("requirements-mysql.txt"),
        "spark": read_requirements("requirements-spark.txt"),
    },
)
