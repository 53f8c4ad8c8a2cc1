"""The pages say what the code does: generated parts, links, code blocks and figures in them."""

from __future__ import annotations

import ast
import json
import math
import re
import shlex
import socket
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from flwr.clientapp import ClientApp
from typer.testing import CliRunner

from privsyn_flower import NO_TELEMETRY
from privsyn_flower.app.cli.main import app
from privsyn_flower.client_apps import main as shipped
from privsyn_flower.client_apps.answers import guarded, reply
from privsyn_flower.client_apps.node.device import NODE_KEYS, Node
from privsyn_flower.client_apps.node.lifetime import Limit, Spent, cost
from privsyn_flower.client_apps.node.policy import Kind as PolicyKind
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.config import (
    EvaluationConfig,
    FtrlConfig,
    GenerationConfig,
    PeConfig,
    PopriConfig,
    RunConfig,
    Section,
    TrainingConfig,
    flatten,
    load_config,
)
from privsyn_flower.privacy.accounting import calibrate
from privsyn_flower.privacy.encoding.quantize import SENSITIVITY
from privsyn_flower.privacy.encoding.sizing import distance_each, least_sensitivity
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta, release_distance
from privsyn_flower.protocol.greeting import HELLO, Hello, answer_hello, hello, read_hello
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import PROTOCOL
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.privacy_plan import baseline, privacy_plan, statement
from privsyn_flower.text import load_embedder
from scripts import update_docs
from tests.conftest import node_context, sentences
from tests.rigs import strategies_popri as popri
from tests.rigs.docs import DOCS, FENCE, PAGES, ROOT, blocks, metrics_of_the_page, text_of

FIGURES, PROOFS = DOCS / "results", DOCS / "proofs"
EVERY = [*PAGES, *sorted([*FIGURES.glob("*.md"), *PROOFS.glob("*.md")])]
QUICKSTART = ROOT / "examples" / "quickstart-pretext"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    names = [heading.strip().replace(" ", "-") for heading in plain]
    seen: Counter[str] = Counter()
    found = set()
    for name in names:  # a heading that occurs again gets a number
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def test_the_tables_of_keys_are_up_to_date() -> None:
    for path, config in update_docs.PAGES.items():
        page = text_of(path)
        assert update_docs.with_table(page, config) == page, "run `make app-config`"
    with pytest.raises(ValueError, match="keys:start"):
        update_docs.with_table("no markers", RunConfig())


@pytest.mark.parametrize("page", EVERY, ids=lambda page: f"{page.parent.name}-{page.stem}")
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


@pytest.mark.parametrize(
    ("epsilon", "releases", "length", "page", "words"),
    [
        (7.58, 9, 18_000, "privacy.md", "18,000 coordinates S = {} would do"),
        (7.58, 9, 18_000, "integer-noise.md", "S = {} would do at nine releases of 18,000"),
        (20.0, 9, 18_000, "integer-noise.md", "and epsilon 7.58, {} at epsilon 20"),
        (7.58, 2000, 2_600_000, "integer-noise.md", "and {} at 2,000 releases of 2.6 million"),
    ],
)
def test_how_fine_the_integers_must_be(
    epsilon: float, releases: int, length: int, page: str, words: str
) -> None:
    z = calibrate(epsilon, releases, gaussian_delta(3e-6))
    each = distance_each(epsilon, 3e-6, releases)
    least = math.ceil(least_sensitivity(length, z, 850, each))
    assert words.format(f"{least:,}") in " ".join(text_of(ROOT / "docs" / page).split())


def test_every_test_that_a_page_names_exists() -> None:
    named = {
        found for page in EVERY for found in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text_of(page))
    }
    assert len(named) > 40
    for path in {path for path, _ in named}:
        functions = {
            node.name
            for node in ast.walk(ast.parse(text_of(ROOT / path)))
            if isinstance(node, ast.FunctionDef)
        }
        missing = {test for file, test in named if file == path} - functions
        assert not missing, f"{path} has no {missing}"


def test_every_pitfall_has_its_test() -> None:
    page = text_of(ROOT / "docs" / "pitfalls.md")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "shown by" not in line]
    assert len(rows) > 30
    assert [row for row in rows if "::test_" not in row.rpartition("| `")[2]] == []


# What a block needs that an empty folder without a network has not.
NEEDS = {
    '"http://127.0.0.1:8000/v1"': "asks a model server that is there",
}
# Pages with shell commands, and why no test types them in: their names, options and files are
# compared with the code below.
TYPED = {
    "CONTRIBUTING.md": "the Makefile's targets are compared with it below",
    "README.md": "`pip`, and what tests/end_to_end/test_examples.py runs",
    "audit.md": "minutes of trials",
    "deployment.md": "other machines, other accounts and certificates",
    "flwr-run.md": "minutes of Flower: tests/end_to_end/test_examples.py runs the app",
    "generators.md": "GPUs and model servers",
    "methods.md": "runs of the papers' sizes, data of a hub",
    "performance.md": "benchmarks of minutes",
    "privacy.md": "each is typed: test_printed_accounting_is_what_the_command_prints",
    "public-text.md": "a model server",
    "publishing.md": "an account of the hub",
    "ray-cluster.md": "several machines",
    "runs.md": "runs of minutes",
    "scale.md": "hours",
    "tracking.md": "trackers with accounts",
}


def test_only_these_pages_have_commands_that_no_test_types() -> None:
    assert {name.partition(":")[0] for name, _ in blocks("sh")} == set(TYPED)


def needed(code: str) -> str:
    """Why a block does not run here; "" when it does."""
    return next((why for sign, why in NEEDS.items() if sign in code), "")


PYTHON = {
    page.name: [c for n, c in blocks("python") if n.startswith(f"{page.name}:")] for page in PAGES
}


def files_of(page: Path) -> dict[str, str]:
    """Name -> code of the first block each that the line before it names, as `topics.py`."""
    found = re.findall(r"`(\w+)\.py`[^`]*?\n\n```python\n(.*?)^```$", text_of(page), re.M | re.S)
    return dict(reversed(found))


@pytest.mark.parametrize("page", [p for p in PAGES if PYTHON[p.name]], ids=lambda page: page.name)
def test_python_blocks_run_as_printed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, in an empty home, without a network. What they make of an app is tried under
    Flower elsewhere (tests/end_to_end/test_snippets.py and test_examples.py)."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a block asks the network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(shipped, "app", ClientApp())  # a page adds a handler to it
    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    files = files_of(page)
    for name, code in files.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(QUICKSTART)  # the front page shows its server
    monkeypatch.delitem(sys.modules, "texts", raising=False)
    for number, code in enumerate(PYTHON[page.name], start=1):
        name, space = f"{page.name}:{number}", dict[str, Any]()
        if not needed(code):
            exec(compile(code, name, "exec"), space)
            continue
        for node in ast.parse(code).body:  # its imports are there at least
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(compile(ast.Module([node], []), name, "exec"), space)
    for name in (*files, "texts"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_what_does_not_run_here_are_four_blocks_at_most() -> None:
    every = [code for codes in PYTHON.values() for code in codes]
    assert all(any(sign in code for code in every) for sign in NEEDS)
    assert sum(bool(needed(code)) for code in every) <= 4


def test_the_node_of_your_own_answers(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    code = next(code for code in PYTHON["extending.md"] if "def my_node(" in code)
    page: dict[str, Any] = {}
    exec(compile(code, "extending.md", "exec"), page)
    context = node_context({"partition-id": 3, "num-partitions": 8})
    assert read_hello(page["hello"](hello(1, 10.0), context)) == Hello(1, 3, deployed=False)
    assert list(page["my_node"](context).load()) == ["me"]


def test_the_query_of_your_own_runs_under_secure_aggregation(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page: dict[str, Any] = {}
    monkeypatch.setattr(shipped, "app", ClientApp())  # the page adds a handler to it
    code = next(code for code in PYTHON["extending.md"] if "FAVOURITES = " in code)
    for shown in (code, text_of(ROOT / "examples" / "new-method" / "topics.py")):
        exec(compile(shown, "extending.md", "exec"), page)

    class Favourites(page["Topics"]):  # type: ignore[misc]
        def ask(self, rnd: int) -> Query:
            return replace(super().ask(rnd), kind="favourites")

    def node(number: int) -> Any:
        context = node_context({}, node_id=number)
        texts = {f"{number}-{user}": sentences(2, 10 * number + user) for user in range(5)}
        facts = Hello(len(texts), number, deployed=False)
        own = Node(facts, tmp_path / f"{number}", "ngram-64", "cpu", None, None, lambda: texts)

        def handle(message: Any) -> Any:
            if message.metadata.message_type == HELLO:
                return answer_hello(message, facts)
            return guarded(message, lambda: reply(message, context, own, page["FAVOURITES"]))

        return handle

    topics, embedder = sentences(6, 1), load_embedder("ngram-64", "cpu")
    strategy = Favourites(topics, embedder=embedder)
    strategy.start(
        loopback({number: node(number) for number in (1, 2, 3)}),
        folder=tmp_path / "run",
        users=15,
        nodes=3,
        epsilon=2000.0,  # hardly any noise: the sum must be that of 15 users with one vote each
        delta=1e-5,
        progress=lambda *_: None,
    )
    assert len(strategy.seeds) >= 1 and set(strategy.seeds) <= set(topics)
    asked = RunFolder(tmp_path / "run").load_query(1)
    assert asked is not None and asked.kind == "favourites"
    released = RunFolder(tmp_path / "run").load_release(1)
    assert released is not None
    assert released.sum() == pytest.approx(15, abs=1.0)


@pytest.mark.parametrize(
    ("name", "code"),
    [(name, code) for name, code in blocks("toml") if "[project]" not in code],  # an app's
    ids=lambda value: str(value)[:20],
)
def test_toml_blocks_are_configurations(name: str, code: str) -> None:
    RunConfig.from_flat(flatten(tomllib.loads(code)))


def test_the_sentence_is_that_of_the_defaults() -> None:
    page = text_of(ROOT / "docs" / "privacy.md")
    quoted = page.partition("<!-- sentence:start -->\n> ")[2].partition("\n<!--")[0]
    config = RunConfig()
    said = statement(config)
    assert quoted == said.sentence()
    assert f"<!-- short:start -->\n> {said.short()}\n<!-- short:end -->" in page
    demo = load_config(ROOT / "configs" / "chats-demo.toml")
    shown = statement(demo).short()
    marked = f"<!-- demo-sentence:start -->\n> {shown}\n<!-- demo-sentence:end -->"
    assert marked in text_of(ROOT / "README.md")


COMPARED = sorted((ROOT / "configs").glob("compare-*.toml"))
GRIDS = {*COMPARED, *(ROOT / "configs" / "grids").glob("*.toml")}
PUBLIC = {*(ROOT / "configs").glob("*-public.toml")}  # of `privsyn public`
CONFIGS = sorted(set((ROOT / "configs").rglob("*.toml")) - GRIDS - PUBLIC)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_has_a_sentence_and_its_short_form(path: Path) -> None:
    config = load_config(path)
    if claim := baseline(config):
        assert len(claim.short().split()) <= 60 and "privacy.md" not in claim.page()
        return
    said = statement(config.model_copy(update={"noise_multiplier": 2.0}), checked=False)
    short, long = said.short(), said.sentence()
    assert len(short.split()) <= 60
    server = config.aggregation == "secure" and said.noise_source != "aggregator"
    claimed = "NO PRIVACY IS CLAIMED" not in short
    assert claimed is not (said.private_selection or said.simulation_seeded)
    assert ("honest-but-curious server" in short) is (server and claimed)
    assert ("claim holds against the server" in long) is server


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


def test_commands_and_their_options_exist() -> None:
    lines = [line for _, code in blocks("sh") for line in code.replace("\\\n", " ").splitlines()]
    ours = [line for line in lines if line.startswith("privsyn ")]
    commands = [shlex.split(line, comments=True)[1:] for line in ours]
    assert len(commands) > 10
    for words in commands:
        command: Any = typer.main.get_command(app)
        while words and getattr(command, "commands", None):
            assert words[0] in command.commands, f"privsyn {words}"
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known, f"{command.name}: {used - known}"


def test_files_and_targets_that_commands_name_exist() -> None:
    lines = [line for _, code in blocks("sh") for line in code.splitlines()]
    pages = "".join(map(text_of, PAGES))
    prose = "\n".join([*lines, *re.findall(r"`(make [^`]+)`", pages)])
    named = set(re.findall(r"(?<![\w/])((?:configs|benchmarks|scripts)/[\w./-]+\w)", prose))
    scripts = re.findall(r"`(\w+\.py)\b", text_of(ROOT / "docs" / "performance.md"))
    named |= {f"benchmarks/{name}" for name in scripts}
    assert {f"benchmarks/{path.name}" for path in (ROOT / "benchmarks").glob("*.py")} <= named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    targets = set(re.findall(r"^([\w-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    assert set(re.findall(r"^make ([\w-]+)", prose, re.MULTILINE)) <= targets


def test_the_readme_leads_to_every_page_and_a_page_to_every_configuration() -> None:
    readme = text_of(ROOT / "README.md")
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES} - {"README.md"}
    listed = set(re.findall(r"\]\(([\w./-]+)", readme.partition("\n## More")[2]))
    assert pages - listed == set()
    linked = {
        (page.parent / target).resolve()
        for page in (FIGURES / "papers.md", DOCS / "runs.md")
        for target in re.findall(r"\]\(([\w./-]+)", text_of(page))
    }
    assert set(CONFIGS) - linked == set()
    assert COMPARED and set(COMPARED) - linked == set()


def test_every_paper_configuration_has_its_command() -> None:
    rows = [line for line in text_of(FIGURES / "papers.md").splitlines() if line.startswith("| [")]
    assert len(rows) > 50
    for row in rows:
        target = re.findall(r"\]\(\.\./\.\./(configs/\S+\.toml)\)", row)
        assert re.findall(r"\| `privsyn run (\S+)` \|$", row) == target, row


def test_the_handlers_of_the_example_are_those_of_the_client_app() -> None:
    route = r'^@app\.(query\("[\w-]+"|train\()\)\ndef (\w+)'
    ours = text_of(ROOT / "privsyn_flower" / "client_apps" / "main.py")
    example = text_of(ROOT / "examples" / "new-method" / "client_app.py")
    found = re.findall(route, example, re.MULTILINE)
    assert set(found) <= set(re.findall(route, ours, re.MULTILINE))
    assert [name for _, name in found] == ["hello", "votes"]
    for _, name in found:
        assert f"privsyn.{name}(message, context)" in example


def test_every_kind_of_question_has_its_claim() -> None:
    page = text_of(ROOT / "docs" / "privacy.md").partition("## What one release says")[2]
    table = page.partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == set(get_args(PolicyKind))


@pytest.mark.parametrize(
    ("section", "key", "page"),
    [
        (PeConfig, "variation", "methods.md"),
        (PeConfig, "selection", "methods.md"),
        (PopriConfig, "score", "methods.md"),
        (PopriConfig, "checkpoint", "methods.md"),
        (PopriConfig, "checkpoint", "privacy.md"),
        (PopriConfig, "select", "privacy.md"),
        (GenerationConfig, "backend", "generators.md"),
        (EvaluationConfig, "rival", "run-folder.md"),
        (TrainingConfig, "parameters", "methods.md"),
        (TrainingConfig, "lora_factors", "methods.md"),
        (TrainingConfig, "server_optimizer", "methods.md"),
        (TrainingConfig, "noise", "methods.md"),
        (FtrlConfig, "schedule", "methods.md"),
        (FtrlConfig, "schedule", "privacy.md"),
        (FtrlConfig, "mechanism", "correlated-noise.md"),
        (RunConfig, "method", "methods.md"),
    ],
)
def test_every_value_of_a_choice_is_explained(section: type[Section], key: str, page: str) -> None:
    text = text_of(ROOT / page if page == "README.md" else ROOT / "docs" / page)
    for value in get_args(section.model_fields[key].annotation):
        assert not value or re.search(rf'[`"]{value}[`"]', text), value


def test_every_metric_of_a_run_is_explained(tmp_path: Path, loopback: Any) -> None:
    named = metrics_of_the_page()
    popri.start(popri.make(1), popri.federation(tmp_path, loopback), tmp_path / "run", samples=20)
    keys = set(RunFolder(tmp_path / "run").metrics()[0])
    assert "signal_to_noise_within" in keys and keys - named == set()


def test_the_changelog_names_the_protocol_version() -> None:
    assert f"Protocol version {PROTOCOL}:" in text_of(ROOT / "CHANGELOG.md")


def test_the_table_of_pretext_is_that_of_the_configurations() -> None:
    rows = re.findall(
        r"^\| \[(\S+)\]\((\S+)\) \| [^|]* \| [^|]* \| (\S+) \| (\S+) x (\S+) \| (\d+) \| "
        r"([\d.]+) \| `.*` \|$",
        text_of(FIGURES / "papers.md"),
        re.MULTILINE,
    )
    assert {row[0] for row in rows} == {p.stem for p in (ROOT / "configs").rglob("pretext-*.toml")}
    for name, path, *figures in rows:
        assert Path(path).name == f"{name}.toml"
        config = load_config(FIGURES / path)
        wanted = (
            config.epsilon,
            config.noise_multiplier,
            config.pretext.vote_bound,
            config.pretext.population,
            config.pretext.threshold,
        )
        assert tuple(map(float, figures)) == wanted, name
        assert config.pretext.threshold_unit == "votes"


def test_the_table_of_popri_is_that_of_the_configurations() -> None:
    rows = re.findall(
        r"^\| \[(\S+)\]\((\S+)\) \| [^|]* \| (POPri[^|]*) \| [^|]* \| (\S+) \| (\S+) x (\S+) \| "
        r"(\d+) \| (\d+) x (\d+) \| `.*` \|$",
        text_of(FIGURES / "papers.md"),
        re.MULTILINE,
    )
    files = {path.stem for path in (ROOT / "configs").rglob("popri-*.toml")}
    assert {row[0] for row in rows} == files - {"popri-demo", "popri-sampling-demo", "popri-test"}
    for name, path, variant, *figures in rows:
        assert Path(path).name == f"{name}.toml"
        config = load_config(FIGURES / path)
        wanted = (
            config.epsilon,
            config.noise_multiplier,
            config.popri.score_bound,
            config.rounds,
            config.popri.prompts,
            config.popri.responses,
        )
        assert tuple(map(float, figures)) == wanted, name
        assert ("central" in variant, "classes" in variant) == (
            config.aggregation == "plain" and config.nodes == 1,
            bool(config.popri.labels),
        ), name


def test_variables_of_reporting_are_all_named() -> None:
    page = text_of(DOCS / "flwr-run.md")
    for name, value in NO_TELEMETRY.items():
        assert f"{name}={value}" in page


def test_the_page_of_deployment_has_every_key_of_node_and_policy() -> None:
    page = text_of(ROOT / "docs" / "deployment.md")
    node = page.partition("### Data and node config")[2].partition("\n### ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", node, re.MULTILINE)) == NODE_KEYS
    policy = page.partition("### Policy")[2].partition("\n### ")[0]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| `?(.*?)`? \|", policy, re.MULTILINE))
    defaults = Policy().model_dump(mode="json", by_alias=True)
    assert {key: json.loads(value) for key, value in rows.items()} == defaults


def test_the_default_lifetime_is_as_many_answers_as_the_page_says() -> None:
    page = text_of(ROOT / "docs" / "privacy.md")
    words = re.search(r"default\s+lifetime\s+\(10\s+at\s+1e-6\)\s+is\s+(\d+)\s+answers", page)
    policy = Policy()
    assert (policy.lifetime_epsilon, policy.lifetime_delta) == (10.0, 1e-6) and words
    limit = Limit.of(policy.lifetime_epsilon, policy.lifetime_delta)
    z = privacy_plan(RunConfig()).main.multiplier
    # In integers as coarse as they get, over more coordinates than the default run has.
    one = cost(z, release_distance(18_000, z, SENSITIVITY, 850))
    answers = [limit.allows(Spent(n * one.gaussian, n * one.distance)) for n in range(1, 100)]
    assert sum(answers) == int(words[1])


def test_contributing_points_to_the_one_place_of_the_contracts() -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    assert project["tool"]["importlinter"]["contracts"]
    page = text_of(ROOT / "CONTRIBUTING.md").partition("## Who may import whom\n")[2]
    assert "`[tool.importlinter]`" in page.partition("\n## ")[0]


def test_parts_that_others_fill_keep_their_markers() -> None:
    performance = DOCS / "results" / "performance.md"
    page_of_results = DOCS / "results" / "measured.md"
    filled = [(page_of_results, "results"), (page_of_results, "popri-results")]
    filled.append((performance, "figures"))
    filled.append((ROOT / "README.md", "result"))
    for page, name in [*filled, (performance, "popri-figures")]:
        assert re.search(rf"<!-- {name}:start -->\n.+<!-- {name}:end -->", text_of(page), re.DOTALL)
    later = [
        (page_of_results, name) for name in ("dp-fedavg-results", "dp-ftrl-results", "compare")
    ]
    for page, name in [*later, (performance, "training-figures")]:
        assert text_of(page).count(f"<!-- {name}:start -->\n") == 1
        assert re.search(rf"<!-- {name}:start -->\n.*<!-- {name}:end -->", text_of(page), re.DOTALL)
