"""Clients that two generators make from the OpenAPI schema list topics, send a message and
read it.

Both generators are installed in pinned versions into a virtualenv of their own below the
user's cache. It stays for the next run. openapi-generator needs Java.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environment import ROOT
from tests.support.server import Server

CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
VENV = CACHES / "catmq" / "generators"
WANTED = Path(__file__).with_name("requirements.txt")
LIMIT_S = 600
MODULES = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [one.name for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
for name in names:
    importlib.import_module(name)
print(len(names), "modules")
"""
# Generator, package that it makes, arguments, program that uses the package with the URL
# and the key.
GENERATORS = {
    "openapi-python-client": (
        "cat_mq_client",
        (
            "generate",
            "--meta",
            "none",
            "--path",
            "{schema}",
            "--output-path",
            "{made}/cat_mq_client",
        ),
        """
import sys
from cat_mq_client import AuthenticatedClient
from cat_mq_client.api.messages import browse_messages, send_messages
from cat_mq_client.api.topics import create_topic, list_topics
from cat_mq_client.models import JsonMessage, Problem, SendRequest, TopicCreate

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])
made = create_topic.sync(client=client, body=TopicCreate(name="one", queues=1))
print([topic.name for topic in list_topics.sync(client=client).topics])
message = JsonMessage(body="hello", key="k")
(sent,) = send_messages.sync("one", client=client, body=SendRequest(messages=[message])).results
found = browse_messages.sync("one", client=client, queue=sent.queue, offset=sent.offset)
print(sent.message_id, found.messages[0].body)
refused = create_topic.sync(client=client, body=TopicCreate(name="one"))
print(type(refused) is Problem and refused.code.value)
""",
    ),
    "openapi-generator-cli": (
        "openapi_client",
        (
            "generate",
            "--generator-name",
            "python",
            "--input-spec",
            "{schema}",
            "--output",
            "{made}",
        ),
        """
import sys
from openapi_client import ApiClient, Configuration, MessagesApi, TopicsApi
from openapi_client import JsonMessage, SendRequest, TopicCreate
from openapi_client.exceptions import ApiException

with ApiClient(Configuration(host=sys.argv[1], access_token=sys.argv[2])) as client:
    topics, messages = TopicsApi(client), MessagesApi(client)
    topics.create_topic(TopicCreate(name="one", queues=1))
    print([topic.name for topic in topics.list_topics().topics])
    message = JsonMessage(body="hello", key="k")
    (sent,) = messages.send_messages("one", SendRequest(messages=[message])).results
    found = messages.browse_messages("one", queue=sent.queue, offset=sent.offset)
    print(sent.message_id, found.messages[0].body)
    try:
        topics.create_topic(TopicCreate(name="one"))
    except ApiException as error:
        print(error.status == 409 and "already_exists" in error.body and "already_exists")
""",
    ),
}


@pytest.fixture(scope="module")
def generators() -> None:
    """Make the virtualenv with the pinned generators."""
    done = VENV / "installed.txt"
    if not done.exists() or done.read_text() != WANTED.read_text():
        run(sys.executable, "-m", "venv", "--clear", str(VENV))
        run(
            str(VENV / "bin/pip"),
            "install",
            "-q",
            "--disable-pip-version-check",
            "-r",
            str(WANTED),
        )
        done.write_text(WANTED.read_text())


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schema as `manage.py spectacular` writes it."""
    path = tmp_path_factory.mktemp("schema") / "schema.yaml"
    run(sys.executable, str(ROOT / "manage.py"), "spectacular", "--file", str(path))
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "var")
    try:
        yield made.start()
    finally:
        made.clear_away()


def run(*command: str, path: Path | None = None) -> str:
    """Return what a command printed; it fails with that."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"PATH": f"{VENV / 'bin'}{os.pathsep}{environ['PATH']}"}
    environ |= {"PYTHONPATH": str(path)} if path else {}
    done = subprocess.run(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.usefixtures("generators")
@pytest.mark.parametrize("generator", GENERATORS)
def test_a_generated_client_lists_topics_sends_and_reads(
    generator: str, schema: Path, server: Server, tmp_path: Path
) -> None:
    package, arguments, program = GENERATORS[generator]
    made = tmp_path / "made"
    told = run(
        str(VENV / "bin" / generator),
        *(one.format(schema=schema, made=made) for one in arguments),
    )
    assert "Unable to process schema" not in told and "Cannot parse" not in told, told
    python = str(VENV / "bin/python")
    run(python, "-W", "error", "-m", "compileall", "-q", str(made / package))
    assert int(run(python, "-c", MODULES, package, path=made).split()[0]) > 50
    said = run(python, "-c", program, server.url, server.api_key, path=made)
    assert said.splitlines()[0].startswith("['one'"), said
    assert said.splitlines()[1].endswith("-0 hello"), said
    assert said.splitlines()[2] == "already_exists", said
