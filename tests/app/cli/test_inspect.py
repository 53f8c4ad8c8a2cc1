"""`privsyn inspect`, and what `privsyn publish` makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from privsyn_flower.app.cli.publish import ADVICE
from privsyn_flower.app.public.source import carried
from privsyn_flower.app.report.publishing.card import NOTHING_CLAIMED, TAG
from tests.app.inspect.rigs import make_run, people, sentence, write_users
from tests.app.report.publishing.runs import make_run as make_finished
from tests.rigs.command_line import privsyn

MAIL = "zoltan@quibble.example"


@pytest.fixture
def users(tmp_path: Path) -> list[str]:
    """The options that name users, of whom one wrote an address."""
    rng = np.random.default_rng(0)
    private = people("p", 12, rng)
    private["p3"].append(f"my address is {MAIL}")
    files = [("--against", private), ("--held-out", people("h", 12, rng))]
    return [
        word
        for option, made in files
        for word in (option, str(write_users(tmp_path / f"{option[2:]}.jsonl", made)))
    ]


def test_the_terminal_and_the_file(tmp_path: Path, users: list[str]) -> None:
    rng = np.random.default_rng(1)
    run = make_run(tmp_path / "run", [sentence(rng), f"write to {MAIL}\x1b[2J \u202eyes"])
    found = privsyn("inspect", run, *users)
    assert found.exit_code == 0, found.stderr
    told, last = found.stdout.splitlines(), run / "private" / "inspect.json"
    assert told[0].startswith("PRIVATE:") and "NOT covered by epsilon" in told[0]
    assert told[-1] == str(last) and last.stat().st_mode & 0o777 == 0o600
    assert f"    {MAIL} (text 2)" in told and not set("\x1b\u202e") & set(found.stdout)
    assert any(line.startswith("  12 private against 12 held-out users, AUC") for line in told)
    printed = privsyn("inspect", run, *users, "--json")
    assert json.loads(printed.stdout) == json.loads(last.read_text())


def test_what_cannot_be_inspected_ends_with_2(tmp_path: Path, users: list[str]) -> None:
    run = make_run(tmp_path / "run", ["text"])
    same = privsyn("inspect", run, "--against", users[1], "--held-out", users[1])
    assert same.exit_code == 2 and same.stderr.splitlines()[-1].startswith("error: 12 of 12 held")
    assert privsyn("inspect", tmp_path / "none").exit_code == 2
    other = privsyn("inspect", run, *users, "--embedder", "ngram-x")
    assert other.exit_code == 2 and "ngram-DIM" in other.stderr
    assert not (run / "private").exists()


def test_a_claim_that_is_wrong_ends_with_1_and_is_not_published(
    tmp_path: Path, users: list[str]
) -> None:
    """Copies of the private users' own text, with nearly no epsilon claimed."""
    copied = [json.loads(line)["text"] for line in Path(users[1]).read_text().splitlines()]
    run = make_finished(
        tmp_path / "done",
        rows=[{"text": text} for text in copied if MAIL not in text],
        epsilon=0.1,
        **{"models.embedder": "ngram-64", "data.public-path": "", "data.source": "files"},
    )
    said = privsyn("inspect", run, *users)  # nobody says that the files were drawn at random
    assert said.exit_code == 0 and "people bound no epsilon: nobody says" in said.stdout
    found = privsyn("inspect", run, *users, "--drawn-at-random")
    assert found.exit_code == 1 and "THE CLAIM IS CONTRADICTED: by guessing people" in found.stdout
    refused = privsyn("publish", run, tmp_path / "out")
    assert refused.exit_code == 1 and "and 0.1 is claimed; what does not keep" in refused.stderr
    assert not (tmp_path / "out").exists()
    assert privsyn("publish", run, tmp_path / "out", "--with-found").exit_code == 0


@pytest.fixture
def finished(tmp_path: Path, users: list[str]) -> Path:
    """A run that can be published, and was inspected: its second text replays an address."""
    rows = [{"text": "b r"}, {"text": f"write {MAIL}"}, {"text": "g"}]
    run = make_finished(tmp_path / "done", rows=rows, summary={"seeds": 1}, **{
        "models.embedder": "ngram-64", "data.public-path": "", "data.source": "files",
    })  # fmt: skip
    (run / "seeds.jsonl").write_text(json.dumps({"text": MAIL, "round": 1, "votes": 2.0}) + "\n")
    assert privsyn("inspect", run, *users).exit_code == 0
    return run


def published(run: Path, out: Path, *options: str) -> tuple[Result, list[dict[str, Any]]]:
    found = privsyn("publish", run, out, *options)
    file = out / "data" / "train.parquet"
    return found, pq.read_table(file).to_pylist() if file.exists() else []


def test_replayed_text_is_refused(finished: Path, tmp_path: Path) -> None:
    found, rows = published(finished, tmp_path / "out")
    assert found.exit_code == 1 and not rows
    assert (
        "1 texts and 1 seeds hold values that one private user alone has (e-mail: 1" in found.stderr
    )
    assert ADVICE in found.stderr and MAIL not in found.stderr


def test_with_found_publishes_all(finished: Path, tmp_path: Path) -> None:
    found, rows = published(finished, tmp_path / "out", "--with-found")
    assert found.exit_code == 0 and len(rows) == 3
    assert TAG in (tmp_path / "out" / "README.md").read_text()


def test_drop_found_leaves_texts_out_and_claims_nothing(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found, rows = published(finished, out, "--drop-found")
    assert NOTHING_CLAIMED in carried(out / "data" / "train.parquet")
    assert found.exit_code == 0, found.stderr
    assert [row["text"] for row in rows] == ["b r", "g"]
    assert f"1 texts and the seeds are left out. {ADVICE}" in found.stderr
    card = (out / "README.md").read_text()
    assert (
        NOTHING_CLAIMED in card
        and "1 texts and all seeds were left out" in card
        and TAG not in card
    )
    assert "2 texts, one a row" in card
    assert (out / "privacy.md").read_text().startswith(f"**{NOTHING_CLAIMED}")
    files = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert not {"privacy.yaml", "seeds.parquet", "inspect.json"} & files.keys()
    assert not any(MAIL.encode() in content for content in files.values())


def test_seeds_in_front_of_the_text_are_left_out_with_the_seeds(
    finished: Path, tmp_path: Path
) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    (finished / "summary.json").write_text(json.dumps({**summary, "seeds_in_front": 1}))
    first = json.loads((finished / "synthetic.jsonl").read_text().splitlines()[0])["text"]
    found, rows = published(finished, tmp_path / "out", "--drop-found")
    assert found.exit_code == 0, found.stderr
    assert rows and first not in [row["text"] for row in rows]


def test_a_hit_in_a_seed_alone_leaves_the_seeds_out(finished: Path, tmp_path: Path) -> None:
    file = finished / "private" / "inspect.json"
    told = json.loads(file.read_text())
    told["replay"] |= {"rows": [], "seeds": [0]}
    file.write_text(json.dumps(told))
    assert privsyn("publish", finished, tmp_path / "no").exit_code == 1
    found, rows = published(finished, tmp_path / "out", "--drop-found")
    assert found.exit_code == 0 and len(rows) == 3
    assert MAIL not in "".join(p.read_text() for p in (tmp_path / "out").glob("*.json*"))
    assert not list((tmp_path / "out").rglob("seeds*"))


def test_text_that_nothing_was_found_in_is_published(
    finished: Path, users: list[str], tmp_path: Path
) -> None:
    clean = make_finished(tmp_path / "clean", rows=[{"text": "b r"}], **{
        "data.source": "files", "models.embedder": "ngram-64"
    })  # fmt: skip
    assert privsyn("inspect", clean, *users).exit_code == 0
    for option in ([], ["--drop-found"]):
        found, rows = published(clean, tmp_path / "out", *option)
        assert found.exit_code == 0 and len(rows) == 1
        assert TAG in (tmp_path / "out" / "README.md").read_text()
    assert "private/inspect.json" not in (tmp_path / "out" / "publish.json").read_text()


def test_an_inspection_of_another_text_is_refused(finished: Path, tmp_path: Path) -> None:
    path = finished / "private" / "inspect.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "synthetic_sha256": "0" * 64}))
    for option in ([], ["--drop-found"]):
        found, _ = published(finished, tmp_path / "out", *option)
        assert found.exit_code == 1 and "run `privsyn inspect` again" in found.stderr
    assert published(finished, tmp_path / "out", "--with-found")[0].exit_code == 0


@pytest.mark.parametrize("damage", ["{", "[]", '{"replay": 3}', '{"replay": {"kinds": {}}}'])
def test_a_damaged_inspection_is_refused(finished: Path, tmp_path: Path, damage: str) -> None:
    (finished / "private" / "inspect.json").write_text(damage)
    found, _ = published(finished, tmp_path / "out")
    assert found.exit_code == 1 and "is damaged" in found.stderr


def test_options_that_do_not_fit(finished: Path, tmp_path: Path) -> None:
    both, _ = published(finished, tmp_path / "out", "--drop-found", "--with-found")
    assert both.exit_code == 2 and "name one of them" in both.stderr
    (finished / "private" / "inspect.json").unlink()
    none, _ = published(finished, tmp_path / "out", "--drop-found")
    assert none.exit_code == 1 and "needs `privsyn inspect` before" in none.stderr
    (finished / "private" / "inspect.json").symlink_to(tmp_path / "elsewhere.json")
    linked, _ = published(finished, tmp_path / "out")
    assert linked.exit_code == 1 and "is a link" in linked.stderr
    model = make_finished(tmp_path / "model", rows=None, model=True, method="dp-fedavg")
    found, _ = published(model, tmp_path / "out", "--drop-found")
    assert found.exit_code == 1 and "--drop-found is for text" in found.stderr
