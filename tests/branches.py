"""Branches of the product that the gate's tests take: marked in its code, merged, held against a number.

    pytest -p tests.branches --branches FILE …        also writes which branches were taken

The product's modules are loaded with a mark where each branch of an if, a loop or a match begins. A mark is
one store into a list, so such a run costs hardly more than another. Processes that tests start are not
measured, so acceptance tests add nothing.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("messagestore", "metadata", "brokerapi", "portal", "catmq_site", "client/src/catmq_client")
FEWEST = Path(__file__).parent / "coverage.txt"  # per cent of branches; raise it when there are more
TAKEN = "__branches_taken__"  # of each marked module: 1 for a branch that was taken
Branches = dict[str, dict[str, int]]  # file → branch → 1 if it was taken


class Marker(ast.NodeTransformer):
    """Puts a mark where each branch begins; `found` has their names, in the order of their numbers."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_If(self, node: ast.If) -> ast.AST:
        """Mark both ways; what only type checkers read is none."""
        only_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node if only_types else self.visit_While(node)

    def visit_While(self, node: Any) -> ast.AST:
        """Mark the way into the body and the one past it, which `while True` has not."""
        self.generic_visit(node)
        node.body.insert(0, self._mark(node, "into"))
        if not isinstance(getattr(node, "test", None), ast.Constant):
            node.orelse.insert(0, self._mark(node, "past"))
        return node

    visit_For = visit_AsyncFor = visit_While

    def visit_Match(self, node: ast.Match) -> ast.AST:
        """Mark each case, and that none fits."""
        self.generic_visit(node)
        for case in node.cases:
            case.body.insert(0, self._mark(case.pattern, "into"))
        last = node.cases[-1]
        takes_all = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        if last.guard is not None or not takes_all:
            node.cases.append(ast.match_case(ast.MatchAs(), body=[self._mark(node, "past")]))
        return node

    def _mark(self, node: Any, way: str) -> ast.stmt:
        place = ast.Subscript(ast.Name(TAKEN, ast.Load()), ast.Constant(len(self.found)), ast.Store())
        self.found.append(f"{node.lineno}:{node.col_offset} {way}")
        return ast.copy_location(ast.Assign([place], ast.Constant(1)), node)


def marked(source: bytes | str, path: str) -> tuple[CodeType, list[str]]:
    """Return the code of a module with marks, and the names of its branches."""
    marker = Marker()
    tree = ast.fix_missing_locations(marker.visit(ast.parse(source)))
    return compile(tree, path, "exec", dont_inherit=True), marker.found


def branches_of(source: bytes | str) -> list[str]:
    """Return the names of a module's branches."""
    marker = Marker()
    marker.visit(ast.parse(source))
    return marker.found


class Loader(SourceFileLoader):
    """Loads a module with marks, never from its .pyc file."""

    names: Sequence[str] = ()
    taken: Sequence[int] = ()

    def exec_module(self, module: ModuleType) -> None:
        """Run the marked code."""
        code, self.names = marked(Path(self.path).read_bytes(), self.path)
        self.taken = module.__dict__[TAKEN] = [0] * len(self.names)
        exec(code, module.__dict__)


class Finder(MetaPathFinder):
    """Finds the modules below some folders; `loaders` are theirs."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.loaders: list[Loader] = []

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return how a module of the product is loaded, None for others."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        if not any(folder in Path(spec.loader.path).parents for folder in self.folders):
            return None
        spec.loader = Loader(spec.loader.name, spec.loader.path)
        self.loaders.append(spec.loader)
        return spec

    def told(self, root: Path) -> Branches:
        """Return all branches of the folders, also of modules that nobody loaded."""
        found: Branches = {}
        loaded = {Path(loader.path): loader for loader in self.loaders if loader.names}
        for file in (one for folder in self.folders for one in sorted(folder.rglob("*.py"))):
            names = loaded[file].names if file in loaded else branches_of(file.read_bytes())
            found[str(file.relative_to(root))] = dict.fromkeys(names, 0)
        for loader in self.loaders:
            known = found[str(Path(loader.path).relative_to(root))]
            known |= {name: 1 for name, taken in zip(loader.names, loader.taken, strict=True) if taken}
        return found


finder = Finder([ROOT / package for package in PACKAGES])


def pytest_addoption(parser: Any) -> None:
    """Declare the option of a measured run; pytest calls this first, before it loads what is measured."""
    parser.addoption("--branches", type=Path, metavar="FILE", help="write which branches were taken")
    sys.meta_path.insert(0, finder)


def pytest_unconfigure(config: Any) -> None:
    """Write what was taken."""
    config.getoption("--branches").write_text(json.dumps(finder.told(ROOT)))


def measuring(command: Sequence[str], report: Path) -> tuple[str, ...]:
    """Return a pytest command that also writes which branches it took."""
    return (*command, "-p", "tests.branches", "--branches", str(report))


def judge(reports: Sequence[Path]) -> tuple[str, bool]:
    """Return a line on the branches that all runs together took, and True if they are too few."""
    try:
        taken = [any(ways) for ways in merged([json.loads(report.read_text()) for report in reports])]
    except (OSError, ValueError) as error:
        return f"branches: not counted: {error}", True
    share, least = 100 * sum(taken) / (len(taken) or 1), float(FEWEST.read_text())
    few = f", fewer than the {least:.1f} % of {FEWEST.name}" if share < least else ""
    return f"branches: {share:.2f} % of {len(taken)} taken{few}", share < least


def merged(reports: Sequence[Branches]) -> Iterator[list[int]]:
    """What each report says of each branch; all of them know all branches."""
    for file, branches in reports[0].items():
        for branch in branches:
            yield [report[file][branch] for report in reports]
