"""docs/results/papers-rows.md has every row of the papers' tables and figures, and what it names is
there: configurations, grids, variants, tests, and commands with their options. configs/papers is
what scripts/papers says; the numbers are compared with the papers elsewhere
(`test_training_configs`, `tests/server_apps/test_paper_configs`)."""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections import Counter

import pytest
import typer

from privsyn_flower.app.cli.main import app
from privsyn_flower.config import load_config
from privsyn_flower.config.grid import load_grid
from privsyn_flower.evaluation.public import tuning_of
from privsyn_flower.server_apps.methods import recipe_of
from scripts import paper_configs, paper_rows
from scripts.paper_rows import ROOT
from scripts.papers.layers import laid

ROWS = list(paper_rows.rows())
# Counted in the papers. The bounds of POPri's Table 1 are columns, one more for each data set; of
# Table 4 and 7 of Gboard both halves count.
COUNTS = {
    "PrE-Text": {
        "Table 1": 4, "Table 2": 11, "Table 3": 11, "Table 4": 4, "Table 5": 4, "Table 6": 3,
        "Figure 1": 1, "Figure 2": 4, "Figure 3": 1,
    },
    "POPri": {
        "Table 1": 16 + 4, "Table 2": 5, "Table 3": 5, "Table 4": 3,
        "Figure 1": 1, "Figure 2": 2, "Figure 3": 4, "Figure 4": 3, "Figure 5": 1, "Figure 6": 2,
        "Figure 7": 1, "Figure 8": 2, "Figure 9": 2, "Figure 10": 1,
    },
    "CTCL": {
        "Table 1": 3, "Table 2": 1, "Table 3": 11, "Table 4": 8, "Table 5": 3, "Table 6": 4,
        "Table 7": 5, "Table 8": 11 + 8 + 8, "Table 9": 5 * 3,
        "Figure 1": 1, "Figure 2": 2, "Figure 3": 3, "Figure 4": 1,
    },
    "Gboard": {
        "Table 1": 2, "Table 2": 4, "Table 3": 4, "Table 4": 3 + 3, "Table 5": 2, "Table 6": 2,
        "Table 7": 3 + 3, "Figure 1": 1, "Figure 2": 1, "Figure 3": 1, "Figure 4": 2,
    },
}  # fmt: skip


def test_the_page_is_that_of_the_table() -> None:
    assert paper_rows.PAGE.read_text("utf-8") == paper_rows.page(), "run make paper-configs"


def test_every_table_and_figure_has_its_rows() -> None:
    found = Counter((row.paper, row.item) for row in ROWS)
    wanted = {(paper, item): n for paper, items in COUNTS.items() for item, n in items.items()}
    assert found == wanted and len(wanted) == 47
    for paper, items in COUNTS.items():  # numbered from 1, without a gap
        for kind in ("Table", "Figure"):
            numbers = sorted(int(i.split()[1]) for i in items if i.startswith(kind))
            assert numbers == list(range(1, len(numbers) + 1)), paper
    assert len({(row.paper, row.item, row.row) for row in ROWS}) == len(ROWS)


@functools.cache
def variants(grid: str) -> set[str]:
    config = ROOT / "configs" / "papers" / "ctcl-pubmed-eps4.toml"
    axes = load_grid(ROOT / "configs" / "grids" / f"{grid}.toml", [config]).axes
    return {value.name for value in axes["variant"]}


@pytest.mark.parametrize("paper", COUNTS)
def test_what_a_row_names_is_there(paper: str) -> None:
    for row in (row for row in ROWS if row.paper == paper):
        told = f"{row.item}, {row.row}"
        assert row.says and (row.note or row.where in paper_rows.PLACES[:2]), told
        for name in row.files:
            there = (ROOT / "configs" / "papers" / f"{name}.toml").is_file()
            assert there, (told, name)
        named = re.search(r"variant ([\w-]+)", row.note)
        if named:
            assert named[1] in variants(row.grid), told


COMMANDS = sorted({command for row in ROWS for command in row.commands})
PRIVSYN = typer.main.get_command(app)  # takes a while
KINDS = {" ".join(line.split()[:2]) for line in COMMANDS}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_its_commands_parse(kind: str) -> None:
    for line in COMMANDS:
        if line.startswith(f"{kind} ") or line == kind:
            check_command(*shlex.split(line))


def check_command(program: str, *words: str) -> None:
    """Refuses unknown options, missing arguments, and files that are not there."""
    for word in words:
        if "/" in word and word.startswith(("configs/", "tests/")):
            assert (ROOT / word).is_file(), word
    if program == "pytest":
        return
    assert program == "privsyn"
    command, rest = PRIVSYN, list(words)
    while getattr(command, "commands", None):
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]
    command.make_context(command.name, rest)


def test_braces_open_as_in_a_shell() -> None:
    assert paper_rows.opened("{a,b}-c-{1,2}") == ["a-c-1", "a-c-2", "b-c-1", "b-c-2"]
    assert paper_rows.opened("plain") == ["plain"] and paper_rows.opened("") == []


# The files of configs/papers, from the tables of scripts/papers --------------------------------

TEXTS = paper_configs.texts()


def test_no_file_is_missing_and_none_is_left_over() -> None:
    assert len(TEXTS) == 137
    assert {path.name for path in paper_configs.FOLDER.iterdir()} == {f"{n}.toml" for n in TEXTS}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_is_that_of_the_tables(name: str) -> None:
    written = (paper_configs.FOLDER / f"{name}.toml").read_text("utf-8")
    assert written == TEXTS[name], "run make paper-configs"


def test_the_later_layer_stays_and_keys_have_the_schemas_order() -> None:
    first = "# A.\n[popri]\nepochs = 2  # section 1\n[data]\nusers = $users\n"
    second = '# B.\nmethod = "popri"\n[popri]\nepochs = 3  # section 2'
    assert laid([first, second], {"users": "7"}) == (
        '# A.\n# B.\nmethod = "popri"\n\n[data]\nusers = 7\n\n[popri]\nepochs = 3  # section 2\n'
    )


def test_what_a_layer_may_not_say() -> None:
    with pytest.raises(ValueError, match=r"unknown keys: \['popri.epsilon'\]"):
        laid(["[popri]\nepsilon = 1.0"], {})
    with pytest.raises(KeyError, match="users"):
        laid(["[data]\nusers = $users"], {})


# How often the papers' fine-tunings read their text: PrE-Text 20 epochs (App. D.2), for LLaMA one
# (section 4.2); POPri 500,000 steps of 160 on a million texts, centrally ten epochs (App. B.1);
# CTCL 6,000 steps of 64 on 400,000 texts (section 4.1).
PASSES = {
    r"(.*-)?pretext-llama2-": 1.0,
    r".*pretext-": 20.0,
    r".*popri-(pubmed|openreview)": 10.0,
    r".*popri-": 80.0,
    r"ctcl-": 0.96,
    r"dp-fedavg-ctcl-": math.inf,  # of (c): 6,000 steps, whatever there is to read
    r"(dp-ftrl|evaluation)-gboard-": math.inf,  # of (c), which the paper has not
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_evaluation_reads_its_text_no_more_often_than_the_paper(name: str) -> None:
    """A batch of tokens would read short texts many times over."""
    config = load_config(paper_configs.FOLDER / f"{name}.toml")
    allowed = next(most for family, most in PASSES.items() if re.match(family, name))
    if allowed == math.inf:
        return
    tuning, texts = tuning_of(config), recipe_of(config).texts(config)
    assert tuning.by_texts
    texts = texts or config.data.users * config.data.samples_per_user  # a training writes none
    assert tuning.steps_of(texts) * tuning.batch_size <= allowed * (texts + tuning.batch_size)
    public, pool = tuning_of(config, public=True), config.data.public_pool
    assert public.steps_of(pool) * public.batch_size <= 20 * (pool + public.batch_size)
