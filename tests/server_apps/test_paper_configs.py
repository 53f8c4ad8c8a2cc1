"""PrE-Text's and POPri's configurations: the papers' numbers, what they cost, POPri's data."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant

from privsyn_flower.common.progress import silent
from privsyn_flower.config import ConfigError, RunConfig, load_config, split_list
from privsyn_flower.data import Federation
from privsyn_flower.evaluation.public import tuning_of
from privsyn_flower.privacy import BudgetExceeded, Ledger, PrivacyStatement
from privsyn_flower.privacy.accounting import renyi_epsilon
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.privacy_plan import privacy_plan, statement
from privsyn_flower.server_apps.public_text import public_text
from privsyn_flower.text.prompts import prompt_source
from tests.conftest import config_ledger

ROOT = Path(__file__).parent.parent.parent
CONFIGS = ROOT / "configs" / "papers"
# name -> users, rounds, epsilon, the paper's noise multiplier (None: not stated), sampling rate
TABLE: dict[str, tuple[int, int, float, float | None, float]] = {
    "popri-biorxiv-eps1": (72_000, 20, 1.0, 19.3, 1.0),
    "popri-biorxiv-eps7": (72_000, 20, 7.0, 3.35, 1.0),
    "popri-congress-eps1": (133_000, 20, 1.0, 19.3, 1.0),
    "popri-congress-eps7": (133_000, 20, 7.0, 3.35, 1.0),
    "popri-partial-1000": (10_000, 50, 1.0, 3.4, 0.1),
    "popri-partial-5000": (10_000, 50, 1.0, 15.5, 0.5),
    "popri-partial-10000": (10_000, 50, 1.0, 30.6, 1.0),
    "popri-pubmed-eps1": (75_316, 10, 1.0, 13.7, 1.0),
    "popri-pubmed-eps4": (75_316, 10, 4.0, 3.87, 1.0),
    "popri-openreview-eps1": (8_396, 10, 1.0, None, 1.0),
    "popri-openreview-eps4": (8_396, 10, 4.0, None, 1.0),
}
PAPER = [CONFIGS / f"{name}.toml" for name in TABLE]
each = pytest.mark.parametrize("path", PAPER, ids=lambda p: p.stem)
PRETEXT = {1.29: 11.3, 7.58: 2.31}  # epsilon -> what App. D.1's accountant asks for
PRETEXT_PATHS = sorted(CONFIGS.glob("pretext-*.toml"))
of_either_paper = pytest.mark.parametrize("path", [*PAPER, *PRETEXT_PATHS], ids=lambda p: p.stem)


def test_every_paper_configuration_is_in_the_table() -> None:
    shipped = [*CONFIGS.glob("popri-*-eps*.toml"), *CONFIGS.glob("popri-partial-*.toml")]
    assert {path.stem for path in shipped} == set(TABLE)
    sets = ("jobs", "forums", "microblog", "code")
    sets += tuple(f"llama2-{name}" for name in sets)
    wanted = {f"pretext-{name}-eps{epsilon}" for name in sets for epsilon in PRETEXT}
    assert {path.stem for path in PRETEXT_PATHS} == wanted


@each
def test_the_papers_numbers(path: Path) -> None:
    config = load_config(path)
    users, rounds, epsilon, _, rate = TABLE[path.stem]
    assert (config.data.users, config.rounds, config.epsilon) == (users, rounds, epsilon)
    assert config.sampling_rate == rate
    popri = config.popri
    per_class = popri.prompts / max(1, len(split_list(popri.labels)))  # Algorithm 3
    assert (per_class, popri.responses, popri.rejected_rank) == (1800, 10, 5)
    assert (popri.lora_rank, popri.lora_alpha, popri.batch_size, popri.epochs) == (4, 8.0, 24, 2)
    assert (popri.learning_rate, popri.schedule, popri.warmup_steps) == (8e-7, "constant", 10)
    assert popri.select_samples == 1800
    assert (popri.checkpoint, popri.select) == ("private", "private")  # section 5
    if config.aggregation == "plain":  # the central runs; 3e-6 in the federated ones
        assert config.delta <= 1 / (users * np.log10(users))
    else:
        assert config.delta == 3e-6
    evaluation = config.evaluation
    assert evaluation.epochs == (10 if config.expand.samples == 2000 else 80)
    assert evaluation.checkpoint == "development" and evaluation.warm_up == 0
    # Table 1 has no rows of samples that noise chose, or that nobody did: as many again each.
    assert not evaluation.compares("noise") and not evaluation.compares("unaligned")
    steps = {2000: 10 * 63, 1_000_000: 500_000}[config.expand.samples]
    assert tuning_of(config).steps_of(config.expand.samples) == steps
    from_c4 = config.models.downstream == "distilbert/distilgpt2"
    assert (evaluation.start == "public") == from_c4
    assert (evaluation.special_tokens == "bos-eos") == from_c4
    assert evaluation.schedule == ("constant" if from_c4 else "linear")


@pytest.mark.parametrize("path", PRETEXT_PATHS, ids=lambda p: p.stem)
def test_pretexts_fine_tuning(path: Path) -> None:
    config = load_config(path)
    options, samples = config.evaluation, config.expand.samples
    if "llama2" in path.stem:  # section 4.2
        assert (options.adapter_rank, options.adapter_alpha, options.batch_size) == (4, 8.0, 512)
        assert samples == 50_000 and tuning_of(config).steps_of(samples) == 98
        assert options.start == "base"
        # The authors' code at 21e6350: 64 tokens, batches of 8, BOS alone.
        assert (options.sequence_length, options.micro_batch_size) == (64, 8)
        assert options.special_tokens == "tokenizer"
        return
    assert options.special_tokens == "bos-eos"
    assert tuning_of(config).steps_of(samples) == 20 * 31
    c4 = tuning_of(config, public=True)
    assert c4.steps_of(config.data.public_pool) == 20 * 340 and c4.batch_size == 256


@pytest.mark.parametrize("path", PRETEXT_PATHS, ids=lambda p: p.stem)
def test_pretexts_table_is_measured_as_in_the_paper(path: Path) -> None:
    """Its [evaluation] is read, the text comes from a server, masks are filled one by one."""
    config = load_config(path)
    assert config.benchmark and config.generation.backend == "vllm"
    assert (config.pretext.mask_passes, config.pretext.mask_steps) == (0, 2)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda p: p.stem)
def test_table_1_is_cited_for_what_it_has(path: Path) -> None:
    """POPri's Table 1 has no epsilon of 4, and says nothing about 10,000 users."""
    lines = path.read_text("utf-8").splitlines()
    cited = [line for line in lines if line.startswith("epsilon = ") and "Table 1" in line]
    assert not cited or ("popri" in path.stem and load_config(path).epsilon in (1.0, 7.0))
    if "popri-partial" in path.stem:
        assert any("Figure 3 does not name its data set" in line for line in lines)


def papers_noise(config: RunConfig, path: Path) -> float | None:
    """The multiplier that the paper states, or that its accountant asks for; None: neither."""
    return PRETEXT[config.epsilon] if config.method == "pretext" else TABLE[path.stem][3]


def by_dp_accounting(config: RunConfig) -> float:
    """Epsilon of the configured noise and all of delta, by the public library alone."""
    z, rate, rounds = config.noise_multiplier, config.sampling_rate, config.rounds
    if rate == 1.0:
        return float(get_epsilon_gaussian(z / np.sqrt(rounds), config.delta))
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), rounds)
    return float(accountant.get_epsilon(config.delta))


@of_either_paper
def test_the_noise_is_the_papers_and_keeps_epsilon(path: Path) -> None:
    """Theirs was made by an accountant that is a twelfth looser, without spare rounds."""
    config = load_config(path)
    assert privacy_plan(config).releases == config.rounds
    used = privacy_plan(config).main.multiplier  # raises above epsilon
    stated = papers_noise(config, path)
    claimed = statement(config).epsilon
    # A thousandth of delta is the integers', and the library's discretisation is coarser here.
    tolerance = 1e-3 if config.sampling_rate == 1.0 else 1e-2
    assert claimed == pytest.approx(by_dp_accounting(config), rel=tolerance)
    if stated is None:
        assert claimed == pytest.approx(config.epsilon, rel=1e-3)
        with pytest.raises(ConfigError, match="above epsilon"):
            privacy_plan(config.model_copy(update={"noise_multiplier": used * 0.998}))
        return
    assert used == stated
    theirs = renyi_epsilon(used, config.rounds, config.delta, sampling_rate=config.sampling_rate)
    assert 0.99 * config.epsilon < theirs <= config.epsilon
    assert 0.9 * config.epsilon < claimed < 0.94 * config.epsilon


def given(config: RunConfig, multiplier: float) -> PrivacyStatement:
    return statement(config.model_copy(update={"noise_multiplier": multiplier}), checked=False)


@of_either_paper
def test_the_comment_says_what_the_noise_costs_and_what_would_do(path: Path) -> None:
    config = load_config(path)
    comment = re.search(r"^noise-multiplier = .*$", path.read_text("utf-8"), re.MULTILINE)
    assert comment
    if papers_noise(config, path) is None:
        assert "not in the paper" in comment[0]
        return
    told = re.search(r"; exactly it costs ([\d.]+), and ([\d.]+) would do$", comment[0])
    assert told and "Opacus' RDP accountant" in comment[0]
    costs, enough = map(float, told.groups())
    assert statement(config).epsilon == pytest.approx(costs, abs=6e-4)
    assert given(config, enough).epsilon <= config.epsilon
    assert given(config, enough * 0.998).epsilon > config.epsilon


def test_the_page_has_what_the_papers_noise_costs() -> None:
    page = (ROOT / "docs" / "results" / "papers-noise.md").read_text("utf-8")
    table = page.partition("| configuration | multiplier |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    shown: dict[tuple[str, float, float], tuple[bool, str, str, str]] = {}
    for names, noise, stated, papers, exactly, enough in rows:
        z = float(noise.removesuffix(", not in the paper"))
        for name in names.split(", "):
            shown[name, z, float(stated)] = ("not in" in noise, papers, exactly, enough)
    found = set()
    for path in PAPER:
        config = load_config(path)
        z, rounds, rate = config.noise_multiplier, config.rounds, config.sampling_rate
        key = (path.stem.removeprefix("popri-").partition("-eps")[0], z, config.epsilon)
        ours, papers, exactly, enough = shown[key]
        found.add(key)
        assert given(config, z).epsilon == pytest.approx(float(exactly), abs=6e-4)
        assert ours == (papers_noise(config, path) is None) == (not papers) == (not enough)
        if papers:
            theirs = renyi_epsilon(z, rounds, config.delta, sampling_rate=rate)
            assert theirs == pytest.approx(float(papers), abs=6e-4)
            assert f"and {enough} would do\n" in path.read_text("utf-8")
    assert found == set(shown)


@each
def test_the_ledger_pays_for_every_round(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    ledger = config_ledger(config, RunFolder(tmp_path))

    def reserve(rnd: int) -> None:
        ledger.reserve(
            run="run",
            query="scores",
            round=rnd,
            attempt=1,
            noise_multiplier=config.noise_multiplier,
            sampling_rate=config.sampling_rate,
        )

    for rnd in range(1, config.rounds + 1):
        reserve(rnd)
    assert isinstance(ledger, Ledger)
    assert ledger.spent_epsilon() <= config.epsilon
    with pytest.raises(BudgetExceeded):
        for rnd in range(config.rounds + 1, 2 * config.rounds):
            reserve(rnd)


@each
def test_prompts_can_be_drawn(path: Path) -> None:
    config = load_config(path)
    labels = split_list(config.popri.labels)
    source = prompt_source(
        [f"public text number {i}" for i in range(9)],
        examples=config.popri.examples,
        instruction=config.popri.instruction,
        labels=labels,
    )
    prompts = source.draw(40, np.random.default_rng(0))
    assert {prompt.label for prompt in prompts} == set(labels or [""])
    for prompt in prompts:
        assert "{label}" not in prompt.text and prompt.label in prompt.text
        assert prompt.text.count("public text number") == config.popri.examples


def words(row: int, count: int) -> list[str]:
    return [f"r{row}w{k}" for k in range(count)]


def write_stand_in(path: Path, config: RunConfig, rows: int) -> None:
    """Rows with the columns that the configuration names; a day more with each, in a mixed order.

    The first five and the last five days lie outside of the window, if there is one.
    """
    data, labels = config.data, split_list(config.popri.labels)
    start = datetime.date.fromisoformat(data.date_from or "2023-01-06")
    last = datetime.date.fromisoformat(data.date_to or "2024-01-01")
    lines = []
    for i in np.random.default_rng(3).permutation(rows).tolist():
        before, after = i - 5, i - rows + 5
        day = last + datetime.timedelta(after + 1) if after >= 0 else start
        day += datetime.timedelta(before if after < 0 else 0)
        row = {data.text_column: " ".join(words(i, 2 * data.sample_words + 20)), "other": i}
        if data.date_column:
            row[data.date_column] = day.isoformat()
        if data.label_column:
            row[data.label_column] = labels[i % len(labels)]
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))


def small(path: Path, folder: Path, *, hub: bool = False) -> RunConfig:
    """The configuration with local files in place of the hub's, and few users."""
    paper = load_config(path)
    rows = 40
    private = folder / "set" / "train.jsonl"
    private.parent.mkdir()
    write_stand_in(private, paper, rows)
    public = folder / "public.jsonl"
    column = paper.data.public_text_column or "text"
    texts = [{column: " ".join(words(1000 + i, 60))} for i in range(40)]
    public.write_text("".join(json.dumps(row) + "\n" for row in texts))
    place = {"data.source": f"hub:{private.parent}"} if hub else {"data.source": "files"}
    return load_config(
        path,
        {
            **place,
            "cache": str(folder / "cache"),
            "data.path": "" if hub else str(private),
            "data.public-path": str(public) if paper.data.public_path else "",
            "data.users": 20,
            "data.held-out-users": 4,
            "data.development-users": 3,
            "data.public-pool": 12,
            "data.public-validation": 16,
            "models.embedder": "ngram-32",
        },
    )


@each
def test_the_data_loads_from_stand_ins(path: Path, tmp_path: Path) -> None:
    config = small(path, tmp_path, hub="biorxiv-eps1" in path.stem)
    public = public_text(config, silent)
    federation = public.federation
    assert isinstance(federation, Federation)
    users = federation.shard_samples(0, 1)
    assert len(users) == 20
    limit, chunked = config.data.sample_words, config.data.chunk
    for own in users.values():
        row = int(own[0].text.split()[0].removeprefix("r").split("w")[0])
        whole = words(row, 2 * limit + 20)
        pieces = [whole[start : start + limit] for start in range(0, len(whole), limit)]
        expected = [p for p in pieces if 4 * len(p) >= limit] if chunked else [whole]
        assert [s.text.split() for s in own] == expected
    if chunked:
        check_dates(config, federation)
    if config.data.label_column:
        labels = {s.label for own in users.values() for s in own}
        assert labels == set(split_list(config.popri.labels))
    assert len(public.pool) == (12 if config.data.public_path else 0)
    assert all(len(text.split()) <= limit for text in public.pool)


def check_dates(config: RunConfig, federation: Federation) -> None:
    """Inside the window, users in order, and whoever is held out newer than all of them."""
    own = [s[0].date for s in federation.shard_samples(0, 1).values()]
    assert own == sorted(own)
    assert config.data.date_from <= own[0] and own[-1] <= config.data.date_to
    numbers = {
        side: [int(texts[0].split("w")[0].removeprefix("r")) for texts in users.values()]
        for side, users in (
            ("test", federation.held_out("test")),
            ("development", federation.held_out("development")),
            ("private", federation.shard(0, 1)),
        )
    }
    # 40 rows, of which five are before the window and five after it
    assert numbers["test"] == [34, 33, 32, 31]
    assert numbers["development"] == [30, 29, 28]
    assert numbers["private"] == list(range(8, 28))
