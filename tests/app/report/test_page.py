"""The report page as text: what it says of every kind of run, and that nothing escapes."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.app.report.html import learned
from privsyn_flower.app.report.html.library import INSTALL
from privsyn_flower.app.report.html.markup import MOST_ROWS, data_script, number, render
from privsyn_flower.app.report.html.settings import value_text
from privsyn_flower.app.report.page import page, write_page
from privsyn_flower.app.report.places import HIDDEN
from privsyn_flower.app.report.summaries import DISTRIBUTED, NO_QUERIES, TRUSTED, ReportError
from privsyn_flower.config import RunConfig
from privsyn_flower.runs import RunFolder, write_json, write_jsonl
from privsyn_flower.server_apps.privacy_plan import statement
from tests.app.report.pages import (
    HOSTILE,
    QUALITY,
    VOTED,
    benchmark,
    charged,
    hostile_folder,
    metrics,
    run_folder,
    topical,
)
from tests.rigs.tables import CENTRAL, SECURE, summary

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
TRAINS = {"dp-fedavg", "dp-ftrl", "evaluation"}
METHODS = (
    "pretext",
    "pe",
    "popri",
    "dp-rft",
    "ctcl",
    "dp-fedavg",
    "dp-ftrl",
    "evaluation",
    "public-only",
)


@pytest.fixture(autouse=True)
def _no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundling the scripts takes seconds; the browser's tests have them."""
    monkeypatch.setattr("privsyn_flower.app.report.html.markup.library", lambda: "")


class Reader(HTMLParser):
    """Elements of a page, its text, and what is open at the end."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in ("meta", "input", "link", "br", "base", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if self.open[-1:] not in (["script"], ["style"]) else ""


def read(text: str) -> Reader:
    """A whole page, in which every element is closed and no section gave up."""
    found = Reader(text)
    assert not found.open and len(found.ids) == len(set(found.ids))
    assert "This part cannot be shown" not in found.text
    return found


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_page(method: str, tmp_path: Path) -> None:
    result = "trained" if method in TRAINS else "synthetic"
    values: dict[str, Any] = {"parameters": 1234} if method in TRAINS else {}
    texts = None if method in TRAINS else topical(7)
    config = {
        "evaluation": {"measure.models": "a=downstream"},
        "dp-ftrl": {"training.noise": "aggregator"},
    }.get(method, {})
    folder = run_folder(
        tmp_path / "run", method=method, texts=texts, config=config,
        benchmark=benchmark(result), **values,
    )  # fmt: skip
    found = read(page([folder]))
    assert {"learned", "private", "good", "cost", "went", "settings"} <= set(found.ids)
    for said in ("7.58", method, "Not covered by epsilon", "+0.0500 [+0.0400, +0.0600]", "seed 3"):
        assert said in found.text
    assert ("1,234 trainable parameters" if texts is None else "7 synthetic texts") in found.text


def test_without_the_extra_the_tables_are_open_and_it_says_what_to_install(tmp_path: Path) -> None:
    found = read(page([run_folder(tmp_path / "run", texts=topical(30))]))
    assert INSTALL in found.text and not [
        own for tag, own in found.tags if tag == "figure" and own.get("class") == "chart"
    ]
    assert "The same as a table" not in found.text and "epsilon after it" in found.text
    assert sum(tag == "script" for tag, _ in found.tags) == 1


def test_runs_of_earlier_versions_have_pages() -> None:
    for path in sorted(RESULTS.glob("*-seed0.json")):
        found = read(page([path]))
        assert "Not covered by epsilon" in found.text and path.stem in found.text


def test_a_summary_with_the_least_it_may_have(tmp_path: Path) -> None:
    least = {"method": "pretext", "epsilon": None, "threat_model": "nobody was asked"}
    write_json(tmp_path / "summary.json", least)
    found = read(page([tmp_path]))
    assert "infinity" in found.text and "No benchmark" in found.text


WRONG: tuple[Any, ...] = ("<b>", None, -1, [], {"a": {"b": [1, None, "x"]}}, [[1, 2, 3]], True)


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_values_that_no_run_writes_break_nothing(wrong: Any, tmp_path: Path) -> None:
    """A summary may come from anywhere; a part that it cannot make says so."""
    whole = {**summary("ctcl", SECURE), "benchmark": benchmark(), "topics": {}, "verdict": {},
             "measured": {}, "evaluation_curve": [], "evaluation": {}, "proximity": {},
             "quality": {}, "voted": {}, "unusable": [], "side_by_side": {},
             "seeds_in_front": 0,
             "parameters": 3, "stage_seconds": {}, "claim": {}, "privacy_curve": []}  # fmt: skip
    for key in whole.keys() - {"method", "threat_model"}:
        write_json(tmp_path / "summary.json", {**whole, key: wrong})
        assert "</html>" in page([tmp_path])
        assert "</html>" in page([tmp_path, tmp_path])
    for part, inner in (("quality", QUALITY), ("voted", VOTED)):
        for key in inner:
            write_json(tmp_path / "summary.json", {**whole, part: inner | {key: wrong}})
            assert "</html>" in page([tmp_path])
    for key in whole["benchmark"]:
        changed = {**whole["benchmark"], key: wrong}
        write_json(tmp_path / "summary.json", {**whole, "benchmark": changed})
        assert "</html>" in page([tmp_path])


def test_hostile_texts_become_no_markup(tmp_path: Path) -> None:
    folder = hostile_folder(tmp_path / "<img src=x onerror=alert(1)>")
    text = page([folder])
    found = read(text)
    kinds = {tag for tag, _ in found.tags}
    assert not kinds & {"img", "iframe", "svg", "link", "base", "object", "textarea"}
    assert sum(tag == "script" for tag, _ in found.tags) == 1
    assert sum(tag == "style" for tag, _ in found.tags) == 1
    for _, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert not str(attributes.get("href", "#")).removeprefix("#").startswith("javascript")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f\x00\x1b\ud800-\udfff]", text)
    for one in (HOSTILE[0], HOSTILE[4], HOSTILE[13], "\\u202etxt.exe"):
        assert one in found.text
    text.encode("utf-8")


def test_what_votes_picked_stands_before_what_was_written(tmp_path: Path) -> None:
    folder = run_folder(
        tmp_path / "run", texts=[{"text": "written"}], seeds=20, unusable=["no text of a language"]
    )
    rows = [{"text": f"<b>picked {i}", "round": 1, "votes": 9.0 - i} for i in range(20)]
    write_jsonl(folder / "seeds.jsonl", rows)
    text = read(page([folder])).text
    assert text.index("NOT USABLE: no text of a language") < text.index("<b>picked 0")
    assert text.index("<b>picked 11") < text.index("1 synthetic texts")
    assert "picked 12" not in text


def test_public_seed_and_synthetic_text_stand_side_by_side(tmp_path: Path) -> None:
    beside = {"public": ["<b>public", HOSTILE[1]], "seeds": ["a seed"], "synthetic": ["written 0"]}
    texts = [{"text": f"row {n}"} for n in range(9)]
    folder = run_folder(tmp_path / "run", texts=texts, side_by_side=beside, seeds_in_front=4)
    found = read(page([folder]))
    part = found.text[found.text.index("Side by side") :]
    order = ["Public text", "<b>public", HOSTILE[1], "Seeds that the", "a seed", "Synthetic text"]
    places = [part.index(one) for one in [*order, "written 0", "5 synthetic texts"]]
    assert places == sorted(places) and "in synthetic.jsonl after 4 seeds" in part
    assert "row 4" in part and "row 3" not in part and "after 4 seeds" in found.text[: -len(part)]
    alone = run_folder(tmp_path / "two", texts=texts, side_by_side={"public": ["x"]})
    assert "Side by side" not in read(page([alone])).text


def test_votes_quality_and_closeness_are_told_with_what_covers_them(tmp_path: Path) -> None:
    copies = "most texts are copies of public text: 60% have the very words of one"
    folder = run_folder(
        tmp_path / "run", texts=topical(7), voted=VOTED, benchmark=benchmark(),
        quality=QUALITY | {"sentences": [copies, "no words"]}, unusable=["no words"],
    )  # fmt: skip
    text = read(page([folder])).text
    assert text.count(copies) == 1 and text.count("no words") == 1  # each is said once
    assert text.index("see you <b>0") < text.index("see you <b>4") and "9.5 votes" in text
    assert "survivors by domain of the public text" in text and "before5.0%95.0%" in joined(text)
    assert "485.0%15.0%" in joined(text)
    quality = text.index("Quality of 1,500 texts, by public things alone")
    assert "no private text was read" in text[quality:] and "smollm2 (134.5 million" in text
    assert "3.1%1.1%" in joined(text) and "8 / 13 / 24" in text
    close = text.index("Closeness to held-out text")
    assert quality < text.index("Not covered by epsilon") < close
    assert "this figure is not covered by it. Measured with held-out text." in text[close:]
    assert "0.4200 [0.3600, 0.4800]" in text[close:]
    checked = text[text.index("What was checked", close) :]
    assert "how close the text comes to the users': measured with held-out" in checked
    assert "`privsyn inspect RUN`" in checked
    bare = run_folder(tmp_path / "o", texts=topical(7), synthetic_samples=7, benchmark={})
    alone = read(page([bare])).text
    missing = alone[alone.index("Not checked:") :]
    assert "copies of private text" in missing and "Closeness to held-out" not in alone


def test_a_pool_of_many_domains_shows_those_of_most_survivors(tmp_path: Path) -> None:
    shares = [
        {"round": n, "shares": {f"package{i}": i / 100 for i in range(12)} | {"": 0.2}}
        for n in range(3)
    ]
    folder = run_folder(tmp_path / "run", voted={"best": [], "shares": shares})
    text = read(page([folder])).text
    assert "package11" in text and "no public text" in text and "package4" not in text
    folder = run_folder(tmp_path / "one", voted={"best": [], "shares": []})
    assert "by domain" not in read(page([folder])).text


def joined(text: str) -> str:
    """The text without white space and the marks of numbers."""
    return "".join(text.split())


def test_json_in_a_script_ends_no_script() -> None:
    for text in HOSTILE:
        made = data_script({"a": [text]})
        assert "<" not in made and json.loads(made) == {"a": [text]}


def test_a_template_escapes_whatever_it_is_given() -> None:
    made = render("failed", why='<b> "a" \u202ea \ud800')
    assert made.strip() == '<p class="notice bad">&lt;b&gt; &#34;a&#34; \\u202ea \ufffd</p>'
    kept = render("failed", why=Markup("<i>x</i>")), render("failed", why=3)
    assert "<i>x</i>" in kept[0] and ">3<" in kept[1] and "><" in render("failed", why=None)
    assert (number(12345), number(0.123456), number(None), number("x")) == (
        "12,345", "0.1235", "-", "x",
    )  # fmt: skip


def test_a_policy_forbids_the_network(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page([folder]))
    assert unescape(policy).startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy and "connect-src" not in policy and "http" not in policy


@pytest.mark.slow
def test_a_page_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "COUNT_LIMIT", 3000)
    texts = [{"text": f"word{n} " + "long " * 2000} for n in range(5000)]
    folder = run_folder(tmp_path / "run", texts=texts)
    write_jsonl(folder / "metrics.jsonl", metrics(1200))
    text = page([folder])
    assert len(text) < 1_500_000
    found = read(text)
    assert f"{learned.SHOWN} of them stand here" in found.text and "5,000 synthetic" in found.text
    assert "more characters" in found.text and "of 3,000 texts" in found.text
    assert f"{MOST_ROWS} of 1,200, evenly spread" in found.text


def test_a_run_that_goes_on_and_one_that_failed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.save_value("run", "abc")
    run.save_value("promised", {"epsilon": 1.29, "delta": 1e-6, "rounds": 8, "split": "own"})
    (run.path / "privacy.md").write_text("# Privacy of this run\n\nThe short.\n\nThe long.\n")
    run.save_checkpoint(1, {}, {"round": 1, "nodes_asked": 3, "nodes_answered": 3})
    charged(run, 1)
    with run.lock():
        text = page([run.path], live=True)
    found = read(text)
    assert "This run is going on" in found.text and "The short." in found.text
    assert "1 of 8" in found.text and "data-live" in text and "connect-src 'self'" in unescape(text)
    (run.path / "error.txt").write_text("ValueError: too few nodes\n")
    found = read(page([run.path]))
    assert "This run failed: ValueError: too few nodes" in found.text
    run_folder(tmp_path / "done")
    assert "data-live" not in page([tmp_path / "done"], live=True)


def test_refusals_are_counted_by_code(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    lines = (
        "round 1: 3 of 8 nodes refused: policy (min-noise); 1 of 8 nodes sent nothing within 60 s",
        "stage mask: 2 of 8 nodes refused: policy (min-noise)",
        "round 1: 2 of 8 nodes refused: policy (min-noise); nothing was released",
        "round 2: 4 of 8 nodes were lost (Flower error code 2)",
    )
    (folder / "run.log").write_text("".join(f"a b WARNING {line}\n" for line in lines), "utf-8")
    text = page([folder])
    assert re.search(r"refused: policy \(min-noise\)</th><td class=\"number\">5<", text)
    assert re.search(r"sent nothing within 60 s</th><td class=\"number\">1<", text)
    assert re.search(r"were lost \(Flower error code 2\)</th><td class=\"number\">4<", text)
    assert "no release, and charged" in text  # of the ledger's


def test_a_shared_ledger_tells_of_all_its_runs(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", rounds=0)
    run = RunFolder(folder)
    charged(run, 4, population="clinics")
    found = read(page([folder]))
    assert "the population's, shared by runs" in found.text and "clinics" not in found.text
    assert "spent by the one run on it" in found.text


def test_what_others_could_misread_is_said_first(tmp_path: Path) -> None:
    threat = f"{SECURE}; the split was chosen by private text"
    folder = run_folder(tmp_path / "run", threat_model=threat, ended_early="the ledger is used up")
    found = read(page([folder]))
    head = found.text[: found.text.index("What was learned")]
    assert "Not for release" in head and "Ended early, after 4 of 4 rounds" in head


def test_of_a_run_that_claims_nothing_no_number_is_a_guarantee(tmp_path: Path) -> None:
    """Its noise came from the seed, or private text chose its checkpoints: with a result, and
    while it goes on."""
    numbers: dict[str, Any] = {
        "privacy_curve": [[1.0, 1e-3], [2.0, 1e-6]], "mu_gdp": 0.7, "rho_zcdp": 0.2,
        "privacy_short": "NO PRIVACY.", "privacy": "NO PRIVACY.", "texts": topical(9),
        "benchmark": benchmark(),
    }  # fmt: skip
    threat = "none: the noise came from the run's seed"
    seeded = run_folder(tmp_path / "none", threat_model=threat, **numbers)
    held = run_folder(tmp_path / "held", **numbers)
    sign = "\u03b5\u00a0=\u00a0"
    assert sign in read(page([held])).text and "each point of the curve" in read(page([held])).text
    run = RunFolder(tmp_path / "run")
    run.save_value("run", "abc")
    run.save_value("promised", {"epsilon": 7.58, "delta": 1e-6, "private_selection": True})
    run.save_checkpoint(1, {}, {"round": 1, "epsilon_so_far": 1.5})
    charged(run, 2)
    for folder in (seeded, run.path):
        told = read(page([folder])).text
        assert "No privacy is claimed: " in told and "not claimed" in told
        assert "what real noise of the same size would spend" in told
        for word in (sign, "each point", "for each user", "Gaussian: mu"):
            assert word not in told
    assert sign not in read(page([seeded, seeded])).text


def test_numbers_of_the_guarantee_are_rounded_up(tmp_path: Path) -> None:
    numbers = {"epsilon": 1.23441, "delta": 1.2341e-6, "mu_gdp": 1.23441, "rho_zcdp": 0.76191,
               "privacy_curve": [[1.23441, 1.2341e-6], [2.0, 1e-9]]}  # fmt: skip
    integers = {"claim": asdict(statement(RunConfig()))}
    own = {"claim": {**integers["claim"], "noise_source": "aggregator", "aggregation": "plain"}}
    found = [
        read(page([run_folder(tmp_path / str(n), **json.loads(json.dumps(one)))])).text
        for n, one in enumerate(({**numbers, **integers}, {**numbers, **own}, numbers))
    ]
    for text in found:
        assert "1.2345" in text and "1.24e-06" in text and "0.762" in text
        for word in ("1.234 ", "1.2344", "1.23e-06"):
            assert word not in text
    assert ["but for the part of delta that pays" in text for text in found] == [
        True, False, True,
    ]  # fmt: skip


def test_texts_without_privacy_and_costs_of_private_text_are_marked(tmp_path: Path) -> None:
    folder = run_folder(
        tmp_path / "run", method="expand-private", texts=topical(9), benchmark=benchmark(),
        threat_model="none: epsilon is infinite, the result is made of the private text itself",
    )  # fmt: skip
    text = page([folder])
    marked = [one.partition("</div>")[0] for one in text.split('<div class="outside">')]
    assert any(learned.REPEATS.partition("'")[0] in one for one in marked)
    (costs,) = [one for one in text.split("<section") if "device CPU, a user in the run" in one]
    assert costs.index("Not covered by epsilon") < costs.index("device CPU, a user in a round")
    held = run_folder(tmp_path / "held", texts=topical(9), benchmark=benchmark())
    assert "may repeat" not in page([held])


def test_what_nodes_of_a_simulation_failed_of_stays_in_the_folder(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    said = "AllNodesFailed: round 1 released noise alone: 3 of 4 nodes failed: E at a.py:1 (/a/b/no"
    said += "de.log); 1 of 4 nodes failed: F at b.py:2 (/my (2)/c;d/node.log). Mend it and go on"
    (folder / "error.txt").write_text(said, "utf-8")
    found = read(page([folder])).text
    for word in ("3 of 4 nodes failed (see node.log); 1 of 4 nodes failed (see", "Mend it"):
        assert found.count(word) == 2 if "Mend" in word else word in found
    assert "a.py" not in found and "b.py" not in found


def test_paid_evaluations_are_told_apart_from_a_benchmark(tmp_path: Path) -> None:
    point = {"round": 0, "accuracy": 0.2, "accuracy_low": 0.1, "accuracy_high": 0.3, "loss": 4.0,
             "loss_low": 3.9, "loss_high": 4.1, "accuracy_gained": [0.01, 0.0, 0.02]}  # fmt: skip
    folder = run_folder(
        tmp_path / "run", method="dp-fedavg", benchmark=None,
        evaluation_curve=[point, {"round": 4, "failed": "too few nodes"}],
        measured={"models": {"a": point, "b": point}, "against": "a",
                  "gained": {"b": {"accuracy_gained": [0.01, 0.0, 0.02]}}},
    )  # fmt: skip
    found = read(page([folder]))
    assert "nothing was measured outside of epsilon" in found.text
    assert "Covered by epsilon: a paid" in found.text and "Not covered by eps" not in found.text
    assert "too few nodes" in found.text and "+0.0100 [+0.0000, +0.0200]" in found.text


def test_a_folder_of_another_app_has_what_is_there(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "mine")
    run.save_value("run", "abc")
    run.save_value("promised", {"epsilon": 4.0, "delta": 1e-5, "rounds": 2, "users": 20})
    run.save_checkpoint(1, {}, {"round": 1, "charge": "1", "epsilon_so_far": 2.5})
    charged(run, 1)
    found = read(page([run.path]))
    assert "a strategy of another app, 20 users" in found.text and "no config.toml" in found.text


def test_several_runs_by_trust(tmp_path: Path) -> None:
    folders = [
        run_folder(tmp_path / "one" / "run", benchmark=benchmark()),
        run_folder(tmp_path / "two" / "run", config={"rounds": 9}),
        run_folder(tmp_path / "three", method="dp-fedavg", threat_model=CENTRAL, users=5),
        run_folder(tmp_path / "four", method="public-only", threat_model="nobody was asked"),
    ]
    found = read(page(folders))
    places = [found.text.rindex(title) for title in (DISTRIBUTED, TRUSTED, NO_QUERIES)]
    assert places == sorted(places)
    for said in ("4 runs compared", "users differs: 1000, 5", "one/run", "two/run", "rounds"):
        assert said in found.text
    assert "run-folder" not in found.text


def test_a_key_that_an_earlier_version_had_not_is_no_difference(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / name, config={"rounds": 3}) for name in ("one", "two")]
    config = folders[0] / "config.toml"
    text = config.read_text()
    config.write_text("".join(f"{x}\n" for x in text.splitlines() if "node-memory" not in x))
    assert "node-memory" in text and "None of the keys differ." in read(page(folders)).text
    config.write_text(config.read_text().replace("rounds = 3", "rounds = 4"))
    assert "None of the keys differ." not in read(page(folders)).text


def test_a_path_of_the_machine_is_not_passed_on(tmp_path: Path) -> None:
    assert value_text("models.generator", "/home/a b/model") == '"\u2026/model"'
    assert value_text("measure.models", "a=/home/ada/x,b=hub:y/z") == '"a=\u2026/x,b=hub:y/z"'
    assert value_text("data.text-column", "a/b") == '"a/b"' and value_text("rounds", 3) == "3"
    assert value_text("generation.api-key-env", "OPENAI_API_KEY") == '"OPENAI_API_KEY"'
    folder = run_folder(tmp_path / "run", dataset=f"files:{tmp_path}/users.jsonl")
    other = run_folder(tmp_path / "other", dataset=f"files:{tmp_path}/more.jsonl")
    for text in (page([folder]), page([folder, other])):
        assert str(tmp_path) not in text
    assert "files:\u2026/more.jsonl" in page([folder, other])


SECRET = {
    "data.path": "~/patients/hospital-7.jsonl",
    "generation.base-url": "http://alice:hunter2@10.0.0.7:8000/v1",
    "generation.vllm-arguments": "--api-key sk-SECRET --download-dir /home/alice/x",
    "models.accelerate-arguments": "--main_process_ip 10.0.0.8",
}


def test_servers_keys_and_places_are_not_passed_on(tmp_path: Path) -> None:
    """Neither what the configuration says of them, nor what a library said when it failed."""
    said = "FileNotFoundError: /home/alice/secret-client/x.npz at http://alice:hunter2@10.0.0.7/"
    folders = [run_folder(tmp_path / "run", config=SECRET, ended_early=said, synthetic_samples=1)]
    folders.append(run_folder(tmp_path / "other"))
    (folders[0] / "run.log").write_text(f"a b WARNING round 1: {said}\n", "utf-8")
    (folders[0] / "error.txt").write_text(f"{said}\nfor {said}", "utf-8")
    (folders[0] / "checkpoints" / "ledger.json").write_text("[", "utf-8")
    for found in (page(folders[:1]), page(folders)):
        for word in ("alice", "hunter2", "SECRET", "patients", "10.0.0.8", "secret-client"):
            assert word not in found
        assert HIDDEN in found and "FileNotFoundError: \u2026/x.npz at http://10.0.0.7/" in found


def test_the_command_writes_a_file_of_its_owner(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", texts=topical(3))
    file = tmp_path / "out.html"
    found = CliRunner().invoke(app, ["report", str(folder), "--html", str(file)])
    assert found.exit_code == 0, found.stderr
    assert found.stdout.strip().endswith(str(file)) and "3 synthetic texts" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    nothing = CliRunner().invoke(app, ["report", str(tmp_path), "--html", str(file)])
    assert nothing.exit_code == 2 and "holds no run" in nothing.stderr
    both = CliRunner().invoke(app, ["report", str(folder), "--html", str(file), "--checklist"])
    assert both.exit_code == 2 and "name one of them" in both.stderr


def test_pages_of_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 folders"):
        page([])
    with pytest.raises(ReportError):
        write_page([tmp_path / "gone"], tmp_path / "x.html")
    write_jsonl(tmp_path / "progress.jsonl", [])
    with pytest.raises(ValueError, match="live = True"):
        page([tmp_path, tmp_path], live=True)


def test_a_fact_sheet_and_a_curve(tmp_path: Path) -> None:
    """Of the run's own claim; a summary of an earlier version, which noted none, says so."""
    claim = statement(RunConfig())
    noted = {"claim": asdict(claim), "privacy": claim.sentence(), "mu_gdp": 0.7,
             "privacy_curve": [[1.0, 1e-3], [2.0, 1e-6], [3.0, 1e-9]]}  # fmt: skip
    found = read(page([run_folder(tmp_path / "run", **json.loads(json.dumps(noted)))]))
    assert "Fact sheet after NIST SP 800-226" in found.text and "section 2" in found.text
    assert "Gaussian: mu" in found.text and "Epsilon and delta" in found.text
    old = read(page([run_folder(tmp_path / "old")]))
    assert "None can be made: " in old.text
