"""Secrets in files: what is read, and what is refused with variable, file and remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from catmq_site.management.base import find_password, read_secret
from catmq_site.management.commands.register_node import parse_node_url
from metadata.config import Config, ConfigError, load
from metadata.errors import Invalid
from metadata.secret_files import SecretFileError, read_variable
from tests.support import mounts
from tests.support.environment import ROOT

KEYS = (
    "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
    "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=",
)
URL = "mysql://catmq:secret@db1:3306/catmq"


def write(path: Path, text: str, mode: int = 0o400) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def loaded(directory: Path, **variables: str) -> Config:
    return load({"CATMQ_DATA_DIR": str(directory), **variables})


def test_each_secret_may_be_in_a_file(tmp_path: Path) -> None:
    key = "a1b2c3d4" * 5
    config = loaded(
        tmp_path / "data",
        CATMQ_DATABASE_URL_FILE=write(tmp_path / "url", f"{URL}\n"),
        CATMQ_SECRET_KEY_FILE=write(tmp_path / "key", key, 0o440),
        CATMQ_SECRET_KEY_FALLBACKS_FILE=write(tmp_path / "old", f"{key}x\n{key}y\n"),
        CATMQ_ENCRYPTION_KEYS_FILE=write(tmp_path / "keys", "\n".join(KEYS)),
        CATMQ_SMTP_URL_FILE=write(tmp_path / "smtp", "smtps://user:pw@mail:465\n"),
    )
    assert (config.database_url, config.secret_key) == (URL, key)
    assert config.secret_key_fallbacks == (f"{key}x", f"{key}y")
    assert config.encryption_keys == KEYS
    assert config.smtp_url == "smtps://user:pw@mail:465"
    assert not (tmp_path / "data").exists(), "no key had to be created"


def test_only_secrets_may_be_in_files(tmp_path: Path) -> None:
    file = write(tmp_path / "bind", "127.0.0.1:9000")
    with pytest.raises(ConfigError, match="CATMQ_BIND_FILE is not a setting"):
        loaded(tmp_path, CATMQ_BIND_FILE=file)
    with pytest.raises(ConfigError, match="Did you mean CATMQ_SECRET_KEY_FILE"):
        loaded(tmp_path, CATMQ_SECRETKEY_FILE=file)


def test_an_empty_file_variable_counts_as_not_set(tmp_path: Path) -> None:
    config = loaded(tmp_path, CATMQ_DATABASE_URL=URL, CATMQ_DATABASE_URL_FILE="")
    assert config.database_url == URL


def test_a_value_from_a_file_is_checked_as_one_from_the_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CATMQ_SECRET_KEY must be random"):
        loaded(tmp_path, CATMQ_SECRET_KEY_FILE=write(tmp_path / "key", "short"))


def test_a_variable_and_its_file_may_not_both_be_set(tmp_path: Path) -> None:
    variables = {
        "CATMQ_DATABASE_URL": URL,
        "CATMQ_DATABASE_URL_FILE": write(tmp_path / "url", URL),
    }
    for order in (variables, dict(reversed(variables.items()))):
        with pytest.raises(
            ConfigError,
            match="CATMQ_DATABASE_URL and CATMQ_DATABASE_URL_FILE are both set: remove one",
        ):
            loaded(tmp_path, **order)


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (None, 0, "there is no file {}. Create it"),
        (b"", 0o400, "{} is empty. Write the secret into it"),
        (b" \n\n", 0o400, "{} is empty. Write the secret into it"),
        (b"\xff\xfe", 0o400, "{} is not a text in UTF-8"),
        (b"x" * 70_000, 0o400, "{} is larger than 64 KiB"),
        (b"s3cret", 0o444, "all users can read {}. Close it to them: chmod o= {}"),
        (b"s3cret", 0o644, "all users can read {}. Close it to them: chmod o= {}"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_variable_file_and_remedy(
    tmp_path: Path, content: bytes | None, mode: int, reason: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    with pytest.raises(SecretFileError) as refusal:
        read_variable({"CATMQ_X_FILE": str(file)}, "CATMQ_X")
    assert str(refusal.value).startswith(f"CATMQ_X_FILE: {reason}".replace("{}", str(file)))
    assert "s3cret" not in str(refusal.value)


def test_a_directory_is_no_secret_file(tmp_path: Path) -> None:
    with pytest.raises(SecretFileError, match=r"Is a directory\. Name a file"):
        read_variable({"CATMQ_X_FILE": str(tmp_path)}, "CATMQ_X")


def test_a_file_that_this_process_may_not_read_names_the_user_it_needs(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "secret", "s", 0o000)
    program = (
        "from metadata.secret_files import read_variable\n"
        f"read_variable({{'CATMQ_X_FILE': {file!r}}}, 'CATMQ_X')"
    )
    result = subprocess.run(
        [*mounts.drop_root_rights(), sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (
        f"may not read {file}. Give the file to that user, with mode 0400" in result.stderr
    )


MOUNTED = """
from metadata.secret_files import SecretFileError, read_variable
try:
    print(read_variable({"CATMQ_X_FILE": {0!r}}, "CATMQ_X"))
except SecretFileError as error:
    print(error)
"""


@pytest.mark.parametrize("target", ["secret", ""])
def test_a_file_that_is_mounted_read_only_may_be_readable_by_all(
    tmp_path: Path, target: str
) -> None:
    """As containers get secrets: a mount of the file, or of its directory."""
    source, mounted = tmp_path / "source", tmp_path / "mounted"
    for directory in (source, mounted):
        directory.mkdir()
        write(directory / "secret", "s3cret", 0o444)
    bind = f"mount --bind {source / target} {mounted / target}"
    program = MOUNTED.replace("{0!r}", repr(str(mounted / "secret")))
    read_only = f"{bind}; mount -o remount,ro,bind {mounted / target}"
    assert mounts.run_python(program, mounts=read_only) == "s3cret"
    assert "all users can read" in mounts.run_python(program, mounts=bind)


def test_commands_read_the_passwords_of_nodes_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATMQ_NODE_EU_WEST_URL_FILE", write(tmp_path / "url", URL))
    assert parse_node_url("eu-west", None)["password"] == "secret"
    password = write(tmp_path / "password", "pw\n")
    monkeypatch.setenv("CATMQ_NODE_EU_WEST_PASSWORD_FILE", password)
    assert find_password("eu-west", "catmq", "PASSWORD") == "pw"
    monkeypatch.setenv("CATMQ_NODE_EU_WEST_PASSWORD_FILE", str(tmp_path / "none"))
    with pytest.raises(Invalid, match="CATMQ_NODE_EU_WEST_PASSWORD_FILE: there is no file"):
        read_secret("CATMQ_NODE_EU_WEST_PASSWORD")
