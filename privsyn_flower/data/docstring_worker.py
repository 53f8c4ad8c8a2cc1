"""Docstrings of Python files, read without importing them.

Run as a script by `docstrings.py` in several processes: file list in (JSON on standard
input), docstrings out (JSON on standard output). It imports the standard library only and is
started by its path, so that neither the caller's `__main__` nor its `sys.path` matters
(a Flower or Ray process may be daemonic and may not use multiprocessing).
"""

from __future__ import annotations

import ast
import gc
import inspect
import json
import re
import sys
from pathlib import Path

# Directives whose indented block is not prose; the others (note, warning) keep their text.
_CODE_DIRECTIVES = re.compile(
    r"\.\.\s+(code|code-block|sourcecode|plot|math|ipython|image|figure|toctree|autosummary"
    r"|currentmodule|doctest|testcode|testoutput|highlight|csv-table|list-table|index|include"
    r"|graphviz|jupyter-execute|literalinclude|only|table)::"
)
_DIRECTIVE = re.compile(r"^\.\.\s+(?:[\w:-]+::|\[\w+\]|_[^:]+:)\s*")
_NOT_LETTER = re.compile(r"[\W\d_]+")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MIN_LETTERS = 0.5  # share of letters among the characters of a line that counts as prose


def clean(docstring: str) -> str:
    """The prose of one docstring as one line of single-spaced words.

    Doctests with their output, fenced and literal blocks, code directives, section rulers,
    tables and lines that are mostly symbols are dropped; headings and prose stay.
    """
    kept: list[str] = []
    fence, doctest = "", False
    block: int | None = None  # indentation above which a literal block continues
    for line in inspect.cleandoc(docstring).splitlines():
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if fence:
            fence = "" if text.startswith(fence) else fence
            continue
        if text[:3] in ("```", "~~~"):
            fence = "" if text[3:].endswith(text[:3]) else text[:3]
            continue
        if not text:
            doctest = False
            continue
        if block is not None and indent > block:
            continue
        block = None
        doctest = doctest or text.startswith(">>>")
        if doctest:
            continue
        if _CODE_DIRECTIVES.match(text):
            block = indent
            continue
        text = _DIRECTIVE.sub("", text)
        if text.endswith("::"):
            block, text = indent, text[:-1]
        if is_prose(text):
            kept.append(text)
    words = " ".join(kept).replace("\x00", " ").split()
    # A lone surrogate (from an escape in the source) is no valid Unicode and cannot be stored.
    return " ".join(words).encode("utf-8", "replace").decode("utf-8")


def is_prose(line: str) -> bool:
    """Whether a stripped line reads as text rather than as a table, ruler or formula."""
    if line.count("|") >= 2 or "====" in line or "----" in line:
        return False
    letters = len(_NOT_LETTER.sub("", line))
    return letters >= MIN_LETTERS * max(1, len(line) - line.count(" "))


def docstrings_of(source: bytes) -> list[str]:
    """Cleaned docstrings of a module, its classes and functions, in source order.

    Raises SyntaxError or ValueError when the source is no Python of this version.
    """
    found: list[tuple[int, str]] = []
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, _DOCUMENTED):
            text = ast.get_docstring(node, clean=False)
            if text and (cleaned := clean(text)):
                found.append((getattr(node, "lineno", 0), cleaned))
        # Only statements can hold definitions; walking expressions too doubles the time.
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                pending += statements
    return [text for _, text in sorted(found, key=lambda item: item[0])]


def scan_files(paths: list[str]) -> list[list[str] | None]:
    """Docstrings of each file, in order; None for a file that cannot be read or parsed."""
    results: list[list[str] | None] = []
    for path in paths:
        try:
            results.append(docstrings_of(Path(path).read_bytes()))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            results.append(None)  # templates, other Python versions: common and harmless
    return results


def main() -> None:
    """Serve one batch."""
    gc.disable()  # syntax trees are short-lived; collecting them costs a third of the time
    paths = json.load(sys.stdin)
    sys.stdout.write(json.dumps(scan_files(paths)))


if __name__ == "__main__":
    main()
