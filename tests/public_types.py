"""Check the types of the client as its users see them.

    python -m tests.public_types

Three checks, each with the checkers that users have:

* every public name of `catmq_client` has a known type (`pyright --verifytypes`);
* the programs in examples/ have no errors in mypy and pyright;
* the Python blocks of README and docs have none either.

The blocks of a page become one module, each block at its own lines, so an error names the
line of the page. A block that begins with a path, such as `# orders/models.py`, becomes
that file, and the other blocks of the page can import it. Names that a page uses without
defining them are declared in CONTEXT.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CLIENT = ROOT / "client" / "src"
EXAMPLES = ROOT / "examples"
PROJECTS = ("shop", "fastapi")  # examples that are folders of their own
# Adapters subclass classes of Django and kombu, which ship no types of their own. mypy
# checks them with the stubs of Django in the step `mypy`.
WITHOUT_TYPES = "catmq_client.contrib."
# Pages whose blocks are not checked, with the reason.
SKIPPED = {
    "docs/how-to/log-in-with-ldap.md": "python-ldap and django-auth-ldap are not installed "
    "in the gate: they need the headers of OpenLDAP",
}
# Errors that stay, by page: a pattern of the message, and the reason.
ACCEPTED = {
    "docs/how-to/run-django-tasks.md": (
        r'No overload|Unexpected keyword|attribute "enqueue(_many)?"',
        "the stubs of Django do not know arguments that a backend adds to task()",
    ),
    "docs/how-to/read-a-topic-with-pandas.md": (
        r'"(pandas|polars|duckdb)"',
        "pandas, polars and duckdb are not installed in the gate",
    ),
    "docs/how-to/read-a-topic-with-spark.md": (
        r"PandasDataFrameLike",
        "pyspark knows the types of pandas only where it is installed",
    ),
    "docs/how-to/trace-messages.md": (
        r"opentelemetry",
        "OpenTelemetry is not installed in the gate; script/test otel runs the page",
    ),
    "docs/how-to/use-it-with-asyncio.md": (
        r"\b(fastapi|orders\.models)\b",
        "FastAPI is not installed in the gate, and the model is the reader's own",
    ),
    "examples-fastapi": (
        r'"(fastapi|pydantic)"',
        "FastAPI is not installed in the gate; script/test web runs the example",
    ),
    "examples-shop": (
        r"list\[str\]. is not callable",
        "Celery ships no types, and pyright infers a wrong one for delay_on_commit()",
    ),
}
# Pages whose blocks are programs of their own, not parts of the same one.
SEPARATE = {"docs/reference/client.md"}
# Declarations of the names that a page takes from the reader's program.
CONTEXT = {
    "docs/how-to/broadcast.md": """
        urls: list[str]
        def forget(key: str | None) -> None: ...
    """,
    "docs/how-to/handle-failures.md": """
        from catmq_client import Consumer, Message
        def handle(message: Message) -> None: ...
        def works(message: Message) -> bool: return True
    """,
    "docs/how-to/move-from-django-q2.md": """
        from django.db import models
        class Order(models.Model):
            def send_receipt(self) -> None: ...
    """,
    "docs/how-to/read-a-topic-with-spark.md": """
        from pyspark.sql import DataFrame
        rows: DataFrame
    """,
    "docs/how-to/run-django-tasks.md": """
        from typing import Any
        from orders.models import Order
        from orders.tasks import send_receipt
        orders: list[Order]
        DATABASES: dict[str, dict[str, Any]]
    """,
    "docs/how-to/send-in-a-transaction.md": """
        from catmq_client import Consumer, Message
        from django.contrib.auth.models import User
        from orders.models import Invoice, Order
        consumer: Consumer
        customer: User
        message: Message
        total: int
    """,
    "docs/how-to/send-later.md": """
        from catmq_client import Producer
        producer: Producer
    """,
    "docs/how-to/share-a-queue-among-many-workers.md": """
        from typing import Any
        def send_mail(mail: Any) -> None: ...
    """,
}
SETTINGS = """
    from typing import Any
    INSTALLED_APPS: list[str]
    TASKS: dict[str, dict[str, Any]]
"""
MODELS = """
    from django.contrib.auth.models import User
    from django.db import models
    class Order(models.Model):
        customer = models.ForeignKey(User, on_delete=models.CASCADE)
        total = models.IntegerField()
        def send_receipt(self) -> None: ...
    class Invoice(models.Model):
        order = models.ForeignKey(Order, on_delete=models.CASCADE)
"""
# Files of the reader's project that a page names without showing them.
FILES = {
    "docs/how-to/run-django-tasks.md": {"orders/models.py": MODELS},
    "docs/how-to/send-in-a-transaction.md": {"orders/models.py": MODELS},
}
# A program with errors on the marked lines, which users make and both checkers must find.
WRONG_USES = """
    from catmq_client import Consumer, Message, NotFound, Producer, ShareConsumer, ShareMessage
    def one(message: Message) -> None: ...
    def many(messages: list[Message]) -> None: ...
    def share(message: ShareMessage) -> None: message.accept()
    with Producer("http://b:8000", linger_ms=5, compression="gzip") as producer:
        try:
            producer.send("t", "x").message_id.upper()
            producer.send("t", "x").message  # wrong
        except NotFound as error:
            error.code.upper()
    Producer(linger=5)  # wrong
    Producer(linger_ms="5")  # wrong
    Producer(compression="zstd")  # wrong
    Consumer(group_id="g")  # wrong
    Consumer(auto_offset_reset="newest")  # wrong
    Consumer(on_assigned=lambda queues: queues[0].topics)  # wrong
    ShareConsumer(enable_auto_commit=True)  # wrong
    with Consumer(group="g", topics=["t"], consumer_timeout_ms=None) as consumer:
        consumer.run(one, order="key")
        consumer.run(many, batch=10)
        consumer.run(many)  # wrong
        consumer.run(one, batch=10)  # wrong
        consumer.run(one, order="keys")  # wrong
        for message in consumer:
            message.accept()  # wrong
    with ShareConsumer(group="g", topics=["t"], lease_ms=10_000) as shared:
        shared.run(share)
        shared.run(lambda message: message.release(delay_s=60))
        for mail in shared:
            mail.accept()
"""
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"# (?:\.\./\w+/)?(\w[\w/]*\.py)\b")


class Block(NamedTuple):
    """A Python block: the number of its first line, its text, and the file that it names."""

    line: int
    text: str
    file: str | None


def pages() -> list[str]:
    """Return the tracked Markdown files with Python blocks, below the root."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "*.md"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    names = [name for name in tracked.stdout.split("\0") if name]
    return [name for name in names if BLOCK.search((ROOT / name).read_text())]


def blocks(text: str) -> Iterator[Block]:
    """Yield the Python blocks of a page.

    >>> [*blocks("# A\\n\\n```python\\n# shop/a.py\\nx = 1\\n```\\n")]
    [Block(line=4, text='# shop/a.py\\nx = 1\\n', file='shop/a.py')]
    """
    for match in BLOCK.finditer(text):
        block = textwrap.dedent(match[2])
        named = PATH.match(block)
        line = text.count("\n", 0, match.start(2)) + 1
        yield Block(line, block, named[1] if named else None)


def modules(page: str) -> dict[str, str]:
    """Return the modules of a page: path below its directory -> text.

    Each block begins at its line of the page. The declarations of its context are in a
    module of their own, imported in the first line.
    """
    by_file: dict[str, list[str]] = {}
    for block in blocks((ROOT / page).read_text()):
        lines = by_file.setdefault(
            block.file or (f"page_{block.line}.py" if page in SEPARATE else "page.py"), []
        )
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    texts = {file: "\n".join(lines) + "\n" for file, lines in by_file.items()}
    contexts = {"page_context.py": CONTEXT.get(page, "")}
    if "shop/settings.py" in texts:
        texts["shop/settings.py"] = (
            "from settings_context import *" + texts["shop/settings.py"]
        )
        contexts["settings_context.py"] = SETTINGS
    if "page.py" in texts:
        texts["page.py"] = "from page_context import *" + texts["page.py"]
    contexts |= FILES.get(page, {})
    return {file: textwrap.dedent(text) for file, text in contexts.items()} | texts


def unknown_public_types() -> list[str]:
    """Return a line for each public name of the client whose type is not known.

    Names count as public unless they begin with an underscore.
    """
    done = subprocess.run(
        [
            BIN / "pyright",
            "--verifytypes",
            "catmq_client",
            "--ignoreexternal",
            "--outputjson",
        ],
        cwd=ROOT,
        env={"PATH": str(BIN), "PYTHONPATH": str(CLIENT)},
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    symbols = [
        symbol
        for symbol in report["typeCompleteness"]["symbols"]
        if symbol["isExported"] and not symbol["name"].startswith(WITHOUT_TYPES)
    ]
    # An import that fails leaves no symbols, which must not pass for a complete package.
    if not any(symbol["name"] == "catmq_client.producer.Producer" for symbol in symbols):
        return [f"pyright did not read catmq_client: {done.stdout[:2000]}{done.stderr}"]
    print(f"{len(symbols)} public names of catmq_client without its adapters")
    return [
        f"{symbol['name']}: {diagnostic['message']}"
        for symbol in symbols
        if not (symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"])
        for diagnostic in symbol["diagnostics"]
        if "docstring" not in diagnostic["message"]
    ]


def check_with_pyright(directories: Sequence[Path], work: Path) -> list[str]:
    """Return the errors of pyright in directories that are roots of their modules."""
    # pyright ignores absolute paths here.
    extra_paths = [os.path.relpath(CLIENT, work), os.path.relpath(ROOT, work)]
    roots = [str(directory.relative_to(work)) for directory in directories]
    settings = {
        "include": roots,
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
        # For the files of the client themselves, which are in none of the roots.
        "extraPaths": extra_paths,
        "executionEnvironments": [
            {"root": root, "extraPaths": extra_paths} for root in roots
        ],
    }
    config = work / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    command = [
        BIN / "pyright",
        "--pythonpath",
        sys.executable,
        "--outputjson",
        "-p",
        config,
    ]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    if report["summary"]["filesAnalyzed"] < len(directories):
        return [f"pyright did not read all files: {done.stdout[:2000]}{done.stderr}"]
    return [
        f"{d['file']}:{d['range']['start']['line'] + 1}: pyright: {d['message']}"
        for d in report["generalDiagnostics"]
        if d["severity"] == "error"
    ]


def check_with_mypy(directory: Path, cache: Path) -> list[str]:
    """Return the errors of mypy in a directory that is the root of its modules."""
    files = [str(path.relative_to(directory)) for path in sorted(directory.rglob("*.py"))]
    command = [
        *(str(BIN / "mypy"), "--config-file", str(ROOT / "tests/public_types.ini")),
        *("--cache-dir", str(cache), "--no-error-summary", "--hide-error-context", *files),
    ]
    environ = {"PATH": str(BIN), "MYPYPATH": f"{directory}:{CLIENT}:{ROOT}"}
    done = subprocess.run(
        command, cwd=directory, env=environ, capture_output=True, text=True, check=False
    )
    lines = [
        f"{directory}/{line}" for line in done.stdout.splitlines() if ": error:" in line
    ]
    return lines or ([f"mypy: {done.stdout}{done.stderr}"] if done.returncode else [])


def write_pages(work: Path) -> list[Path]:
    """Write the modules of all pages. Return their directories."""
    directories = []
    for page in pages():
        if page in SKIPPED:
            print(f"{page} is skipped: {SKIPPED[page]}")
            continue
        directories.append(work / page)
        for file, text in modules(page).items():
            path = work / page / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return directories


def copy_examples(work: Path) -> list[Path]:
    """Copy the examples. Return the directories: the programs, and each project."""
    programs = work / "examples"
    shutil.copytree(EXAMPLES, programs, ignore=shutil.ignore_patterns(*PROJECTS, "*.pyc"))
    # Each beside the programs: a folder `fastapi` below them would hide the package.
    projects = [work / f"examples-{name}" for name in PROJECTS]
    for name, project in zip(PROJECTS, projects, strict=True):
        ignored = shutil.ignore_patterns("*.pyc", "migrations")
        shutil.copytree(EXAMPLES / name, project, ignore=ignored)
    return [programs, *projects]


def write_wrong_uses(work: Path) -> Path:
    """Write the program with errors. Return its directory."""
    directory = work / "wrong-uses"
    directory.mkdir(parents=True)
    (directory / "uses.py").write_text(textwrap.dedent(WRONG_USES))
    return directory


def compare_wrong_uses(checker: str, errors: Sequence[str]) -> list[str]:
    """Return an error for each marked line that a checker accepts, or other line that it
    does not.
    """
    lines = textwrap.dedent(WRONG_USES).splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    refused = {int(error.split(":")[1]) for error in errors}
    return [
        f"{checker} {'accepts' if number in marked else 'refuses'}: {lines[number - 1].strip()}"
        for number in sorted(marked ^ refused)
    ]


def without_accepted(errors: list[str]) -> list[str]:
    """Return the errors that are not accepted, and one for each entry without errors."""
    for page, (pattern, reason) in ACCEPTED.items():
        accepted = [e for e in errors if f"/{page}/" in e and re.search(pattern, e)]
        errors = [error for error in errors if error not in accepted]
        if accepted:
            print(f"{page}: {len(accepted)} errors are accepted: {reason}")
        else:
            errors.append(f"{page} has no such errors any more: remove it from ACCEPTED")
    return errors


def main() -> int:
    """Run all checks. Return 1 if there are errors."""
    work = ROOT / ".test" / "public-types"
    shutil.rmtree(work, ignore_errors=True)
    directories = [*write_pages(work), *copy_examples(work)]
    errors = unknown_public_types()
    errors += check_with_pyright(directories, work)
    for directory in directories:
        errors += check_with_mypy(directory, work / "cache")
    errors = without_accepted(errors)
    wrong = write_wrong_uses(work)
    errors += compare_wrong_uses("pyright", check_with_pyright([wrong], work))
    errors += compare_wrong_uses("mypy", check_with_mypy(wrong, work / "cache"))
    print(*(error.replace(f"{work}/", "") for error in errors), sep="\n")
    print(f"{len(directories)} pages and examples, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
