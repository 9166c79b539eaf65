"""The check that Python imports the packages of this server, and no others of their names.

The server's packages are called `metadata`, `portal` and so on, at the top. In a virtual
environment that it shares, another distribution may have a package of the same name, and in
PYTHONPATH another directory may. Then parts of two programs would run as one.

This module imports nothing of those packages.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata as distributions
from pathlib import Path

NAMES = ("brokerapi", "catmq_site", "messagestore", "metadata", "portal", "spark_tasks")
DISTRIBUTION = "catmq-server"
CLIENT_DISTRIBUTION = "catmq-client"
OWN_ENVIRONMENT = (
    f"Install {DISTRIBUTION} into a virtual environment of its own, in which nothing else is: "
    "python3 -m venv DIRECTORY, then DIRECTORY/bin/pip install with the paths of both wheels."
)


class ForeignPackage(Exception):
    """A package is not that of this server. The text names it, its owner and the remedy."""


def require_own_packages(home: Path | None = None) -> None:
    """Check each package at the top, and the release of the client. Raises ForeignPackage.

    `home` is the directory of the server's packages, by default that of this file.
    """
    home = home or Path(__file__).resolve().parents[1]
    for name in NAMES:
        _require_place(name, home)
    if not (home / "client" / "src").is_dir():  # not a checkout
        _require_single_owner(home)
        _require_same_client()


def _require_place(name: str, home: Path) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ForeignPackage(
            f"The package {name} is missing in {home}. Install {DISTRIBUTION} again: "
            "pip install --force-reinstall --no-deps with the path of its wheel."
        )
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    place = Path(places[0]).resolve()
    if place == home / name:
        return
    owners = distributions.packages_distributions().get(name, [])
    others = [owner for owner in owners if owner != DISTRIBUTION]
    owner = f", of the distribution {others[0]}," if others else ""
    text = f"Python imports {name} from {place}{owner} instead of {home / name}."
    path = next((entry for entry in sys.path if Path(entry).resolve() in place.parents), "")
    if path and not others:
        raise ForeignPackage(
            f"{text} Take {path} out of PYTHONPATH and of the .pth files of {sys.prefix}. "
            f"{OWN_ENVIRONMENT}"
        )
    raise ForeignPackage(f"{text} {OWN_ENVIRONMENT}")


def _require_single_owner(home: Path) -> None:
    """Raise ForeignPackage if another distribution has files in one of the packages: pip
    would have written over files of the same name.
    """
    for distribution in distributions.distributions(path=[str(home)]):
        if distribution.name in (DISTRIBUTION, CLIENT_DISTRIBUTION):
            continue
        # Most distributions declare their packages; to list the files of all takes a second.
        declared = (distribution.read_text("top_level.txt") or "").split()
        folders = set(declared) or {file.parts[0] for file in distribution.files or ()}
        shared = sorted(folders.intersection(NAMES))
        if shared:
            raise ForeignPackage(
                f"The distribution {distribution.name} {distribution.version} has files in the "
                f"package {shared[0]} of {home}, which belongs to {DISTRIBUTION}. "
                f"{OWN_ENVIRONMENT}"
            )


def _require_same_client() -> None:
    versions = {}
    for name in (DISTRIBUTION, CLIENT_DISTRIBUTION):
        try:
            versions[name] = distributions.version(name)
        except distributions.PackageNotFoundError:
            raise ForeignPackage(
                f"The distribution {name} is not installed in {sys.prefix}. Install both wheels "
                "of the release there."
            ) from None
    if len(set(versions.values())) > 1:
        raise ForeignPackage(
            f"{DISTRIBUTION} is {versions[DISTRIBUTION]} and {CLIENT_DISTRIBUTION} is "
            f"{versions[CLIENT_DISTRIBUTION]}: install both wheels of one release in {sys.prefix}."
        )
