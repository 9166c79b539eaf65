"""The pages for data engineers do what they say: read-a-topic-with-pandas, and the notebook
of read-a-topic-with-spark.

pandas, Polars, DuckDB and the runner of notebooks are installed in pinned versions into a
virtualenv of their own below the user's cache. It stays for the next run. It sees the
packages of the test session, too: pyarrow, pyspark and those of the client.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from catmq_client import HttpTransport, Producer, frames
from catmq_client.admin.api import Admin
from tests.support import documents, java, venvs
from tests.support.environment import ROOT
from tests.support.server import Server

PANDAS_PAGE = (ROOT / "docs/how-to/read-a-topic-with-pandas.md").read_text()
SPARK_PAGE = (ROOT / "docs/how-to/read-a-topic-with-spark.md").read_text()
NOTEBOOK = ROOT / "examples/notebooks/sales.ipynb"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
LIMIT_S = 600
TEXT_BLOCK = re.compile(r"^ *```text\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
EXECUTE = """
import json, sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of the virtualenv with the pinned libraries. Skips if they cannot be had."""
    return venvs.python_with(REQUIREMENTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the topic of the pages and their messages."""
    server = Server(tmp_path_factory.mktemp("data") / "server")
    try:
        server.start()
        Admin(transport(server)).create_topic("sales", queues=2)
        sending = next(
            block for block in documents.blocks(PANDAS_PAGE) if "producer.send" in block
        )
        send = f"{sending}\n"
        run(sys.executable, "-c", send, environ=client_environment(server))
        yield server
    finally:
        server.clear_away()


def transport(server: Server) -> HttpTransport:
    return HttpTransport(server.url, api_key=server.api_key, discover=False)


def client_environment(server: Server) -> dict[str, str]:
    """The environment of a program that uses the client and the Spark jobs."""
    return {
        **os.environ,
        "CATMQ_URL": server.url,
        "CATMQ_API_KEY": server.api_key,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}",
        "JDK_JAVA_OPTIONS": java.options(),
    }


def run(*command: str, environ: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a program that must succeed. Return its output."""
    process = subprocess.run(
        command,
        env=environ,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-4000:]
    return process.stdout


def test_the_blocks_for_pandas_polars_and_duckdb_print_what_the_page_shows(
    server: Server, python: str, tmp_path: Path
) -> None:
    blocks = [
        block
        for block in documents.blocks(PANDAS_PAGE)
        if block.kind == "python" and "producer.send" not in block
    ]
    # Blocks use names of earlier blocks, as in a notebook, so they are one program.
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks))
    output = run(python, str(program), environ=client_environment(server), cwd=tmp_path)
    shown = [textwrap.dedent(text) for text in TEXT_BLOCK.findall(PANDAS_PAGE)]
    assert len(shown) == 7
    position = 0
    for text in shown:
        assert text in output[position:], output
        position = output.index(text, position) + len(text)
    assert "1000 of 1000" in output, "the progress of the batches"


def test_the_key_of_the_page_may_read_the_topic_and_not_send_to_it(server: Server) -> None:
    command = next(block for block in documents.blocks(PANDAS_PAGE) if "curl" in block)
    answer = documents.typed(command, directory=ROOT, environ=client_environment(server))
    api_key = json.loads(answer)["api_key"]
    table = frames.read("sales", urls=server.url, api_key=api_key, columns=["key"])
    assert table.num_rows == 1000
    with (
        Producer(server.url, api_key=api_key) as producer,
        pytest.raises(Exception, match="produce"),
    ):
        producer.send("sales", b"")


def test_the_notebook_is_that_of_the_page_and_runs(
    server: Server, python: str, tmp_path: Path
) -> None:
    section = SPARK_PAGE.partition("## In a notebook\n")[2].partition("\n## ")[0]
    on_page = [block for block in documents.blocks(section) if block.kind == "python"]
    cells = [
        cell
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    assert ["".join(cell["source"]) for cell in cells] == [b.rstrip("\n") for b in on_page]
    assert all(cell["outputs"] == [] for cell in cells), "it is committed without outputs"
    executed = tmp_path / "executed.ipynb"
    run(
        python,
        "-c",
        EXECUTE,
        str(NOTEBOOK),
        str(executed),
        environ=client_environment(server),
        cwd=tmp_path,
    )
    outputs = [
        output.get("data", {})
        for cell in json.loads(executed.read_text())["cells"]
        for output in cell.get("outputs", [])
    ]
    assert any("<td>tea</td>" in "".join(data.get("text/html", "")) for data in outputs)
    texts = ["".join(data.get("text/plain", "")) for data in outputs]
    (amounts,) = [text for text in texts if text.split()[:3] == ["region", "rice", "tea"]]
    rows = [line.split()[1:] for line in amounts.splitlines()[1:]]
    assert rows == [["asia", "498", "501"], ["eu", "500", "503"], ["us", "502", "493"]]
    assert any("image/png" in data for data in outputs), "the plot"
