"""The stages of a corpus against the canned server: what is kept, counted, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.public.corpus import convert_texts, filter_texts, write_chats
from privsyn_flower.app.public.journal import read_state
from privsyn_flower.app.public.mixing import mix, write_report
from privsyn_flower.app.public.source import carried, statement_of_file
from privsyn_flower.common.files import DataError
from privsyn_flower.config.public import PublicTextConfig
from privsyn_flower.runs import read_jsonl as rows
from privsyn_flower.text.serving.http_client import ServerError
from tests.app.public.conftest import Canned
from tests.rigs.users import write_jsonl

Server = Callable[..., Canned]

JUDGE, RECEIVERS, TOPICS, TALK, CONVERT = (
    "Would people bring up", "Who might that be", "What might it be about", "It is about this",
    "Turn the text below",
)  # fmt: skip
CHAIN = [
    [RECEIVERS, "1. Mom\n2. Dad\n3. mom"],
    [TOPICS, "- dinner\n- a trip\n- Dinner"],
    [TALK, "**Me:** hi {digest}\n**Mom:** ok. See you"],
    [CONVERT, "Anna: did you read of {digest}?\nBo: yes"],
]


def write_source(path: Path, texts: Iterable[str]) -> Path:
    return write_jsonl(path, [{"text": text} for text in texts])


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., PublicTextConfig]:
    """settings(filter={...}, ...) -> a configuration of this test's folder and source."""
    texts = [f"{'dogs' if i % 3 else 'backlinks'} number {i}. They run. " for i in range(30)]
    source = write_source(tmp_path / "web.jsonl", texts)

    def make(**tables: Any) -> PublicTextConfig:
        tables["filter"] = {"source": str(source), **tables.get("filter", {})}
        tables["generation"] = {"chat": True, "concurrency": 4, **tables.get("generation", {})}
        base = {"folder": str(tmp_path / "corpus"), "models": {"generator": "canned"}}
        return PublicTextConfig.model_validate(base | tables)

    return make


def state_of(folder: Path, stage: str) -> dict[str, Any]:
    state = read_state(folder, stage)
    assert state is not None
    return state


def opened(server: Canned, **options: Any) -> Any:
    return lambda: nullcontext(server.generator(**options))


# Filter


def test_the_filter_keeps_what_is_judged_1_and_counts_the_rest(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    rules = [["number 4.", "well"], ["dogs", "1"], ["backlinks", "0."]]
    server = canned(rules=rules, faults=[{"kind": "withheld", "part": "number 5.", "times": -1}])
    config = settings()
    filter_texts(config, opened(server))
    kept = rows(tmp_path / "corpus/filter.jsonl")
    numbers = {i for i in range(30) if i % 3 and i not in (4, 5)}
    assert {line["text"] for line in kept} == {f"dogs number {i}. They run. " for i in numbers}
    assert {tuple(line["place"]) for line in kept} == {(0, i + 1) for i in numbers}
    report = write_report(tmp_path / "corpus")["stages"]["filter"]
    assert report["complete"] and report["taken"] == 30 and report["texts"] == 18
    assert report["bytes"] == (tmp_path / "corpus/filter.jsonl").stat().st_size
    counts = report["counts"]
    verdicts = {key: counts[key] for key in ("kept", "rejected", "unread", "failed")}
    assert verdicts == {"kept": 18, "rejected": 10, "unread": 1, "failed": 1}
    asked = server.stats()["asked"]
    assert {body["max_tokens"] for body in asked} == {1}
    assert {body["temperature"] for body in asked} == {0}
    words = sum(len(body["messages"][-1]["content"].split()) for body in asked)
    # What the request that was withheld cost is not told.
    assert 0 < counts["prompt_tokens"] <= words and counts["completion_tokens"] >= 29


def test_a_limit_can_be_raised_and_nothing_is_asked_twice(canned: Server, settings: Any) -> None:
    server = canned(rules=[["", "1"]])
    for limit in (5, 5, 12, 0, 0):
        filter_texts(settings(filter={"limit": limit}), opened(server))
        state = state_of(Path(settings().folder), "filter")
        assert state["taken"] == state["lines"] == (limit or 30)
        assert len(server.prompts()) == (limit or 30)


def test_long_texts_are_judged_by_their_first_words_and_kept_whole(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    text = "one two  three\nfour five"
    source = write_source(tmp_path / "long.jsonl", [text])
    server = canned(rules=[["", "1"]])
    filter_texts(settings(filter={"source": str(source), "words": 3}), opened(server))
    assert "Text:\none two  three\n" in server.prompts()[0]
    assert rows(tmp_path / "corpus/filter.jsonl")[0]["text"] == text


def test_a_text_without_spaces_is_cut_too(canned: Server, settings: Any, tmp_path: Path) -> None:
    source = write_source(tmp_path / "long.jsonl", ["水" * 5000, "word " * 5000])
    server = canned(rules=[[JUDGE, "1"], *CHAIN])
    config = settings(
        filter={"source": str(source), "words": 50}, convert={"share": 1.0, "words": 60}
    )
    filter_texts(config, opened(server))
    convert_texts(config, opened(server))
    prompts = server.prompts()
    assert sorted(prompt.count("水") for prompt in prompts) == [0, 0, 500, 600]
    assert sorted(prompt.count("word ") for prompt in prompts)[2:] == [49, 59]
    assert {len(line["text"]) for line in rows(tmp_path / "corpus/filter.jsonl")} == {
        5000,
        25_000,
    }


def test_a_model_that_judges_nothing_ends_the_filter(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    """Before all texts are paid for; one judgement that is read is enough to go on."""
    texts = [f"text {i}." for i in range(100)]
    source = write_source(tmp_path / "many.jsonl", texts)
    server = canned(rules=[["", "<think> so"]])
    config = settings(filter={"source": str(source)})
    with pytest.raises(DataError, match=r"none of the first 32 .* filter.max-tokens = 1") as raised:
        filter_texts(config, opened(server))
    assert "the last was ''. A model that" in str(raised.value)  # a thought that did not end
    assert len(server.prompts()) < 50
    other = canned(rules=[["text 3.", "0"], ["", "well"]])
    filter_texts(
        settings(folder=str(tmp_path / "b"), filter={"source": str(source)}), opened(other)
    )
    assert (read_state(tmp_path / "b", "filter") or {})["counts"]["unread"] == 99


def test_a_folder_of_files_is_read_in_order_and_rows_without_text_are_passed_over(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "c4").mkdir()
    write_source(tmp_path / "c4/b.jsonl", ["third"])
    (tmp_path / "c4/a.jsonl").write_text(
        '{"text": "first"}\nno json\n{"text": " "}\n{"text": "second \\ud83d"}\n'
    )
    (tmp_path / "c4/readme.txt").write_text("not a corpus")
    server = canned(rules=[["", "1"]])
    filter_texts(settings(filter={"source": str(tmp_path / "c4")}), opened(server))
    found = {tuple(line["place"]): line["text"] for line in rows(tmp_path / "corpus/filter.jsonl")}
    assert found == {(0, 1): "first", (0, 4): "second ?", (1, 1): "third"}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"source": ""}, r"filter\.source is empty"),
        ({"text_column": "body"}, r"no column 'body' but 'text'.* filter\.text-column"),
        ({"source": "."}, r"has no file of \.jsonl"),
    ],
)
def test_a_source_that_is_none_is_refused_before_anything_is_asked(
    canned: Server, settings: Any, tmp_path: Path, tables: Any, message: str
) -> None:
    if tables.get("source") == ".":
        tables = {"source": str(tmp_path / "empty")}
        (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        filter_texts(settings(filter=tables), lambda: pytest.fail("the model was opened"))


@pytest.mark.parametrize(
    "files",
    [
        {"a.jsonl": '{"text": "hi", "user_id": "anna"}'},
        {"a.jsonl": '{"text": "hi"}', "b.csv": "user_id,text\nanna,hi"},
        {"a.jsonl": '{"text": "hi"}\n{"text": "hi", "user_id": "anna"}'},
    ],
    ids=["first", "another file", "another row"],
)
def test_text_of_users_is_no_source_unless_it_is_said_to_be_public(
    canned: Server, settings: Any, tmp_path: Path, files: dict[str, str]
) -> None:
    (tmp_path / "users").mkdir()
    for name, text in files.items():
        (tmp_path / "users" / name).write_text(text)
    server = canned(rules=[["", "1"]])
    table = {"source": str(tmp_path / "users")}
    with pytest.raises(DataError, match=r"has a column 'user_id'.*filter.public-users = true"):
        filter_texts(settings(filter=table), opened(server))
    assert not any("anna" in prompt for prompt in server.prompts())
    filter_texts(settings(filter=table | {"public_users": True}), opened(server))
    state = state_of(tmp_path / "corpus", "filter")
    assert state["lines"] == "".join(files.values()).count("hi")


def test_text_that_carries_a_claim_hands_it_on(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    """A trained model chose it, or a run wrote it: what is made of it carries that epsilon."""
    (tmp_path / "near").mkdir()
    source, said = tmp_path / "near" / "proximity.jsonl", tmp_path / "near" / "privacy.md"
    source.write_text('{"text": "hi", "unknown": 0.0, "before": -3.0, "after": -2.0}\n')
    config = settings(filter={"source": str(source)}, mix={"stages": "filter"})
    server = canned(rules=[["", "1"]])
    with pytest.raises(DataError, match="a trained model chose its texts"):
        filter_texts(config, opened(server))
    assert server.prompts() == []
    said.write_text("# Privacy of this text\n\nEpsilon = 3")
    own = tmp_path / "corpus" / "privacy.md"
    own.parent.mkdir()
    own.write_text("# Privacy of this run\n\nEpsilon = 5")  # a folder that is a run's, too
    with pytest.raises(DataError, match=r"is of something else than filter\.source"):
        filter_texts(config, opened(server))
    assert "5" in own.read_text() and server.prompts() == []
    own.unlink()
    filter_texts(config, opened(server))
    filter_texts(config, opened(server))  # which finds its own there
    mix(config)
    assert carried(tmp_path / "corpus" / "mix.jsonl") == said.read_text()


@pytest.mark.parametrize("form", ["conversations", "messages"])
def test_what_a_trained_model_writes_carries_its_claim(
    canned: Server, settings: Any, tmp_path: Path, form: str
) -> None:
    model, chat = tmp_path / "run" / "model", {"form": form, "personas": 1}
    model.mkdir(parents=True)
    said = model.with_name("privacy.md")
    said.write_text("# Privacy of this run\n\nEpsilon = 3")
    config = settings(models={"generator": str(model)}, chat=chat, convert={"share": 1.0})
    server = canned(rules=[["", "1"]])
    write_chats(config, opened(server))
    assert carried(tmp_path / "corpus" / "chat.jsonl") == said.read_text()
    statement_of_file(tmp_path / "web.jsonl").write_text("# Privacy of this text\n\nEpsilon = 5")
    filter_texts(config, opened(server))
    convert_texts(config, opened(server))
    found = carried(tmp_path / "corpus" / "convert.jsonl")
    assert "Epsilon = 5" in found and found.endswith(said.read_text())


def test_columns_of_a_source_cannot_steer_the_terminal(settings: Any, tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps({"\x1b[2Jodd": "x", "y" * 10_000: "z"}))
    with pytest.raises(DataError, match=r"but '\\x1b\[2Jodd', 'yyy") as raised:
        filter_texts(settings(filter={"source": str(path)}), lambda: pytest.fail("opened"))
    assert str(raised.value).isprintable() and len(str(raised.value)) < 500


def test_a_stage_begun_with_other_settings_is_refused(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    server = canned(rules=[["", "1"]])
    filter_texts(settings(), opened(server))
    with pytest.raises(DataError, match=r"begun with filter\.words = 400, and now it is 7"):
        filter_texts(settings(filter={"words": 7}), opened(server))
    with pytest.raises(DataError, match=r"models\.generator = 'canned', and now it is 'other'"):
        filter_texts(settings(models={"generator": "other"}), opened(server))
    write_source(tmp_path / "web.jsonl", ["another corpus"])
    with pytest.raises(DataError, match=r"begun with filter\.source"):
        filter_texts(settings(), opened(server))


# Chat


def test_chains_have_distinct_receivers_and_topics_and_all_their_conversations(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    server = canned(rules=CHAIN)
    write_chats(settings(chat={"personas": 3}), opened(server))
    lines = rows(tmp_path / "corpus/chat.jsonl")
    about = Counter((line["draw"], line["receiver"], line["topic"]) for line in lines)
    assert about == Counter(
        (draw, who, what)
        for draw in range(3)
        for who in ("Mom", "Dad")
        for what in ("dinner", "a trip")
    )
    prompts = server.prompts()
    assert len(prompts) == len(set(prompts)) == 3 * (1 + 2 + 4)
    for line in lines:  # the seven variables are in the request for the conversation
        values = [*line["persona"], line["receiver"], line["topic"]]
        assert any(TALK in prompt and all(v in prompt for v in values) for prompt in prompts)
    body = server.stats()["asked"][0]
    assert (body["temperature"], body["top_k"]) == (0.2, 40)
    state = state_of(tmp_path / "corpus", "chat")
    assert state["open"] == [] and state["taken"] == 3
    assert state["counts"] == {
        "lists": 9, "conversations": 12, "answers": 21,
        "prompt_tokens": sum(len(prompt.split()) for prompt in prompts),
        "completion_tokens": 3 * 4 + 6 * 5 + 12 * 6,
    }  # fmt: skip


def test_lists_are_cut_to_their_most_and_more_personas_may_follow(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    server = canned(rules=CHAIN)
    for personas in (1, 2):
        config = settings(chat={"personas": personas, "receivers": 1, "topics": 1})
        write_chats(config, opened(server))
        assert len(rows(tmp_path / "corpus/chat.jsonl")) == personas
        assert len(server.prompts()) == 3 * personas


def test_wrong_lists_and_refusals_are_counted_and_end_their_chain(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    rules = [
        [RECEIVERS, "1. Mom\n2. Dad\n3. Bo"],
        ["to write to Mom. What might", "Sure, here is the list:"],
        ["to write to Dad. What might", "- dinner"],
        ["to write to Bo. What might", "- money"],
        ["about this: money", "I cannot help with that."],
        [TALK, "Me: hi\nDad: ok"],
    ]  # fmt: skip
    server = canned(
        rules=rules, faults=[{"kind": "withheld", "part": "about this: dinner", "times": -1}]
    )
    write_chats(settings(chat={"personas": 1}), opened(server))
    assert rows(tmp_path / "corpus/chat.jsonl") == []
    state = state_of(tmp_path / "corpus", "chat")
    assert state["open"] == []
    counts = {key: count for key, count in state["counts"].items() if "tokens" not in key}
    assert counts == {"lists": 3, "empty_lists": 1, "unread": 1, "failed": 1, "answers": 6}


def test_a_conversation_that_was_cut_says_so(canned: Server, settings: Any, tmp_path: Path) -> None:
    rules = [[RECEIVERS, "Mom"], [TOPICS, "food"], [TALK, "Me: hi you\nMom: ok fine\nMe: so I wan"]]
    server = canned(rules=rules)
    config = settings(chat={"personas": 1, "max_tokens": 5}, mix={"stages": "chat"})
    write_chats(config, opened(server))
    assert rows(tmp_path / "corpus/chat.jsonl")[0]["cut"] is True
    mix(config)
    assert [line["text"] for line in rows(tmp_path / "corpus/mix.jsonl")] == [
        "hi you",
        "ok fine",
    ]


# Convert


def test_a_share_of_the_filtered_texts_is_converted_and_more_when_there_are_more(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    server = canned(rules=[[JUDGE, "1"], *CHAIN])
    first = settings(filter={"limit": 10}, convert={"share": 0.5})
    with pytest.raises(DataError, match="no filtered text to convert"):
        convert_texts(first, opened(server))
    filter_texts(first, opened(server))
    convert_texts(first, opened(server))
    some = {tuple(line["of"]) for line in rows(tmp_path / "corpus/convert.jsonl")}
    assert 0 < len(some) < 10
    whole = settings(convert={"share": 0.5})
    filter_texts(whole, opened(server))
    convert_texts(whole, opened(server))
    lines = rows(tmp_path / "corpus/convert.jsonl")
    places = [tuple(line["of"]) for line in lines]
    assert some < set(places) and len(places) == len(set(places)) < 30
    prompts = [prompt for prompt in server.prompts() if CONVERT in prompt]
    assert len(prompts) == len(set(prompts)) == len(places)
    convert_texts(whole, lambda: pytest.fail("nothing is left to convert"))


def test_what_was_made_of_another_filter_is_not_taken_for_what_this_one_gives(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    """Begun again with a source of the same length: offsets and sizes fit, and mean other texts."""
    server = canned(rules=[[JUDGE, "1"], *CHAIN])
    config = settings(convert={"share": 1.0}, mix={"stages": "filter"})
    filter_texts(config, opened(server))
    convert_texts(config, opened(server))
    mix(config)
    folder = tmp_path / "corpus"
    size = (folder / "filter.jsonl").stat().st_size
    for name in ("filter.jsonl", "filter.state.json"):
        (folder / name).unlink()
    source = (tmp_path / "web.jsonl").read_text().replace("dogs", "cats")
    (tmp_path / "web.jsonl").write_text(source)
    filter_texts(config, opened(server))
    assert (folder / "filter.jsonl").stat().st_size == size
    with pytest.raises(DataError, match=r"convert.jsonl was begun with filter.jsonl begun as"):
        convert_texts(config, lambda: pytest.fail("asked"))
    mix(config)
    texts = {line["text"] for line in rows(folder / "mix.jsonl")}
    assert any("cats" in text for text in texts) and not any("dogs" in text for text in texts)


# Faults, kills


def test_a_server_that_goes_away_ends_a_stage_that_goes_on_later(
    canned: Server, settings: Any, tmp_path: Path
) -> None:
    rules = [["dogs", "1"], ["backlinks", "0"]]
    fault = {"kind": "status", "status": 500, "part": "number 2", "times": -1}
    down = canned(rules=rules, faults=[fault])
    config = settings(generation={"concurrency": 2})
    with pytest.raises(ServerError):
        filter_texts(config, opened(down, retries=0))
    asked = Counter(down.prompts())
    state = state_of(tmp_path / "corpus", "filter")
    assert state["until"] is None and state["open"]
    up = canned(rules=rules)
    filter_texts(config, opened(up))
    again = up.prompts()
    answered = {prompt for prompt in asked if "number 2" not in prompt}
    # The other request of the two at once may have been under way when the stage ended.
    assert len(answered & set(again)) <= 1 and len(again) == len(set(again))
    texts = [line["text"] for line in rows(tmp_path / "corpus/filter.jsonl")]
    state = state_of(tmp_path / "corpus", "filter")
    assert state["open"] == []
    counts = state["counts"]
    # A request alone that failed, while the server still answered others, is left out and counted.
    kept, failed = counts["kept"], counts.get("failed", 0)  # of dogs and of backlinks
    assert 20 - failed <= kept == len(texts) == len(set(texts)) <= 20
    assert kept + counts["rejected"] + failed == 30


KILLED = """
import sys
from contextlib import nullcontext
from privsyn_flower.config.public import PublicTextConfig
from privsyn_flower.app.public import corpus, journal
from privsyn_flower.text.serving.http_generator import OpenAIGenerator
journal.EVERY = 0.05
model = OpenAIGenerator(sys.argv[2], "canned", chat=True, stop=(), api_key_env="", progress=False)
config = PublicTextConfig.model_validate_json(sys.argv[1])
stage = {"filter": corpus.filter_texts, "chat": corpus.write_chats, "convert": corpus.convert_texts}
stage[sys.argv[3]](config, lambda: nullcontext(model))
"""


def kill_after(server: Canned, config: PublicTextConfig, stage: str, asked: int) -> None:
    """Begin a stage in a process of its own, and kill -9 it when so many requests have come."""
    arguments = [config.model_dump_json(), server.url, stage]
    process = subprocess.Popen([sys.executable, "-c", KILLED, *arguments])
    while len(server.prompts()) < asked:
        assert process.poll() is None, "the stage ended before it was killed"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["filter", "chat"])
def test_after_kills_nothing_that_was_answered_is_asked_again_and_nothing_is_lost(
    canned: Server, settings: Any, tmp_path: Path, stage: str
) -> None:
    """Two kills -9 in the middle; the result is that of one pass, and of one pass's price."""
    rules = [["dogs", "1"], ["backlinks", "0"], *CHAIN]
    server = canned(rules=rules, seconds=0.02)
    config = settings(chat={"personas": 5}, generation={"concurrency": 2})
    kill_after(server, config, stage, 8)
    kill_after(server, config, stage, 20)
    run = {"filter": filter_texts, "chat": write_chats}[stage]
    run(config, opened(server))
    asked = Counter(server.prompts())
    # A request that a kill met on its way was never answered: each kill may repeat two.
    repeated = {prompt: count for prompt, count in asked.items() if count > 1}
    assert sum(repeated.values()) - len(repeated) <= 4
    lines = rows(tmp_path / f"corpus/{stage}.jsonl")
    state = state_of(tmp_path / "corpus", stage)
    assert state["open"] == [] and state["lines"] == len(lines)
    if stage == "filter":
        assert len(asked) == state["counts"]["answers"] == 30
        assert len({line["text"] for line in lines}) == len(lines) == 20
    else:
        assert len(asked) == state["counts"]["answers"] == 5 * 7
        keys = {(line["draw"], line["receiver"], line["topic"]) for line in lines}
        assert len(keys) == len(lines) == 20
    calm = settings(folder=str(tmp_path / "calm"), chat={"personas": 5})
    run(calm, opened(server))
    in_one_go = rows(tmp_path / f"calm/{stage}.jsonl")
    assert sorted(line["text"] for line in in_one_go) == sorted(line["text"] for line in lines)
    other = state_of(tmp_path / "calm", stage)
    assert other["counts"] == state["counts"]
