"""The pages say what the code does: generated parts, links, code blocks and figures in them."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privsyn_flower.cli import app
from privsyn_flower.client_apps.node import NODE_KEYS
from privsyn_flower.config import RunConfig, flatten
from privsyn_flower.config_file import load_config
from privsyn_flower.launch import QUIET
from privsyn_flower.server_apps.parts import noise_multiplier, statement
from scripts import update_docs

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(language: str) -> list[tuple[str, str]]:
    """(name, code) of every fenced block in that language."""
    found = [(p.name, FENCE.findall(text_of(p))) for p in PAGES]
    return [
        (f"{name}:{number}", code)
        for name, fences in found
        for number, (kind, code) in enumerate(fences, start=1)
        if kind == language
    ]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


def test_the_table_of_keys_is_up_to_date() -> None:
    page = text_of(update_docs.PAGE)
    assert update_docs.with_table(page) == page, "run `make app-config`"
    with pytest.raises(ValueError, match="keys:start"):
        update_docs.with_table("no markers")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    prose = FENCE.sub("", text_of(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert linked.is_relative_to(ROOT), f"{page.name} links out of the repository: {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}"


@pytest.mark.parametrize(("name", "code"), blocks("python"), ids=lambda value: str(value)[:20])
def test_python_blocks_compile_and_import_what_exists(name: str, code: str) -> None:
    compile(code, name, "exec")
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("privsyn_flower"):
            exec(compile(ast.Module([node], []), name, "exec"), {})


@pytest.mark.parametrize(("name", "code"), blocks("toml"), ids=lambda value: str(value)[:20])
def test_toml_blocks_are_configurations(name: str, code: str) -> None:
    RunConfig.from_flat(flatten(tomllib.loads(code)))


def test_the_sentence_is_that_of_the_defaults() -> None:
    page = text_of(ROOT / "docs" / "privacy.md")
    quoted = page.partition("<!-- sentence:start -->\n> ")[2].partition("\n<!--")[0]
    config = RunConfig()
    assert quoted == statement(config, noise_multiplier(config)).sentence()


def test_printed_accounting_is_what_the_command_prints() -> None:
    lines = [line for _, code in blocks("sh") for line in code.splitlines()]
    shown = [
        re.fullmatch(r"privsyn ((?:account|calibrate) .*?)\s+# ([\d.]+)", line) for line in lines
    ]
    commands = [match for match in shown if match]
    assert len(commands) >= 3
    for match in commands:
        result = CliRunner().invoke(app, match[1].split())
        assert f" = {match[2]}\n" in result.output, match[0]


def test_the_table_of_papers_is_that_of_the_configurations() -> None:
    rows = re.findall(
        r"^\| \[(\S+)\]\((\S+)\) \| .*? \| .*? \| (\S+) \| (\S+) x (\S+) \| (\d+) \| (\S+) \|$",
        text_of(ROOT / "README.md"),
        re.MULTILINE,
    )
    assert {row[0] for row in rows} == {p.stem for p in (ROOT / "configs").glob("pretext-*.toml")}
    for name, path, *figures in rows:
        assert path == f"configs/{name}.toml"
        config = load_config(ROOT / path)
        wanted = (
            config.epsilon,
            config.noise_multiplier,
            config.pretext.vote_bound,
            config.pretext.population,
            config.pretext.threshold,
        )
        assert tuple(map(float, figures)) == wanted, name
        assert config.pretext.threshold_unit == "votes"


def test_keys_of_nodes_and_variables_of_reporting_are_all_named() -> None:
    readme, runs = text_of(ROOT / "README.md"), text_of(ROOT / "docs" / "runs.md")
    devices = readme.partition("## Real devices")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", devices, re.MULTILINE)) == NODE_KEYS
    for name in set(QUIET) - {"TOKENIZERS_PARALLELISM"}:
        assert f"{name}={QUIET[name]}" in readme
        assert f"| `{name}` | {QUIET[name]} |" in runs


def test_parts_that_others_fill_keep_their_markers() -> None:
    for page, name in ((ROOT / "README.md", "results"), (ROOT / "docs/performance.md", "figures")):
        assert re.search(rf"<!-- {name}:start -->\n.+<!-- {name}:end -->", text_of(page), re.DOTALL)
