"""What `privsyn run` says before Flower starts: everything at once, and nothing is begun."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from privsyn_flower.app.cli import ending
from privsyn_flower.app.cli import run as cli_run
from privsyn_flower.app.cli.main import app
from privsyn_flower.app.local.layout import create
from privsyn_flower.app.preflight import Finding, check_ready, exchange, machine, numbers
from privsyn_flower.app.preflight.data import left_out, private_file
from privsyn_flower.config import RunConfig, absolute_paths, load_config, parse_override
from privsyn_flower.data.groups import REST
from privsyn_flower.data.partition import BEYOND
from privsyn_flower.privacy import calibrate
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.protocol.packing import LARGEST
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps import readiness
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from privsyn_flower.strategies.engine.session import trusted_noise
from tests.conftest import config_ledger, sentences
from tests.rigs.docs import blocks
from tests.rigs.languages import FOREIGN
from tests.rigs.preflight_preflight import (
    place,  # noqa: F401
    write,
)

ROOT = Path(__file__).parents[3]

Run = Callable[..., Result]


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`privsyn run run.toml --set ...` without Flower: a run that would start is only noted."""
    started: list[Path] = []

    def start(folder: Path, *_: Any) -> Path:
        started.append(folder)
        return folder

    def command(*settings: str, arguments: tuple[str, ...] = ("run.toml",)) -> Result:
        before, names = len(started), set(place.iterdir())
        chosen = [part for setting in settings for part in ("--set", setting)]
        result = CliRunner().invoke(app, ["run", *arguments, *chosen])
        if result.exit_code:
            assert len(started) == before and set(place.iterdir()) == names, "nothing is begun"
            assert isinstance(result.exception, SystemExit), "no traceback"
        else:
            assert len(started) == before + 1
        return result

    monkeypatch.setattr(cli_run, "_start", start)
    monkeypatch.setattr(cli_run, "_prepare", lambda config: None)  # reads the files, once checked
    monkeypatch.setattr(ending, "exit_status", lambda folder: 0)  # it has no summary
    return command


def errors(result: Result) -> list[str]:
    assert result.exit_code == 1
    return [line for line in result.stderr.splitlines() if line.startswith("error: ")]


def warnings(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("warning: ")]


def test_a_run_that_can_work_starts_without_a_word(run: Run) -> None:
    result = run()
    assert result.exit_code == 0 and result.stderr == ""


@pytest.mark.parametrize("method", ["pretext", "ctcl"])
def test_a_run_may_begin_with_the_folder_of_a_corpus(run: Run, place: Path, method: str) -> None:
    """What `privsyn public mix` made is public text for any method."""
    (place / "corpus").mkdir()
    lines = [{"text": text, "stage": "chat"} for text in sentences(400, 3)]
    write(place / "corpus" / "mix.jsonl", lines)
    settings = [f"method={method}", "data.public-path=corpus"]
    settings += ["expand.samples=50", "ctcl.topic-count=20"] if method == "ctcl" else []
    result = run(*settings)
    assert result.exit_code == 0, result.stderr
    found = errors(run(*settings, "data.public-pool=390"))
    assert any("mix.jsonl" in line or "has 400 texts" in line for line in found)


def test_everything_is_said_at_once(run: Run) -> None:
    found = errors(
        run(
            "data.path=none.jsonl",
            "data.public-path=.",
            "models.generator=./none",
            "expand.samples=5",
            "delta=0.5",
            "pretext.population=500",
            "run-folder=run.toml/inside",
            "assets=nowhere",
        )
    )
    for words in (
        "none.jsonl (data.path) does not exist",
        "(data.public-path) is a folder without mix.jsonl",
        "models.generator = './none'",
        "delta = 0.5 is not below 1 / data.users",
        "pretext.population = 500 exceeds data.public-pool = 200",
        "(run-folder) cannot be made",
        "assets = ",
    ):
        assert sum(words in line for line in found) == 1, words
    assert len(found) == 7


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.user-column=who", "column 'who' (data.user-column) is not in"),
        ("data.public-text-column=body", "column 'body' (data.public-text-column) is not in"),
        ("data.label-column=topic", "column 'topic' (data.label-column)"),
        ("data.users=46", "need 61 users, and"),
        ("data.min-samples-per-user=5", "need 55 users with 5 texts or more, and"),
        ("data.partition=uniform", "need 440 texts (data.partition = 'uniform')"),
        ("data.public-pool=390", "has 400 texts, and data.public-pool = 390"),
        ("data.public-path=", "data.public-path is empty"),
        ("data.public-path=users.jsonl", "is the text of the users (data.path)"),
        ("data.path=empty.jsonl", "holds no row that can be read"),
        ("data.path=run.toml", "format '.toml' is not known"),
        ("models.embedder=ngram-1", "models.embedder = 'ngram-1'"),
        ("models.embedder=share", "holds no model: modules.json or config.json"),
        ("models.lstm-word-list=none.txt", "none.txt': no such file"),
        ("ledger=shared.jsonl", "set population-name"),
        ("epsilon=0.001", "epsilon = 0.001: the noise of a released sum"),
        ("noise-multiplier=0.01", "costs epsilon"),
        ("generation.backend=openai", "set generation.base-url"),
        ("generation.backend=vllm", "generation.vllm-python"),
    ],
)
def test_one_mistake_is_one_error(place: Path, run: Run, setting: str, words: str) -> None:
    (place / "empty.jsonl").write_text("")
    (place / "share").mkdir()
    more = {"generation": "expand.samples=5", "data.min": "benchmark=true"}
    settings = [setting, *(value for key, value in more.items() if setting.startswith(key))]
    [line] = errors(run(*settings))
    assert words in line


def test_what_the_split_finds_is_said_before(place: Path, run: Run) -> None:
    """One count: what the run would fail at, by the same functions."""
    shared = [" ".join(f"word{n}x{k}" for k in range(13)) for n in range(150)]
    write(place / "public.jsonl", [{"text": f"{shared[n % 150]} {n}"} for n in range(400)])
    [line] = errors(run())
    assert "only " in line and "(data.near-duplicates = 'own') are left" in line
    assert "data.public-path" in line and "public-packages" not in line
    assert run("data.near-duplicates=keep").exit_code == 0
    settings = ["data.near-duplicates=keep", "data.sample-words=4", "pretext.population=190"]
    write(place / "public.jsonl", [{"text": f"the same four words {n}"} for n in range(400)])
    [line] = errors(run(*settings))
    assert "leaves 1 different texts of data.sample-words = 4 words at most" in line
    values = dict(parse_override(one) for one in [*settings, "data.path="])  # a deployed server
    config = absolute_paths(load_config(place / "run.toml", values), place / "run")
    assert any("leaves 1 different texts" in one.text for one in check_ready(config, place / "run"))


def test_a_class_without_public_text_is_an_error(place: Path, run: Run) -> None:
    labelled = [{"text": text, "topic": "a"} for text in sentences(400, 5)]
    write(place / "public.jsonl", labelled)
    rows = [{"user_id": n % 60, "text": t, "topic": "ab"[n % 2]}
            for n, t in enumerate(sentences(240, 6))]  # fmt: skip
    write(place / "users.jsonl", rows)
    settings = ["data.label-column=topic", "pretext.labels=a,b"]
    [line] = errors(run(*settings))
    assert "class 'b' (pretext.labels = 'a,b') has no public text" in line
    assert run(settings[0], "pretext.labels=a").exit_code == 0


@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        ({"user_id": "nan"}, [], "row 3: the user id is 'nan', which stands for no one person"),
        ({"user_id": 1.5e18}, [], "a float beyond 2^53"),
        ({"when": 2015}, ["data.date-from=2016-01-01"], "no row is left"),
    ],
)
def test_ids_and_dates_that_a_run_refuses(
    place: Path, run: Run, change: dict[str, Any], settings: list[str], words: str
) -> None:
    rows = [{"user_id": n % 60, "text": f"text {n}", "when": "2015-01-01"} for n in range(240)]
    rows[2] |= change
    write(place / "users.jsonl", rows)
    [line] = errors(run(*settings, *(["data.date-column=when"] if settings else [])))
    assert words in line and "data.path" in line


def test_a_window_that_leaves_out_more_than_half_is_a_warning(place: Path, run: Run) -> None:
    rows = [{"user_id": n % 60, "text": f"text {n}", "when": f"20{10 + n % 10}-01-01"}
            for n in range(240)]  # fmt: skip
    write(place / "users.jsonl", rows)
    window = ["data.date-column=when", "data.date-from=2016-01-01"]
    result = run(*window)
    assert result.exit_code == 0
    [line] = warnings(result)
    assert "data.date-from = '2016-01-01' leaves out 144 of 240 rows" in line
    assert run(window[0], "data.date-from=2014-01-01").stderr == ""


def test_an_encoder_decoder_is_no_causal_model(place: Path, run: Run) -> None:
    (place / "bart").mkdir()
    (place / "bart" / "config.json").write_text('{"is_encoder_decoder": true}')
    generator = ["models.generator=./bart", "expand.samples=5"]
    [line] = errors(run(*generator))
    assert "models.generator = " in line and "name one" in line and "models.conditional" in line
    [line] = errors(run("models.downstream=./bart", "benchmark=true"))
    assert "models.downstream = " in line
    assert "encoder-decoder" not in run(*generator, "method=dp-prompt").stderr


def test_more_candidates_than_nodes_take_are_one_error(place: Path, run: Run) -> None:
    """As many numbers as nodes take, and one row more."""
    rows = LARGEST // 65_536
    texts = [{"text": text} for text in sentences(rows + 600, 1)]
    write(place / "public.jsonl", texts)
    pool = [f"data.public-pool={rows + 5}", "data.public-validation=10"]
    settings = ["models.embedder=ngram-65536", "epsilon=500", *pool]
    assert run(*settings, f"pretext.population={rows}").exit_code == 0
    [line] = errors(run(*settings, f"pretext.population={rows + 1}"))
    assert f"{rows + 1:,} candidates of 65,536 dimensions (models.embedder = 'ngram-65536')" in line
    assert "lower pretext.population, or take an embedder of 65,504 dimensions at most" in line


def test_a_language_that_the_models_do_not_know_is_a_warning(place: Path, run: Run) -> None:
    """By the public file alone: of private text in that language nothing is said."""
    foreign = [f"{line} {number}" for number in range(40) for line in FOREIGN["Russian"]]
    before = (place / "public.jsonl").read_text()
    write(place / "public.jsonl", [{"text": text} for text in foreign])
    keys = ("pretext.variation=mask-fill", "rounds=1")
    (found,) = [line for line in warnings(run(*keys)) if "language" in line]
    assert "public.jsonl (data.public-path)" in found and "models.infiller = 'tiny' (1" in found
    assert "at most 2 and 5% are usual" in found and "models.generator" not in found
    (place / "public.jsonl").write_text(before)
    write(place / "users.jsonl", [
        {"user_id": f"u{number}", "text": text} for number, text in enumerate(foreign)
    ])  # fmt: skip
    assert not [line for line in warnings(run(*keys)) if "language" in line]


def test_packages_of_docstrings_are_looked_up(run: Run) -> None:
    found = errors(
        run("data.source=docstrings", "data.private-packages=rich,no-such", "data.path=")
    )
    assert len(found) == 1 and "package 'no-such'" in found[0]


def test_doubtful_noise_is_a_warning(run: Run) -> None:
    result = run("epsilon=3.0")
    assert result.exit_code == 0
    assert "does not stand out; raise epsilon" in warnings(result)[0]


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-ftrl"])
def test_noise_of_a_training_is_weighed_over_all_rounds(run: Run, method: str) -> None:
    common = [f"method={method}", "models.downstream=tiny"]
    if method == "dp-ftrl":
        common.append("training.noise=aggregator")
    assert run(*common, "rounds=4").exit_code == 0
    assert "the sum of all 4 rounds" in errors(run(*common, "rounds=4", "epsilon=0.001"))[0]


@pytest.mark.parametrize(
    ("settings", "absent", "said"),
    [
        ([], ["ray"], "ray (simulated nodes)"),
        ([], ["pyarrow"], "pyarrow (simulated nodes)"),
        (["models.embedder=minilm"], ["torch"], "torch (models.embedder)"),
        (["expand.samples=5"], ["transformers"], "transformers (models.generator)"),
        (["method=popri", "epsilon=20"], ["trl", "peft"], "trl (popri)"),
        (["method=dp-fedavg"], ["torch"], "torch (models.downstream)"),
        (["method=dp-ftrl", "training.noise=aggregator"], ["scipy"], "scipy (correlated"),
        (["method=dp-ftrl"], ["scipy"], "scipy (correlated noise)"),
        (["benchmark=true"], ["matplotlib"], "matplotlib (benchmark)"),
        (["data.path=hub:some/set"], ["datasets"], "datasets (data.source)"),
    ],
)
def test_the_missing_extra_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, settings: list[str], absent: list[str], said: str
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in absent else known(name, *a)
    )
    [line] = errors(run(*settings))
    assert said in line and "pip install 'privsyn-flower[simulation]'" in line
    assert all(name in line for name in absent)


def test_the_extras_hold_what_is_looked_for() -> None:
    """A library that a run is refused for is one that the named extra installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    within = re.findall(r"[a-z]+", extras["server"][0].partition("[")[2])
    wanted = [line for extra in ("server", *within) for line in extras[extra]]
    names = {re.split(r"[>\[]", line)[0].replace("-", "_") for line in wanted}
    every = {
        module
        for settings in (
            {"method": "popri", "benchmark": True, "generation.backend": "vllm"},
            {"method": "dp-ftrl", "training.noise": "aggregator", "data.source": "hub:a/b"},
            {"models.embedder": "minilm", "pretext.variation": "mixed"},
            {"models.embedder": "minilm-int8"},
        )
        for _, modules in readiness.needed(load_config(None, settings))
        for module in modules
    }
    assert every - names == {"ray"} and any("simulation" in line for line in extras["simulation"])
    shown = "onnxruntime dp_accounting torch trl scipy datasets matplotlib pyarrow httpx"
    assert set(shown.split()) <= every


def test_folders_that_cannot_be_written(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "locked").mkdir()
    allowed = machine.os.access
    monkeypatch.setattr(
        machine.os, "access", lambda p, mode: Path(p).name != "locked" and allowed(p, mode)
    )
    found = errors(
        run("run-folder=locked/run", "cache=locked", "population-name=p", "ledger=locked/l.jsonl")
    )
    assert [("(run-folder)" in f, "(cache)" in f, "(ledger)" in f) for f in found] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert all("no permission in" in line for line in found)
    monkeypatch.chdir(place / "locked")
    found = errors(run("cache=/tmp", arguments=("../run.toml",)))  # by default, in here
    assert any("(run-folder)" in line for line in found)


@pytest.mark.parametrize(("free", "fatal"), [(2**31, None), (2**29, False), (2**20, True)])
def test_a_full_disk(
    run: Run, monkeypatch: pytest.MonkeyPatch, free: int, fatal: bool | None
) -> None:
    usage = machine.shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage)
    result = run()
    lines = errors(result) if fatal else warnings(result)
    assert len(lines) == (fatal is not None)
    assert all("MiB are free on the disk" in line for line in lines)


def settled(place: Path, *settings: str) -> tuple[RunConfig, Ledger]:
    """run.toml with these settings (KEY=VALUE), and the ledger of its population."""
    config = load_config(place / "run.toml", dict(map(parse_override, settings)))
    return config, config_ledger(config, RunFolder(place.parent / f"{place.name}-earlier"))


def spend(place: Path, releases: int) -> Path:
    """Charges of one more run at the noise of run.toml, in its population's ledger."""
    config, ledger = settled(place, "population-name=phones")
    z = calibrate(50.0, 9, gaussian_delta(config.delta))
    name = f"earlier {len(ledger.charges())}"
    for number in range(releases):
        ledger.reserve(
            run=name, query="votes", round=number, attempt=1, noise_multiplier=z,
        )  # fmt: skip
    return ledger.path


@pytest.mark.parametrize(("spent", "room"), [(0, 8), (1, 8), (4, 5), (9, 0)])
def test_what_the_ledger_has_left_is_said_now(place: Path, run: Run, spent: int, room: int) -> None:
    path = spend(place, spent)
    content = path.read_bytes()
    result = run("population-name=phones")
    assert path.read_bytes() == content, "the ledger is only read"
    if room == 8:
        assert result.exit_code == 0 and result.stderr == ""
        return
    [line] = warnings(result) if room else errors(result)
    assert "population 'phones'" in line and str(path) in line
    assert f"room for {room} of 8 releases" in line


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("delta=1e-60",), ["raise noise-multiplier or delta", "data.users, cohort-nodes"]),
        (("method=popri", "delta=1e-60"), ["raise noise-multiplier or delta"]),
        (("method=dp-fedavg", "delta=1e-60"), ["raise noise-multiplier or delta"]),
        (("data.users=10000000000000", "delta=1e-15"), ["bits = 56"]),
    ],
)
def test_noise_that_no_integers_can_carry_is_said_now(
    run: Run, settings: tuple[str, ...], words: list[str]
) -> None:
    [line] = [line for line in errors(run(*settings)) if "sensitivity" in line]
    for word in words:
        assert word in line


def test_an_aggregators_noise_needs_no_fine_integers(run: Run) -> None:
    result = run("method=dp-fedavg", "training.noise=aggregator", "epsilon=500")
    assert "sensitivity" not in result.stderr


POISSON = ("sampler=poisson", "sampling-rate=0.5", "population-name=phones", "epsilon=8")


@pytest.mark.slow
@pytest.mark.parametrize(("spent", "room"), [(0, 8), (4, 5), (9, 0)])
def test_a_ledger_of_a_plan_counts_releases(place: Path, run: Run, spent: int, room: int) -> None:
    config, ledger = settled(place, *POISSON)
    assert ledger.header.plan == ((privacy_plan(config).main.multiplier, 0.5, 9),)
    for number in range(spent):
        ledger.reserve(
            run="earlier", query="votes", round=number, attempt=1, sampling_rate=0.5,
            noise_multiplier=privacy_plan(config).main.multiplier,
        )  # fmt: skip
    result = run(*POISSON)
    if room == 8:
        assert result.exit_code == 0 and result.stderr == ""
        return
    [line] = warnings(result) if room else errors(result)
    assert f"room for {room} of 8 releases" in line
    # Other noise than the plan's is another plan: nothing of it fits, which is said as well.
    [line] = errors(run(*POISSON, "rounds=2"))
    assert "is not covered by the plan" in line


@pytest.mark.slow
def test_a_larger_total_of_a_plan_has_room_for_more_runs(place: Path, run: Run) -> None:
    settings = (*POISSON, "ledger-epsilon=20")
    config, ledger = settled(place, *settings)
    assert ledger.header.plan is not None
    [kind] = ledger.header.plan
    assert kind.releases > 27
    charge = {"noise_multiplier": privacy_plan(config).main.multiplier, "sampling_rate": 0.5}
    for number in range(kind.releases - 8):
        ledger.reserve(run="earlier", query="votes", round=number, attempt=1, **charge)  # type: ignore[arg-type]
    assert run(*settings).stderr == ""
    ledger.reserve(run="earlier", query="votes", round=99, attempt=2, **charge)  # type: ignore[arg-type]
    assert "room for 7 of 8 releases" in warnings(run(*settings, "run-folder=other"))[0]


def test_correlated_noise_is_compared_with_its_own_charges(place: Path, run: Run) -> None:
    arguments = [
        "method=dp-ftrl", "training.noise=aggregator", "ftrl.mechanism=banded",
        "population-name=phones", "rounds=12", "ftrl.min-separation=3",
    ]  # fmt: skip
    config, ledger = settled(place, *arguments)
    assert run(*arguments).exit_code == 0
    for number, z in enumerate(trusted_noise(privacy_plan(config).main).charged()):
        ledger.reserve(run="earlier", query="update", round=number, attempt=1, noise_multiplier=z)
        if number == 3:
            [line] = warnings(run(*arguments, "run-folder=other"))
            assert "of 12 releases" in line
    assert ledger.spent_epsilon() == pytest.approx(50.0)
    assert "has room for 0 of" in errors(run(*arguments, "run-folder=third"))[0]


def test_another_total_than_the_ledgers_is_said_now(place: Path, run: Run) -> None:
    spend(place, 1)
    [line] = errors(run("population-name=phones", "epsilon=20", "ledger-epsilon=40"))
    assert "ledger-epsilon" in line and "total epsilon = 50.0" in line


def test_a_resume_counts_what_is_left_to_do(place: Path, run: Run) -> None:
    assert run("population-name=phones", "run-folder=first").exit_code == 0
    spend(place, 4)
    (place / "first" / "releases").mkdir()
    for number in range(1, 4):
        (place / "first" / "releases" / f"round-{number:04d}.npz").touch()
    again = run(arguments=("--resume", "first"))
    assert again.exit_code == 0 and again.stderr == ""  # five rounds to go, room for five
    spend(place, 5)
    again = run(arguments=("--resume", "first"))  # a begun run ends with the rounds that it has
    assert again.exit_code == 0 and "room for 0 of 5 releases" in warnings(again)[0]
    (place / "users.jsonl").unlink()
    assert "data.path" in errors(run(arguments=("--resume", "first")))[0]


def test_the_promise_of_a_begun_run_is_not_weighed_again(place: Path) -> None:
    config = absolute_paths(load_config(place / "run.toml", {"epsilon": 0.001}), place / "run")
    assert [finding.fatal for finding in check_ready(config, place / "run")] == [True]
    assert check_ready(config, place / "run", resumed=True) == []


def test_weak_users_of_a_simulation_are_those_of_its_weak_nodes(run: Run) -> None:
    divided = ["method=resource-adaptive", "nodes=4", "aggregation=plain", "rounds=1"]
    said = "weak-users = 15: the weak nodes of this simulation get 20 of data.users = 40"
    for users, wrong in ((15, True), (20, False)):
        found = errors(run(*divided, f"resource-adaptive.weak-users={users}"))
        assert any(said in line for line in found) is wrong


def test_a_federations_nodes_are_compared_with_the_keys(place: Path, run: Run) -> None:
    folder = place.parent / f"{place.name}-fed"
    create(folder, [place / "users.jsonl"], nodes=4, node_config={"embedder": "ngram-64"})
    real = ("run.toml", "--federation", str(folder))
    assert "data.path" in errors(run(arguments=real))[0]
    deployed = ["data.path=", "models.embedder=ngram-64"]
    found = errors(run(*deployed, arguments=real))
    assert any("is not running: privsyn federation start" in line for line in found)
    assert any("have 60 users: raise data.users = 40" in line for line in found)
    found = errors(run(*deployed, "data.users=90", arguments=real))
    assert any("a sum needs 76.5" in line for line in found)
    result = run(*deployed, "data.users=60", "nodes=5", "models.embedder=ngram-32", arguments=real)
    assert len(errors(result)) == 1  # not running
    assert any("nodes = 5, and" in line for line in warnings(result))
    assert any("they would refuse" in line for line in warnings(result))
    divided = [*deployed, "data.users=60", "nodes=4", "aggregation=plain", "rounds=1"]
    found = errors(run(*divided, "method=resource-adaptive", arguments=real))
    assert any("the weak nodes of" in line and "have 0 users of 30" in line for line in found)
    larger = [*deployed, "data.users=60", "pretext.population=500", "data.public-pool=900"]
    assert "fewer than pretext.population = 500" in errors(run(*larger, arguments=real))[0]
    [line] = errors(run(*deployed, "data.users=60", "benchmark=true", arguments=real))[:1]
    assert "for simulation only" in line
    assert (
        "is made of the simulated" in errors(run(*deployed, "expand.samples=5", arguments=real))[0]
    )


def test_a_model_of_the_hub_without_the_hub(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(place / "hf"))
    setting = "models.embedder=some/model"
    assert "is not in the cache of the model hub" in errors(run(setting))[0]
    (place / "hf" / "hub" / "models--some--model").mkdir(parents=True)
    assert run(setting).exit_code == 0


def test_findings_are_lines(place: Path) -> None:
    config = load_config(place / "run.toml", {"assets": "none", "delta": 0.5})
    found = check_ready(absolute_paths(config, place / "run"), place / "run")
    assert len(found) == 2 and all(isinstance(f, Finding) and "\n" not in f.text for f in found)


@pytest.mark.slow
def test_no_model_library_is_imported_to_look(place: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from privsyn_flower.config import load_config
from privsyn_flower.app.preflight import check_ready
demo = load_config(Path({str(ROOT / "configs" / "docstrings-demo.toml")!r}))
assert check_ready(demo, Path("x")) == []
found = {{"torch", "transformers", "ray", "datasets", "pyarrow", "scipy"}} & set(sys.modules)
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, done.stderr


def test_releases_between_the_rounds_are_no_rounds(tmp_path: Path) -> None:
    """What is left to pay for, of rounds that differ in cost and of evaluations beside them."""
    values = {
        "method": "dp-ftrl", "training.noise": "aggregator", "ftrl.mechanism": "banded",
        "rounds": 6, "ftrl.min-separation": 2, "training.evaluate-rounds": "0,2,4",
    }  # fmt: skip
    config = RunConfig.from_flat(values)
    rounds, evaluations = privacy_plan(config).phases
    for release in ("releases/round-0001", "releases/round-0002", "releases/round-0003"):
        RunFolder(tmp_path).save_release(int(release[-4:]), np.zeros(3))
    for name in ("evaluation-0000", "evaluation-0002"):
        beside = RunFolder(tmp_path / "evaluations" / name)
        beside.save_value("phase", "evaluation")
        beside.save_release(1, np.zeros(3))
    RunFolder(tmp_path / "evaluations" / "evaluation-0004").save_value("phase", "evaluation")
    found = numbers._charges(config, numbers._released(tmp_path), "run")
    own = trusted_noise(rounds).charged()[3:] + trusted_noise(evaluations).charged()
    assert [charge["noise_multiplier"] for charge in found] == own


ROWS = {"method": "dp-ftrl", "ftrl.mechanism": "banded", "rounds": 6, "ftrl.min-separation": 2}


def test_rows_are_charged_as_they_cost_in_integers_that_hold_them() -> None:
    config = RunConfig.from_flat({**ROWS, "ftrl.bands": 3, "spare-rounds": 2})
    made = privacy_plan(config)
    matrix, z = made.main.matrix, made.main.multiplier
    assert matrix is not None
    found = numbers._charges(config, {}, "run")
    spent = (
        sum(charge["noise_multiplier"] ** -2 for charge in found) + 2 * (matrix.row_norm / z) ** 2
    )
    assert spent == pytest.approx((made.main.sensitivity / z) ** 2) and len(found) == 6
    assert {charge["total_variation"] for charge in found} == {made.distance}
    # rows are of more integers than one round's answer, and still fine enough
    rows, alone = (
        numbers.encoding(RunConfig.from_flat(values), 1000)
        for values in ({**ROWS, "ftrl.bands": 3}, {"method": "dp-fedavg", "rounds": 6})
    )
    assert rows.bits >= alone.bits and rows.sensitivity * matrix.unit > alone.sensitivity / 4
    assert exchange.past_bytes(config, 1000) == 4 * 1024 * 2
    assert exchange.past_bytes(RunConfig.from_flat({"method": "dp-fedavg"}), 1000) == 0


def test_it_warns_where_no_node_may_be_missing_in_any_round() -> None:
    def said(**more: Any) -> list[str]:
        values = {**ROWS, "data.users": 80, "nodes": 8, **more}
        return [finding.text for finding in numbers.everybody(RunConfig.from_flat(values))]

    assert said() == []  # 70 of 80 are left, 68 are needed
    [line] = said(nodes=4)
    assert "no node may be missing in any round" in line and "lower min-surviving-weight" in line
    assert said(**{"min-surviving-weight": 0.9}) and said(**{"colluding-weight": 0.1})
    assert said(**{"nodes": 4, "training.noise": "aggregator"}) == []


def test_the_plan_says_what_of_the_users_text_is_no_sample(tmp_path: Path) -> None:
    path = tmp_path / "users.jsonl"
    texts = ["a b c d e f g h i", "short", *(f"text {n}" for n in range(4))]
    rows = [{"user_id": "u", "text": text} for text in texts] + [{"user_id": "v", "text": ""}]
    write(path, rows)
    data = {"source": "files", "path": str(path), "chunk": True, "sample-words": 8}
    config = RunConfig.model_validate({"data": data | {"samples-per-user": 5}})
    told = [finding.text for finding in left_out(config) if not finding.fatal]
    assert told == [
        f"users.jsonl: left out: 1 x {BEYOND} = 5; 1 x {REST}",
        f"{path}: 1 of 2 users have no text",
    ]
    real = RunConfig.model_validate({"data": data | {"path": ""}})
    assert [finding.fatal for finding in private_file(real)] == [False]


@pytest.mark.slow
def test_the_front_page_says_how_much_public_text_its_run_needs(run: Run, place: Path) -> None:
    code = next(code for name, code in blocks("toml") if name.startswith("README"))
    (place / "run.toml").write_text(code)
    users = [{"user_id": n, "text": text} for n, text in enumerate(sentences(1000, 2))]
    write(place / "users.jsonl", users)
    told = re.search(r"# at least ([\d,]+) texts", code)
    assert told, "the comment of public-path"
    needed = int(told[1].replace(",", ""))
    texts = [{"text": f"{text} {n}"} for n, text in enumerate(sentences(needed, 3))]
    write(place / "public.jsonl", texts[1:])
    (error,) = errors(run("models.generator=small"))
    assert f"has {needed - 1} texts" in error
    write(place / "public.jsonl", texts)
    assert run("models.generator=small").exit_code == 0
