"""Secrets in files instead of environment variables.

`CATMQ_DATABASE_URL_FILE=/run/secrets/database` names a file with the value of
`CATMQ_DATABASE_URL`. The environment of a process is inherited by its children, and appears
in dumps and in the descriptions of containers; a file does neither.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

SUFFIX = "_FILE"
MAX_BYTES = 64 << 10  # far more than any secret; another file was named by mistake


class SecretFileError(ValueError):
    """A secret cannot be read from its file. The text names variable, file and remedy."""


def read_variable(environ: Mapping[str, str], variable: str) -> str:
    """Return the value of a secret: that of `variable`, or the text of the file that
    `variable`_FILE names; "" if neither is set.

    Raises SecretFileError.
    """
    value, file = environ.get(variable, ""), environ.get(variable + SUFFIX, "")
    if value and file:
        raise SecretFileError(
            f"{variable} and {variable}{SUFFIX} are both set: remove one of them."
        )
    return _read_file(variable + SUFFIX, Path(file)) if file else value


def _read_file(variable: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            # Of the open file: the path could name another one by now.
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SecretFileError(
            f"{variable}: there is no file {path}. Create it, or correct the path."
        ) from None
    except PermissionError:
        raise SecretFileError(
            f"{variable}: this process (user {os.geteuid()}, group {os.getegid()}) may not read "
            f"{path}. Give the file to that user, with mode 0400, or to that group, with mode 0440."
        ) from None
    except OSError as error:
        raise SecretFileError(
            f"{variable}: {path} cannot be read: {error.strerror}. Name a file with the secret."
        ) from None
    if mode & stat.S_IROTH and not _is_mounted_read_only(path):
        raise SecretFileError(
            f"{variable}: all users can read {path}. Close it to them: chmod o= {path}. "
            "In a container, mount it read-only."
        )
    if len(content) > MAX_BYTES:
        raise SecretFileError(
            f"{variable}: {path} is larger than {MAX_BYTES >> 10} KiB. Name the file with the "
            "secret."
        )
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        raise SecretFileError(
            f"{variable}: {path} is not a text in UTF-8. Write the secret into it as text."
        ) from None
    if not text:
        raise SecretFileError(f"{variable}: {path} is empty. Write the secret into it.")
    return text


def _is_mounted_read_only(path: Path) -> bool:
    """Return True if the file or its directory is a read-only mount of its own.

    Docker and Kubernetes mount secrets in this way, with mode 0444 or 0644, into a container
    that has no other users. Outside of containers, such mounts do not occur by accident.
    """
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        # Kubernetes names the file by symbolic links within the mount, so the directory counts
        # that was given. Path.is_mount() does not see a mount from the same file system.
        directory = path.parent.resolve()
        places = {str(directory), str(directory / path.name)}
        is_mount = any(line.split()[4] in places for line in lines)
        return is_mount and bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False
