"""Public names and pages are in the words of the field (docs/glossary.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import privsyn_flower
from tests.rigs.docs import PAGES, text_of

ROOT = Path(privsyn_flower.__file__).parent
# Past participles that say nothing of what is named, and a dialect that nobody would search for.
BANNED = frozenset(
    "asked coin coins counted crumb door doubt found foretell foretold held house infiller kept "
    "lanes last_word made own_account promised room said taking telling told unasked varied".split()
)
# Held-out text; made by whom; the hook of a callback; asyncio's hook.
STANDARD = ("held_out", "made_by", "question_asked", "connection_made")
KEYS = frozenset({"infiller"})  # `models.infiller`: the masked LM of PrE-Text's mask-infilling
DIALECT = re.compile(
    r"\b(coins?|the one door|crumbs?|asks? nobody|trainings|own account|last word)\b", re.IGNORECASE
)


def public_names(tree: ast.Module) -> Iterator[str]:
    """Of modules and classes: functions, classes, constants, fields; and functions' parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.FunctionDef | ast.ClassDef):
                    yield one.name
                elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    yield one.target.id
                elif isinstance(one, ast.Assign):
                    yield from (name.id for name in one.targets if isinstance(name, ast.Name))
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield from (own.arg for own in [*node.args.args, *node.args.kwonlyargs])


def dialect(name: str) -> set[str]:
    plain = name.lower()
    for term in STANDARD:
        plain = plain.replace(term, "")
    return set() if name.startswith("_") else BANNED & {plain, *plain.split("_")} - KEYS


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_public_names_are_of_the_field(path: Path) -> None:
    names = [path.stem, *public_names(ast.parse(text_of(path)))]
    assert not {name: dialect(name) for name in names if dialect(name)}


@pytest.mark.parametrize("name", ["said", "rows_kept", "Unasked", "own_account", "COINS"])
def test_the_check_above_can_fail(name: str) -> None:
    assert dialect(name) and not dialect("held_out") and not dialect(f"_{name}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_without_dialect(page: Path) -> None:
    assert not DIALECT.findall(re.sub(r"`[^`\n]*`", "", text_of(page)))  # code has old names
