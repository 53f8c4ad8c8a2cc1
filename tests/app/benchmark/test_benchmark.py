"""The benchmark on a small federation whose answers are known by construction."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from privsyn_flower.app.benchmark.benchmark import run_benchmark, training_benchmark
from privsyn_flower.app.benchmark.feedback import (
    medoid_distance,
    paired,
    recovery_rate,
    response_rounds,
    vote_feedback,
    vote_shares,
)
from privsyn_flower.app.benchmark.fine_tunings import classification, next_token
from privsyn_flower.app.benchmark.names import METHODS, NOTE, note, public_controls, steps_of
from privsyn_flower.app.benchmark.private import (
    Private,
    check_classes,
    distance_to_development,
    distances,
)
from privsyn_flower.common.progress import silent
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.data import Federation, LabelledText, prepare
from privsyn_flower.data.federation import _write
from privsyn_flower.data.groups import Group, Source
from privsyn_flower.data.partition import Split
from privsyn_flower.data.users import Sample
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.evaluation.intervals import load_user_sums
from privsyn_flower.evaluation.public import (
    RATE_FILE,
    export_model,
    public_start,
    rehearse,
    tuning_of,
)
from privsyn_flower.evaluation.rows import Work
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import write_jsonl
from privsyn_flower.text import load_embedder
from privsyn_flower.text.tiny.assets import RECIPES
from privsyn_flower.text.tiny.models import train

pytestmark = pytest.mark.slow

PRIVATE_WORDS = [f"priv{a}{b}" for a in "abcdef" for b in "uvwx"]
PUBLIC_WORDS = [f"pub{a}{b}" for a in "ghijkl" for b in "uvwx"]


def sentences(words, rng, count):
    """A word, then often the next one of the list: what a model can learn about a domain."""
    texts = []
    for _ in range(count):
        at = int(rng.integers(len(words)))
        text = []
        for _ in range(20):
            text.append(words[at % len(words)])
            at += 1 if rng.random() < 0.8 else int(rng.integers(len(words)))
        texts.append(" ".join(text))
    return texts


def write(path, users):
    write_jsonl(path, [{"user_id": u, "text": t} for u, texts in users.items() for t in texts])


def loss_of(setting, folder):
    return held_out_loss(setting, Downstream(folder, length=48))


def held_out_loss(setting, model):
    """Of a model as it is, on the held-out users."""
    users = setting.federation.held_out("test")
    sums = model.user_sums({user: model.encode(own) for user, own in users.items()}).sum(axis=0)
    return pytest.approx(sums[0] / sums[2], rel=1e-6)


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    root, rng = tmp_path_factory.mktemp("benchmark"), np.random.default_rng(0)
    write(root / "private.jsonl", {f"u{i}": sentences(PRIVATE_WORDS, rng, 4) for i in range(40)})
    write(root / "public.jsonl", {f"p{i}": sentences(PUBLIC_WORDS, rng, 5) for i in range(40)})
    values = {
        "benchmark": True,
        "nodes": 3,
        "cache": str(root / "cache"),
        "data.source": "files",
        "data.path": str(root / "private.jsonl"),
        "data.public-path": str(root / "public.jsonl"),
        "data.users": 20,
        "data.held-out-users": 10,
        "data.development-users": 8,
        "data.public-pool": 100,
        "data.public-validation": 20,
        "models.embedder": "ngram-64",
        "models.device": "cpu",
        "evaluation.steps": 8,
        "evaluation.batch-size": 8,
        "evaluation.sequence-length": 48,
        "evaluation.learning-rates": "1e-7,3e-3",
        "evaluation.bootstrap": 200,
    }
    config = RunConfig.from_flat(values)
    federation = Federation(prepare(config.data, root / "cache"))
    with pytest.MonkeyPatch.context() as patch:
        small = replace(RECIPES["downstream"], width=32, layers=1, heads=2, vocabulary=512)
        patch.setitem(RECIPES, "downstream", small)
        downstream = train({"downstream": federation.public_groups()}, "downstream", root, steps=12)
    embedder = load_embedder("ngram-64", "cpu")
    yield SimpleNamespace(
        config=config, federation=federation, downstream=downstream, embedder=embedder, rng=rng
    )
    torch.set_num_threads(threads)


class Record:
    """One round: as many candidates like the private text as unlike it, the former released."""

    def __init__(self, setting, flip=False):
        texts = sentences(PRIVATE_WORDS, setting.rng, 10) + setting.federation.public()[:10]
        self.query = Query.votes(setting.embedder.embed(texts), bound=1.0, model="m")
        self.votes = np.repeat([0.0, 9.0] if flip else [9.0, 0.0], 10)

    def load_query(self, rnd):
        return self.query

    def load_release(self, rnd):
        return self.votes

    def metrics(self):
        return [{"round": 1, "threshold_votes": 5.0}]


def texts_of(setting):
    """Synthetic texts and seeds: the run's own like the private text, the control's unlike it."""
    good, public = sentences(PRIVATE_WORDS, setting.rng, 60), setting.federation.public()
    return {
        "synthetic": {"synthetic": good, "noise_votes": public},
        "seeds": {"seeds": good[:30], "noise_votes": public[:30]},
    }


def private_of(setting):
    return Private(setting.config, setting.federation, setting.embedder)


def test_private_text_stays_shut_without_benchmark(setting):
    config = setting.config.model_copy(update={"benchmark": False})
    with pytest.raises(ConfigError, match="benchmark = true"):
        Private(config, setting.federation, setting.embedder)
    with pytest.raises(ConfigError, match="benchmark = true"):
        distance_to_development(config, setting.federation, setting.embedder)


def test_whole_benchmark_finds_what_was_built_in(setting, tmp_path):
    texts, private, record = texts_of(setting), private_of(setting), Record(setting)
    events = []
    steps = steps_of(setting.config, lambda *event: events.append(event), ["noise_votes"])
    with steps.task("text of the control"):
        pass
    found = run_benchmark(
        setting.config,
        private,
        downstream=setting.downstream,
        feedback=lambda _: vote_feedback(record, private, texts["seeds"]["seeds"]),
        steps=steps,
        keep=tmp_path,
        **texts,
    )
    # held-out users' own sums are kept beside the summary, never in it
    kept = load_user_sums(tmp_path, "accuracy", "synthetic")
    assert kept is not None and kept[1].shape == (10, 2)
    ratio = kept[1][:, 0].sum() / kept[1][:, 1].sum()
    assert ratio == pytest.approx(found.summary["accuracy"]["synthetic"])
    assert "user_sums" not in json.dumps(found.summary)
    assert [event[1:3] for event in events] == [(done, 8) for done in range(9)]
    assert events[-2] == ("benchmark", 7, 8, METHODS["private"])
    summary = json.loads(json.dumps(found.summary))
    assert summary["held_out_users"] == 10 and summary["held_out"] == "test"
    assert summary["accuracy_difference"]["synthetic-random_public"][1] > 0
    assert summary["loss_difference"]["synthetic-noise_votes"][2] < 0
    assert summary["accuracy_difference"]["private-random_public"][1] > 0
    assert summary["loss"]["pretrained"] > summary["loss"]["private"]
    # the model as it is, not as the last learning-rate trial left it
    assert len(summary["learning_rate_trials"]) > 1
    assert summary["loss"]["pretrained"] == loss_of(setting, setting.downstream)
    frechet = summary["frechet"]
    assert frechet["synthetic"]["synthetic"] < 0.5 * frechet["synthetic"]["random_public"]
    assert frechet["seeds"]["seeds"] < 0.5 * frechet["seeds"]["noise_votes"]
    assert summary["true_votes"]["seeds_against_random"] > 0.9
    assert summary["true_votes"]["mean_ratio"] > 1.8
    repeated = summary["near_duplicates"]
    assert repeated["private"]["share"] > repeated["public"]["share"] == 0.0
    held_out = setting.federation.held_out("test")
    assert found.held_out.shape == (sum(map(len, held_out.values())), 64)
    assert found.candidates[0].shape == (20, 64)


def test_shares_are_of_true_votes_not_released_ones(setting):
    private = private_of(setting)
    good, _ = vote_shares(Record(setting), private)
    bad, _ = vote_shares(Record(setting, flip=True), private)
    assert good["random"] == bad["random"] == [0.5]
    assert good["survivors"][0] + bad["survivors"][0] == pytest.approx(1, abs=1e-3)
    assert good["survivors"][0] > 0.9


def test_private_votes_are_bounded_and_cover_all_nodes(setting):
    private = private_of(setting)
    assert len(set(private.owners.tolist())) == 20
    one = private.votes(setting.embedder.embed(setting.federation.public()[:1]))
    assert one == pytest.approx([20.0])  # every user's whole norm on the only candidate


def test_distances_compare_equal_numbers(setting):
    private = private_of(setting)
    held_out = private.held_out()
    groups = texts_of(setting)
    found = distances(groups, setting.federation.public(), private, held_out, setting.config)
    again = distances(groups, setting.federation.public(), private, held_out, setting.config)
    assert found == again
    frechet, close = found
    assert frechet["seeds"]["private"] < frechet["seeds"]["random_public"]
    assert close.keys() == {"seeds", "synthetic", "random_public", "private"}
    for figure, better in (("frechet", min), ("mauve", max), ("precision", max), ("recall", max)):
        value, low, high = close["private"][figure]
        assert low <= value <= high
        assert value == better(value, close["random_public"][figure][0]), figure


def test_learning_rate_is_rehearsed_on_public_text_only(setting, monkeypatch):
    def closed(*_):
        raise AssertionError("private text was opened")

    monkeypatch.setattr(Federation, "shard", closed)
    monkeypatch.setattr(Federation, "held_out", closed)
    model = Downstream(setting.downstream, length=48)
    rate, tried = rehearse(setting.config, setting.federation, model)
    assert set(tried) == {"1e-07", "0.003"}
    assert tried[f"{rate:g}"] == min(tried.values())
    monkeypatch.setattr("privsyn_flower.evaluation.public.choose_learning_rate", closed)
    assert rehearse(setting.config, setting.federation, model) == (rate, tried)  # of the cache


def with_steps(config, steps, **values):
    changed = config.model_copy(update={"method": "dp-fedavg"})
    training = config.training.model_copy(update={"public_steps": steps, **values})
    return changed.model_copy(update={"training": training})


def test_the_start_is_the_model_tuned_on_public_text(setting, monkeypatch):
    """(a) of the other methods' benchmarks, made of public text alone and made once."""
    config, base = with_steps(setting.config, 8), setting.downstream
    assert public_start(with_steps(config, 0), setting.federation, base) == base
    with monkeypatch.context() as patch:
        patch.setattr(Federation, "shard", None)
        patch.setattr(Federation, "held_out", None)
        start = public_start(config, setting.federation, base)
    rate = json.loads((start / RATE_FILE).read_text())["rate"]
    assert rate == 3e-3
    model, tuned = Downstream(base, length=48), Downstream(start, length=48)
    tuning = Tuning(8, 8, 48, rate, config.seed)
    texts = setting.federation.public()
    assert tuned.encode(texts[:9]) == model.encode(texts[:9])
    model.fine_tune(model.encode(texts), tuning)
    expected = model.parameters()
    for name, array in tuned.parameters().items():
        assert np.array_equal(array, expected[name]), name
    monkeypatch.setattr(Downstream, "fine_tune", None)
    assert public_start(config, setting.federation, base) == start
    with pytest.raises(TypeError):  # other steps are another model
        public_start(with_steps(config, 7), setting.federation, base)


def test_a_start_needs_public_text(setting, monkeypatch):
    monkeypatch.setattr(Federation, "public", lambda self: [])
    with pytest.raises(ConfigError, match=r"training\.public-steps = 5.*data\.public-path"):
        public_start(with_steps(setting.config, 5), setting.federation, setting.downstream)


def test_a_trained_model_is_measured_as_it_is(setting, tmp_path):
    """The start beside a model that has lost what it knew; nothing but the start is tuned."""
    config = with_steps(setting.config, 8)
    start = public_start(config, setting.federation, setting.downstream)
    rng = np.random.default_rng(0)
    noise = {
        name: rng.standard_normal(array.shape, np.float32)
        for name, array in Downstream(start, length=48).parameters().items()
        if "embed_tokens" in name
    }
    spoilt = export_model(start, noise, tmp_path / "models" / "model")
    assert export_model(start, {}, spoilt) == spoilt  # what is there stays
    worn = Downstream(spoilt, length=48).parameters()
    assert all(np.array_equal(worn[name], noise[name]) for name in noise)
    models = {"random_public": start, "trained": spoilt}
    events = []
    found = training_benchmark(
        config,
        setting.federation,
        downstream=setting.downstream,
        models=models,
        progress=lambda *event: events.append(event),
    )
    line = [event[1:] for event in events if event[0] == "benchmark"]
    assert line[1:] == [(1, 2, METHODS["private"]), (2, 2)]
    found = json.loads(json.dumps(found))
    assert list(found["methods"]) == ["pretrained", "random_public", "trained", "private"]
    assert found["training_texts"].keys() == {"private"}
    assert found["loss"]["random_public"] == loss_of(setting, start)
    assert found["loss_difference"]["trained-random_public"][1] > 0
    assert "trained-pretrained" in found["loss_difference"]
    closed = config.model_copy(update={"benchmark": False})
    with pytest.raises(ConfigError, match="benchmark = true"):
        training_benchmark(closed, setting.federation, downstream=start, models=models)


class Responses(Record):
    """A POPri round: prompts with one response like the private text and one unlike it."""

    def __init__(self, setting, released, projection=None):
        good = sentences(PRIVATE_WORDS, setting.rng, 10)
        bad = setting.federation.public()[:10]
        rows = setting.embedder.embed(
            [text for pair in zip(good, bad, strict=True) for text in pair]
        )
        self.extra = {"groups": np.full(10, 2)}
        if projection is not None:
            self.extra["projection"] = projection
            rows = rows @ projection @ projection.T  # as a question gives it back
        self.rows, self.released = rows, released

    def load_query(self, rnd):
        return SimpleNamespace(question=lambda: self.rows, extra=self.extra, length=20)

    def load_release(self, rnd):
        return self.released

    def metrics(self):
        return [{"round": 1, "prompts_asked": 10}]


@pytest.mark.parametrize("projected", [False, True])
def test_recovery_is_of_unnoised_scores(setting, projected):
    private = private_of(setting)
    held_out = private.held_out().rows
    projection = (
        np.linalg.qr(np.random.default_rng(0).normal(size=(64, 40)))[0] if projected else None
    )
    right, wrong = np.tile([1.0, 0.0], 10), np.tile([0.0, 1.0], 10)
    found, responses = response_rounds(Responses(setting, right, projection), private, held_out, 2)
    lost, _ = response_rounds(Responses(setting, wrong, projection), private, held_out, 2)
    assert found["recovery_rate"] == [1.0] and lost["recovery_rate"] == [0.0]
    assert found["frechet_private"][0] > 0 and responses[0].shape == (20, 64)
    # The good ones are like held-out text, and whoever is chosen is measured apart.
    assert found["frechet_chosen"][0] < 0.7 * found["frechet_rejected"][0]
    assert lost["frechet_chosen"][0] > lost["frechet_rejected"][0]
    assert min(found["medoid_distance"] + lost["medoid_distance"]) > 0


def test_the_chosen_and_the_rejected_are_of_their_group():
    released = np.array([2.0, 1.0, 0.0, 9.0, 5.0, 5.0])
    chosen, rejected = paired(released, [1, 3, 2], 2)
    assert chosen.tolist() == [3, 4] and rejected.tolist() == [1, 5]
    assert paired(released, [6], 9)[1].tolist() == [2]  # fewer than the rank: the last


def test_the_medoid_is_the_text_nearest_to_all():
    held_out = np.zeros((6, 3), dtype=np.float32)
    held_out[:3, 0], held_out[3:, 1] = [-9, 0, 9], [-5, 0, 5]
    rows = np.array([[0, 0, 7], [1, 0, -7], [0, 2, 3], [0, -4, 0], [-3, 0, 1]], dtype=np.float32)
    # In the plane of the first two axes the first row is in the middle: 0, 1, 2, 4 and 3 away.
    assert medoid_distance(rows, held_out) == pytest.approx(2.0, abs=1e-4)
    assert medoid_distance(0.5 * rows, held_out) == pytest.approx(1.0, abs=1e-4)


def test_recovery_rate_counts_pairs_only():
    true, released = np.array([0.0, 1.0, 5.0, 3.0]), np.array([2.0, 1.0, 0.0, 9.0])
    assert recovery_rate(true, released, [1, 3], 5) == 0.0  # 3.0 chosen, 5.0 rejected
    assert recovery_rate(true, released, [1, 3], 2) == 1.0  # 3.0 chosen, 1.0 rejected
    assert recovery_rate(true, released, [1, 1, 1, 1], 2) is None


def test_mean_cosine_weighs_users_alike(setting):
    private = private_of(setting)
    candidates = setting.embedder.embed(setting.federation.public()[:3])
    users = [private.rows[private.owners == u] for u in range(private.users)]
    expected = np.mean([(candidates @ rows.T).mean(axis=1) for rows in users if len(rows)], axis=0)
    assert private.mean_cosines(candidates) == pytest.approx(expected, abs=1e-5)


def test_distance_to_development_prefers_what_is_like_it(setting):
    distance = distance_to_development(setting.config, setting.federation, setting.embedder)
    good = sentences(PRIVATE_WORDS, setting.rng, 20)
    assert distance(good) < distance(setting.federation.public()[:20])
    assert distance(good[:1]) == float("inf")


# Classes -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled(setting, tmp_path_factory):
    """Users whose texts say which of two classes they are of, as their label does."""
    root, rng = tmp_path_factory.mktemp("labelled"), np.random.default_rng(5)
    words = {"priv": PRIVATE_WORDS, "pub": PUBLIC_WORDS}
    rows = [
        {"user_id": f"u{i // 2}", "text": sentences(words[label], rng, 1)[0], "label": label}
        for i in range(60)
        for label in [("priv", "pub")[i % 2]]
    ]
    write_jsonl(root / "users.jsonl", rows)
    values = {
        **setting.config.flat(),
        "method": "popri",
        "cache": str(root / "cache"),
        "data.path": str(root / "users.jsonl"),
        "data.label-column": "label",
        "data.near-duplicates": "keep",
        "data.development-users": 0,
        "data.public-validation": 0,
        "popri.labels": "priv, pub",
        "popri.examples": 0,
        "popri.instruction": "{label}: ",
        "evaluation.task": "classification",
        "evaluation.steps": 40,
        "evaluation.learning-rates": "3e-3",
    }
    config = RunConfig.from_flat(values)
    federation = Federation(prepare(config.data, root / "cache"))
    right = [LabelledText(row["text"], row["label"]) for row in rows[:20]]
    wrong = [LabelledText(text, {"priv": "pub", "pub": "priv"}[text.label]) for text in right]
    sets = {"synthetic": right, "noise_scores": wrong, "unaligned": [str(text) for text in right]}
    return SimpleNamespace(config=config, federation=federation, sets=sets)


def test_classes_are_read_from_the_texts_labels(setting, labelled, tmp_path):
    given = (labelled.config, labelled.federation, setting.downstream, labelled.sets)
    found = classification(*given, keep=tmp_path)
    kept = load_user_sums(tmp_path, "accuracy", "private")
    assert kept is not None and kept[1].sum(axis=0)[1] == found["held_out_texts"]
    accuracy, macro = found["accuracy"], found["macro_f1"]
    # Sets without labels are left out: the public text here, and a control's.
    names = ["pretrained", "majority", "noise_scores", "synthetic", "private"]
    assert list(accuracy) == list(macro) == names
    assert (
        accuracy["private"] > 0.9 and accuracy["synthetic"] > 0.9 > 0.3 > accuracy["noise_scores"]
    )
    assert macro["synthetic"] > 0.9 > 0.3 > macro["noise_scores"]
    value, low, high = found["accuracy_difference"]["synthetic-noise_scores"]
    assert 0 < low <= value <= high
    assert found["held_out_users"] == 10 and found["held_out_texts"] == 20
    # Two classes of equal size: a class alone is right half of the time, and one of two F1s is 0.
    assert accuracy["majority"] == 0.5 and macro["majority"] == pytest.approx(1 / 3)
    assert "synthetic-majority" in found["accuracy_difference"]
    assert found["training_texts"] == {"synthetic": 20, "noise_scores": 20, "private": 40}


def test_classes_that_nobody_s_texts_have_are_named(setting, labelled):
    config = labelled.config.flat()
    config = RunConfig.from_flat({**config, "popri.labels": "one, other"})
    with pytest.raises(ConfigError, match=r"popri.labels = 'one, other': none of the users' texts"):
        classification(config, labelled.federation, setting.downstream, labelled.sets)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ("Priv, pub", "'Priv' has other letters or spaces in held-out"),
        ("p ub, priv", "'p ub' has other letters"),
        ("one, other", "'one', 'other' is the label of none of held-out"),
        ("priv, pub, third", ""),
        ("priv, pub", ""),
    ],
)
def test_a_misspelt_class_is_named_before_anybody_is_asked(labelled, labels, told, caplog):
    config = RunConfig.from_flat({**labelled.config.flat(), "popri.labels": labels})
    if told:
        with pytest.raises(ConfigError, match=rf"popri.labels = '{labels}': {told}"):
            check_classes(config, labelled.federation)
    else:
        check_classes(config, labelled.federation)
    assert ("no held-out text is of class 'third'" in caplog.text) == ("third" in labels)


def test_public_labels_make_a_baseline_and_choose_the_rate(setting, labelled, monkeypatch):
    public = labelled.federation.public()
    labels = ["pub", "priv"] * (len(public) // 2)  # that say nothing: all of it is public text
    monkeypatch.setattr(Federation, "public_labels", lambda self: labels)
    options = {"evaluation.learning-rates": "1e-9,3e-3", "evaluation.steps": 3}
    config = RunConfig.from_flat({**labelled.config.flat(), **options})
    sets = {"synthetic": labelled.sets["synthetic"]}
    found = classification(config, labelled.federation, setting.downstream, sets)
    assert found["training_texts"]["random_public"] == len(public) == 100
    assert "synthetic-random_public" in found["macro_f1_difference"]
    assert set(found["learning_rate_trials"]) == {"1e-09", "0.003"}
    best = max(found["learning_rate_trials"].values())
    assert found["learning_rate_trials"][f"{found['learning_rate']:g}"] == best


def test_a_rate_is_not_chosen_without_public_text(setting, labelled, monkeypatch):
    options = {"evaluation.learning-rates": "1e-4,3e-3"}
    config = RunConfig.from_flat({**labelled.config.flat(), **options})
    with pytest.raises(ConfigError, match="labelled public text, and there is none"):
        classification(config, labelled.federation, setting.downstream, labelled.sets)
    for name in ("public", "public_groups", "public_general", "public_validation"):
        monkeypatch.setattr(Federation, name, lambda self: [])
    with pytest.raises(ConfigError, match="chosen on public text, and there is none"):
        rehearse(config, setting.federation, Downstream(setting.downstream, length=48))


def test_distances_without_public_text(setting):
    private = private_of(setting)
    found, close = distances(
        {"synthetic": {"synthetic": setting.federation.public()[:20]}},
        [],
        private,
        private.held_out(),
        setting.config,
    )
    assert set(close) == {"synthetic", "private"}
    assert set(found["synthetic"]) == {"synthetic", "private"}
    assert found["synthetic"]["private"] < found["synthetic"]["synthetic"]


def test_public_labels_come_with_the_pool(setting, tmp_path):
    """In the pool's random order, and empty where the source has none."""
    groups = [Group(f"g{i}", (Sample(f"text number {i}", label=f"label {i}"),)) for i in range(9)]
    parts = Split([], [], [], groups, [], [(7, 0), (2, 0), (4, 0)])
    _write(tmp_path, parts, setting.config.data, Source([], []))
    federation = Federation(tmp_path)
    assert federation.public() == ["text number 7", "text number 2", "text number 4"]
    assert federation.public_labels() == ["label 7", "label 2", "label 4"]
    assert set(setting.federation.public_labels()) == {""}


# Full size ------------------------------------------------------------------------------------


def changed(config, **keys):
    flat = {f"evaluation.{key.replace('_', '-')}": value for key, value in keys.items()}
    return RunConfig.from_flat({**config.flat(), **flat})


def test_the_public_text_that_is_like_the_users_is_a_control(setting, monkeypatch):
    """What a text's domain is worth alone, without anybody's answers."""
    data = setting.config.data.model_copy(update={"source": "docstrings", "minority_share": 0.5})
    config = changed(setting.config, learning_rates="3e-3", steps=2)
    config = config.model_copy(update={"data": data})
    general = setting.federation.public()[::2]
    monkeypatch.setattr(Federation, "public_general", lambda self: general)
    sets = {"synthetic": texts_of(setting)["synthetic"]["synthetic"]}
    found = next_token(config, setting.federation, setting.downstream, sets)
    assert found["training_texts"] | {"synthetic": 0, "private": 0} == {
        "random_public": 100, "minority_public": 50, "synthetic": 0, "private": 0,
    }  # fmt: skip
    assert "synthetic-minority_public" in found["accuracy_difference"]
    assert public_controls(changed(config, controls="minority-public")) == ["minority_public"]
    assert public_controls(setting.config) == ["random_public"]  # files have no such part


def test_fine_tunings_start_from_the_model_of_public_text(setting):
    """PrE-Text, section 4.1: c4-only is a row, and what the others go on from."""
    config = changed(
        setting.config, start="public", public_steps=20, learning_rates="3e-3", epochs=2
    )
    events = []
    steps = steps_of(config, lambda *event: events.append(event), [])
    sets = {"synthetic": texts_of(setting)["synthetic"]["synthetic"]}
    found = next_token(config, setting.federation, setting.downstream, sets, silent, steps)
    steps.end()
    line = [event[3] for event in events if len(event) == 4]
    assert line == [METHODS["synthetic"], METHODS["private"]]
    assert list(found["methods"]) == ["pretrained", "random_public", "synthetic", "private"]
    start = public_start(config, setting.federation, setting.downstream)
    for name, folder in (("pretrained", setting.downstream), ("random_public", start)):
        assert found["loss"][name] == loss_of(setting, folder)
    model = Downstream(start, length=48)
    tuning = replace(tuning_of(config), learning_rate=3e-3)
    model.fine_tune(model.encode(sets["synthetic"]), tuning)
    assert found["loss"]["synthetic"] == held_out_loss(setting, model)
    assert found["steps_per_fine_tuning"] == {"synthetic": 16, "private": 20}
    assert "tokens_per_fine_tuning" not in found


def test_fine_tunings_start_from_the_model_that_public_text_has_no_more_to_teach(setting, caplog):
    """A training on the nodes starts there, too, and (a) goes on with as many steps as the rest."""
    config = changed(
        setting.config, start="converged", public_steps=60, public_patience=8, learning_rates="3e-3"
    )
    sets = {"synthetic": texts_of(setting)["synthetic"]["synthetic"]}
    found = next_token(config, setting.federation, setting.downstream, sets)
    assert list(found["methods"]) == [
        "pretrained", "start", "random_public", "synthetic", "private",
    ]  # fmt: skip
    assert set(found["steps_per_fine_tuning"].values()) == {8}
    assert {"synthetic-start", "random_public-start"} <= set(found["loss_difference"])
    start = public_start(config, setting.federation, setting.downstream)
    made = found["start"]
    validation = setting.federation.public_validation()
    for folder, key in ((start, "public_validation_loss"), (setting.downstream, "loss_before")):
        model = Downstream(folder, length=48)
        assert model.loss(model.encode(validation)) == pytest.approx(made[key], abs=2e-5)
    assert made["public_validation_loss"] < made["loss_before"]
    assert made["kept_step"] % 2 == 0 and made["rate"] == 3e-3
    assert made["converged"] == (made["steps"] - made["kept_step"] >= 8)
    training = RunConfig.from_flat({**config.flat(), "method": "dp-fedavg"})
    assert public_start(training, setting.federation, setting.downstream) == start

    short = changed(config, public_steps=3)
    made = next_token(short, setting.federation, setting.downstream, sets)["start"]
    assert made["steps"] == 3 and not made["converged"]
    assert "public-steps = 3: the start is not converged" in caplog.text
    none = config.model_copy(update={"cache": f"{config.cache}-2"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "public_validation", lambda self: [])
        with pytest.raises(ConfigError, match=r"raise data\.public-validation"):
            public_start(none, setting.federation, setting.downstream)


def test_the_epoch_that_development_users_choose_is_said(setting, monkeypatch):
    opened = []
    real = Federation.held_out
    monkeypatch.setattr(
        Federation, "held_out", lambda self, side: opened.append(side) or real(self, side)
    )
    config = changed(
        setting.config, checkpoint="development", epochs=2, learning_rates="3e-3", controls=""
    )
    assert "development users' text, which epsilon does not cover" in note(config)
    assert note(setting.config) == NOTE and "development" not in NOTE
    sets = {"synthetic": setting.federation.public()[:16]}
    chosen = next_token(config, setting.federation, setting.downstream, sets)
    assert set(opened) == {"test", "development"}
    opened.clear()
    plain = changed(config, checkpoint="last")
    last = next_token(plain, setting.federation, setting.downstream, sets)
    assert set(opened) == {"test"} and chosen["methods"] == last["methods"]


@pytest.mark.parametrize("passes", ["epochs", "steps"])
def test_a_set_without_text_names_its_key(setting, passes):
    config = changed(setting.config, learning_rates="3e-3", controls="", **{passes: 2})
    given = config, setting.federation, setting.downstream, {"synthetic": []}
    said = f"on synthetic: none of its .* evaluation.{passes}: raise expand.samples"
    with pytest.raises(ConfigError, match=said):
        next_token(*given)


def test_a_killed_benchmark_does_not_tune_again_what_was_finished(setting, tmp_path, monkeypatch):
    sets = {"synthetic": texts_of(setting)["synthetic"]["synthetic"]}
    config = changed(setting.config, steps=2)
    given = config, setting.federation, setting.downstream, sets
    expected = next_token(*given)
    begun = []
    real = Downstream.fine_tune

    def counted(self, rows, tuning, progress, stage, **more):
        if stage == "fine-tuning on private" and stage not in begun:
            begun.append(stage)
            raise KeyboardInterrupt
        begun.append(stage)
        return real(self, rows, tuning, progress, stage, **more)

    monkeypatch.setattr(Downstream, "fine_tune", counted)
    with pytest.raises(KeyboardInterrupt):
        next_token(*given, work=Work(tmp_path / "work"))
    assert len(begun) == 3  # (a), (b), and (c) where it was killed; the rate is in the cache
    begun[:] = begun[-1:]
    found = next_token(*given, work=Work(tmp_path / "work"))
    assert begun == ["fine-tuning on private"] * 2
    assert found == expected
    begun[:] = begun[-1:]
    # another run in a folder of the same name
    other = changed(config, adapter_rank=2, learning_rates="3e-3")
    next_token(other, *given[1:], work=Work(tmp_path / "work"))
    assert len(begun) == 4
