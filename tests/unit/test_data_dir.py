"""The data directory is checked at the start of a process: full, read-only, closed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from metadata import data_dir
from metadata.config import ConfigError, load
from metadata.data_dir import Unusable, describe_error, require_usable
from tests.support import mounts

CHECK = """
from pathlib import Path
from metadata.data_dir import Unusable, require_usable
try:
    require_usable(Path("{0}"))
    print("usable")
except Unusable as error:
    print(error)
print(sorted(path.name for path in Path("{0}").iterdir()))
"""


def test_a_missing_directory_is_created_for_its_user_alone(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    require_usable(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert list(directory.iterdir()) == []


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(Unusable, match=f"{place} cannot be used: .* Move the file"):
            require_usable(place)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("size=256k", "No space left on device. Free space or files (inodes) there"),
        (
            "size=8m,nr_inodes=1",
            "No space left on device. Free space or files (inodes) there",
        ),
        ("size=8m,ro", "Read-only file system. Mount a writable volume there"),
        ("size=8m", "usable"),
    ],
)
def test_a_volume_that_cannot_take_what_a_server_writes_is_named_with_the_remedy(
    tmp_path: Path, options: str, reason: str
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    output = mounts.run_python(
        CHECK.format(volume), mounts=f"mount -t tmpfs -o {options} tmpfs {volume}"
    )
    text, names = output.splitlines()
    assert names == "[]", "the probe was removed"
    if reason == "usable":
        assert text == reason
    else:
        assert text == (
            f"The data directory {volume} cannot be used: {reason}, {data_dir.CHOOSE_ANOTHER}."
        )


def test_an_error_without_a_remedy_of_its_own_names_the_user() -> None:
    text = describe_error(
        Path("/x"), PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    )
    assert (
        f"Permission denied. Let the user {os.geteuid()} of this process write there"
        in text
    )


def test_a_key_that_cannot_be_stored_is_an_error_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"The data directory .*file/data cannot be used"):
        load({"CATMQ_DATA_DIR": str(file / "data")})
