"""Text that is on every machine with Python: its documentation topics, and what its standard library says of itself.

Sources are read as text and parsed; no module is imported or run. The same Python version gives the same text.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from placement.errors import InputError

MODULES = (
    *("argparse", "asyncio", "base64", "bisect", "calendar", "collections", "configparser", "contextlib", "copy"),
    *("csv", "dataclasses", "datetime", "difflib", "enum", "fileinput", "fnmatch", "fractions", "functools", "glob"),
    *("gzip", "hashlib", "heapq", "html", "http", "io", "ipaddress", "json", "locale", "logging", "mimetypes"),
    *("numbers", "operator", "os", "pathlib", "pickle", "pprint", "queue", "random", "re", "sched", "secrets"),
    *("selectors", "shelve", "shlex", "shutil", "signal", "socket", "socketserver", "statistics", "string"),
    *("struct", "subprocess", "tempfile", "textwrap", "threading", "timeit", "traceback", "types", "typing"),
    *("unittest", "urllib", "uuid", "warnings", "weakref", "zipfile"),
)
"""Modules that no distribution leaves out."""
MAX_SOURCE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 64 << 20
"""Bounds against a library that is not what it should be; Python 3.11 has 3 MB in these modules."""

_SHORTEST = 20
"""Characters of a text worth keeping."""


@dataclass(frozen=True)
class Entry:
    """What the documentation says of one thing."""

    kind: str
    """topic, module, class or function"""
    name: str
    """With the module and class it is in: json.JSONEncoder.default"""
    paragraphs: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n\n".join(self.paragraphs)


@dataclass(frozen=True)
class Corpus:
    """No paragraph comes twice, so that what is held out is nowhere else."""

    entries: tuple[Entry, ...]
    code: tuple[str, ...]
    """Lines of the sources that are neither comment nor documentation, in order."""


def read_corpus(library: Path | None = None) -> Corpus:
    """The text of the standard library at `library`, this Python's own where absent."""
    library = library or Path(sysconfig.get_path("stdlib"))
    entries = list(_topics(library))
    code: list[str] = []
    for name, path in _files(library):
        tree = _parse(path)
        entries += _docstrings(tree, name)
        code += _code_lines(tree, path)
    return Corpus(tuple(_without_repetition(entries)), tuple(code))


def _files(library: Path) -> Iterator[tuple[str, Path]]:
    """(name of the module, its source), in the order of names."""
    total = 0
    for name in MODULES:
        folder = library / name
        paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [library / f"{name}.py"]
        for path in paths:
            parts = path.relative_to(library).with_suffix("").parts
            if "test" in parts or "tests" in parts or not path.is_file():
                continue
            total += path.stat().st_size
            if total > MAX_TOTAL_BYTES:
                raise InputError(f"{library}: more than {MAX_TOTAL_BYTES >> 20} MiB; not a standard library of Python")
            yield ".".join(part for part in parts if part != "__init__"), path


def _parse(path: Path) -> ast.Module:
    try:
        if path.stat().st_size > MAX_SOURCE_BYTES:
            raise InputError(f"{path}: more than {MAX_SOURCE_BYTES >> 20} MiB; not a source of the standard library")
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(
            f"{path}: Python's own library is the text to train on, and cannot be read: {error}"
        ) from error


def _topics(library: Path) -> Iterator[Entry]:
    path = library / "pydoc_data" / "topics.py"
    tables = [node.value for node in _parse(path).body if isinstance(node, ast.Assign)]
    if not tables:
        raise InputError(f"{path}: no documentation topics in it; install Python with its documentation strings")
    for name, text in sorted(ast.literal_eval(tables[-1]).items()):
        yield Entry("topic", name, _paragraphs(text))


def _docstrings(tree: ast.Module, module: str) -> Iterator[Entry]:
    yield from _docstring(tree, "module", module)
    yield from _members(tree, module)


def _members(parent: ast.AST, name: str) -> Iterator[Entry]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            yield from _docstring(node, kind, f"{name}.{node.name}")
            yield from _members(node, f"{name}.{node.name}")


def _docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, kind: str, name: str
) -> Iterator[Entry]:
    text = ast.get_docstring(node)
    if text:
        yield Entry(kind, name, _paragraphs(text))


def _paragraphs(text: str) -> tuple[str, ...]:
    """Prose that was broken into lines is one line again; what is indented or listed stays as it is."""
    blocks: list[list[str]] = [[]]
    for line in inspect.cleandoc(text).expandtabs().splitlines():
        if line.strip():
            blocks[-1].append(line.rstrip())
        elif blocks[-1]:
            blocks.append([])
    return tuple(" ".join(block) if _is_prose(block) else "\n".join(block) for block in blocks if block)


def _is_prose(block: list[str]) -> bool:
    return all(line[0].isalnum() or line[0] in "\"'`(" for line in block) and len(block[0]) > 40


def _code_lines(tree: ast.Module, path: Path) -> Iterator[str]:
    """Strings that stand alone are documentation too."""
    prose: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        bare = line.strip()
        if bare and not bare.startswith("#") and number not in prose:
            yield bare


def _without_repetition(entries: list[Entry]) -> Iterator[Entry]:
    seen: set[str] = set()
    for entry in entries:
        fresh = tuple(dict.fromkeys(part for part in entry.paragraphs if part not in seen))
        seen.update(fresh)
        if sum(map(len, fresh)) >= _SHORTEST:
            yield Entry(entry.kind, entry.name, fresh)
