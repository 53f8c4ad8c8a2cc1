"""The files that a reviewer reads to check the claim of a vote, computed from the imports.

    python scripts/claim_files.py            print them with their lines
    python scripts/claim_files.py --write    and put them into docs/verify.md

It begins at the files that a vote goes through, on a device and on the server, and follows their
imports within the trusted packages. Imports for type checkers alone are not followed, and neither
are the files of LEFT_OUT: each stands there with the reason why the claim does not rest on it.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "verify.md"
BEGIN, END = "<!-- files: python scripts/claim_files.py --write -->", "<!-- end of files -->"
PACKAGE = "privsyn_flower"
TRUSTED = ("privacy", "secagg", "queries")
MOST_FILES, MOST_LINES = 20, 4500

# Where a vote begins, and the files outside of the trusted packages that keep the order of steps.
START = (
    "client_apps.votes",
    "client_apps.answers",
    "protocol.noise",
    "protocol.secure",
    "strategies.engine.rounds",
    "privacy.plan",
)
LEFT_OUT = {
    "privacy.accounting.calibration": "searches for the noise of an epsilon; "
    "`PrivacyPlan.epsilon` and the ledger price what it finds",
    "privacy.accounting.curve": "other accounts of the same noise, for the summary",
    "privacy.correlated.integer_matrix": "the integers of model updates",
    "privacy.correlated.participation": "the integers of model updates",
    "privacy.encoding.dense": "the integers of model updates",
    "privacy.encoding.sizing": "integers' scale and modulus; `truncate`, "
    "`release_distance` and the ledger check them",
    "privacy.ledger.refusals": "the words of a refusal, once `filters.fits` has decided",
    "privacy.wording": "the words of error messages",
    "secagg.identity": "the file of a node's signing key, for a server that breaks the protocol",
    "secagg.server": "the server's half of the secure sum: a function of what the nodes sent",
}
# Outside of the trusted packages, where imports are not followed.
NOT_FOLLOWED = {
    "client_apps.node": "what a device's owner allows beyond the claim: policy, records, limits",
    "protocol.wire": "questions as Flower records; a node refuses a session of another hash",
    "strategies.engine.aggregation": "carries messages; nodes check survivors before, "
    "`release` after",
    "strategies.engine.mechanisms": "chooses the numbers of the noise and of the integers; "
    "`charge_of` prices what was chosen",
    "strategies.engine.cohort": "who is asked, and W; a node's noise has the W that it checks",
    "data.caches": "relied on: a user's rows come from its texts alone",
    "runs": "relied on: what is saved is on disk",
    "common.files": "relied on: what is saved is on disk",
    "strategies.engine.callbacks": "called before reserve and after commit",
    "evaluation.verdict": "warns of noise in released sums",
}
# What else those files import: types, names, errors, random generators and the public side.
PLAIN = (
    "caches", "common.arrays", "common.progress", "common.randomness", "config.api",
    "data.findings", "protocol.greeting", "protocol.messaging",
    "protocol.question", "text.embedders",
)  # fmt: skip


def path_of(module: str) -> Path | None:
    """The file of a module below the package; None for a package or what is no module."""
    path = ROOT / PACKAGE / Path(*module.split(".")).with_suffix(".py")
    return path if path.is_file() else None


def run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from run_time(node)


@functools.cache
def imported(module: str) -> set[str]:
    """Modules of the package that a module imports, inside of functions too."""
    path = path_of(module)
    tree = ast.parse(path.read_text("utf-8")) if path else ast.Module([], [])
    found = set[str]()
    for node in run_time(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            found |= {defined_in(str(node.module), name.name) for name in node.names}
    return found


@functools.cache
def defined_in(module: str, name: str) -> str:
    """The module that a name of `module` comes from, below the package.

    A package's own file only passes names on: the file that it imports them from counts.
    """
    below = module.removeprefix(f"{PACKAGE}.")
    if path_of(f"{below}.{name}"):
        return f"{below}.{name}"
    facade = ROOT / PACKAGE / Path(*below.split(".")) / "__init__.py"
    if facade.is_file():
        for node in ast.walk(ast.parse(facade.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and name in {item.name for item in node.names}:
                return defined_in(str(node.module), name)
    return below


def modules() -> list[str]:
    """The modules to read, those where a vote begins first."""
    waiting, found = list(START), list[str]()
    while waiting:
        module = waiting.pop(0)
        if module not in found and module not in LEFT_OUT and path_of(module):
            found.append(module)
            waiting[:0] = sorted(m for m in imported(module) if m.split(".")[0] in TRUSTED)
    return found


def claim_files() -> list[Path]:
    """Their files."""
    return [path for module in modules() if (path := path_of(module))]


def lines_of(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def section() -> str:
    """What stands on the page between BEGIN and END: no line counts, which every edit changes."""
    files = [f"`{path.relative_to(ROOT / PACKAGE)}`" for path in claim_files()]
    reasons: dict[str, list[str]] = {}
    for module, reason in (LEFT_OUT | NOT_FOLLOWED).items():
        reasons.setdefault(reason, []).append(f"`{module.replace('.', '/')}`")
    return "\n".join(
        [
            f"The imports of a vote lead to these {len(files)} files below `{PACKAGE}/`, at most",
            f"{MOST_LINES:,} lines (`python scripts/claim_files.py` counts them):",
            "",
            *(f"{number}. {name}" for number, name in enumerate(files, start=1)),
            "",
            "Not in the list, with the reason:",
            "",
            *(f"- {', '.join(modules)}: {reason}" for reason, modules in reasons.items()),
        ]
    )


def page_with(text: str) -> str:
    """The page with this section in its place."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Print the files, or put them into the page."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with(section()), "utf-8")
        return
    for path in claim_files():
        print(f"{lines_of(path):6}  {path.relative_to(ROOT)}")
    print(f"{sum(map(lines_of, claim_files())):6}  lines in {len(claim_files())} files")


if __name__ == "__main__":
    main()
