"""The mix of the stages' texts, and coverage by the words that the keyboard's LSTM reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.public import journal as journals
from privsyn_flower.app.public.journal import Journal, read_state
from privsyn_flower.app.public.mixing import find_occurrences, measure_coverage, mix, write_report
from privsyn_flower.common.files import DataError
from privsyn_flower.config.public import PublicTextConfig
from privsyn_flower.runs import read_jsonl
from privsyn_flower.text.words import Vocabulary, read_vocabulary
from tests.rigs.users import write_jsonl


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A corpus of 20 filtered texts of two sentences, and 10 conversations of two turns."""
    folder = tmp_path / "corpus"
    with Journal(folder, "filter", {}) as journal:
        for i in range(20):
            journal.add({"text": f"First of {i % 15}. Second!", "stage": "filter"})
    with Journal(folder, "chat", {}) as journal:
        for i in range(10):
            journal.add({"text": f"Me: hello {i}\nMom: well", "stage": "chat"})
    return folder


def mixed(folder: Path, **table: Any) -> list[tuple[str, str]]:
    table.setdefault("stages", "filter,chat")
    mix(PublicTextConfig.model_validate({"folder": str(folder), "mix": table}))
    return [(line["stage"], line["text"]) for line in read_jsonl(folder / "mix.jsonl")]


def test_the_mix_has_every_sentence_and_turn_and_its_beginnings_have_all_stages(made: Path) -> None:
    found = mixed(made)
    filtered = [text for i in range(20) for text in (f"First of {i % 15}.", "Second!")]
    assert [text for stage, text in found if stage == "filter"] == filtered
    said = [text for i in range(10) for text in (f"hello {i}", "well")]
    assert [text for stage, text in found if stage == "chat"] == said
    for length in range(6, len(found)):  # 40 to 20 examples, two at a time
        share = sum(stage == "chat" for stage, _ in found[:length]) / length
        assert abs(share - 1 / 3) <= 2.5 / length
    report = write_report(made)["stages"]["mix"]
    assert report["complete"] and report["texts"] == 60
    assert report["bytes"] == (made / "mix.jsonl").stat().st_size
    counts = report["counts"]
    assert (counts["filter_texts"], counts["filter_examples"], counts["chat_examples"]) == (
        20,
        40,
        20,
    )
    assert counts["filter_bytes"] + counts["chat_bytes"] == report["bytes"]


def test_whole_texts_repeats_and_limits(made: Path) -> None:
    assert mixed(made, examples="texts", stages="chat")[3] == ("chat", "Me: hello 3\nMom: well")
    assert len(mixed(made, examples="texts", stages="filter", repeats="remove")) == 15
    assert len(mixed(made, limit=7)) == 7
    state = read_state(made, "mix")
    assert state is not None and state["until"] == 7
    assert sorted(path.name for path in made.iterdir() if "mixing" in path.name) == [".mixing.lock"]


def test_the_mix_stays_until_its_texts_change(made: Path) -> None:
    mixed(made)
    before = (made / "mix.jsonl").stat()
    mixed(made)
    after = (made / "mix.jsonl").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    with Journal(made, "chat", {}) as journal:
        journal.add({"text": "Me: one more\nMom: good", "stage": "chat"})
    assert ("chat", "one more") in mixed(made)


def test_a_mix_that_is_not_ours_is_left_alone(made: Path) -> None:
    (made / "mix.jsonl").write_text("mine\n")
    with pytest.raises(DataError, match=r"nothing tells .* move it away"):
        mixed(made)
    assert (made / "mix.jsonl").read_text() == "mine\n"
    (made / "mix.jsonl").unlink()
    mixed(made)
    whole = (made / "mix.jsonl").read_bytes()
    # Killed between the names of the state and of the file, and then asked for another mix.
    (made / "mix.jsonl").rename(made / "mixing.jsonl")
    assert len(mixed(made, limit=7)) == 7
    mixed(made)
    assert (made / "mix.jsonl").read_bytes() == whole


@pytest.mark.parametrize("repeats", ["keep", "remove"])
def test_a_mix_that_was_killed_anywhere_goes_on_to_the_same_file(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: str
) -> None:
    mixed(made, repeats=repeats)
    whole = (made / "mix.jsonl").read_bytes()
    (made / "mix.jsonl").unlink()
    (made / "mix.state.json").unlink()
    monkeypatch.setattr(journals, "EVERY", 0.0)  # a state after every text
    add = Journal.add
    for _ in range(4):  # each in the middle of a text, or between two
        left = iter(range(11))

        def dies(journal: Journal, line: Any, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            add(journal, line)

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "add", dies)
            patch.setattr(Journal, "__exit__", lambda self, *_: self._left.close())  # no last state
            with pytest.raises(KeyboardInterrupt):
                mixed(made, repeats=repeats)
        assert not (made / "mix.jsonl").exists()
    mixed(made, repeats=repeats)
    assert (made / "mix.jsonl").read_bytes() == whole


def test_a_stage_without_text_is_named(made: Path) -> None:
    with pytest.raises(DataError, match=r"names 'convert', and .* run `privsyn public convert`"):
        mixed(made, stages="chat,convert")


def test_coverage_is_of_what_a_model_is_trained_on(made: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("first\nhello\nme\nbacklinks\nWell\n")
    web = write_jsonl(tmp_path / "web.jsonl", [{"text": "backlinks first"}])
    mixed(made)
    tables = {"filter": {"source": str(web)}, "vocabulary": str(tmp_path / "words.txt")}
    config = PublicTextConfig.model_validate({"folder": str(made), **tables})
    found = measure_coverage(config, source=True)
    shares = {"filter": 0.2, "chat": 0.2, "mix": 0.4, "source": 0.4}
    assert found == {"words": 5, "unreachable": 1, "shares": pytest.approx(shares)}
    assert write_report(made)["coverage"] == found


# Coverage


WORDS = ["hello", "mom", "!", "café", "don"]


def coverage(texts: Iterable[str], vocabulary: Vocabulary) -> float:
    """The share of the vocabulary's words that occur in the texts."""
    return len(find_occurrences(texts, vocabulary)) / len(vocabulary)


def test_the_share_of_words_that_occur() -> None:
    vocabulary = Vocabulary(WORDS)
    assert coverage([" ".join(WORDS)], vocabulary) == 1.0
    assert coverage(["Hello, MOM", "hello again"], vocabulary) == pytest.approx(2 / 5)
    assert coverage(["Cafe\u0301"], vocabulary) == pytest.approx(1 / 5)  # composed and lower-case
    assert coverage([], vocabulary) == 0.0


def test_words_that_no_text_gives_are_known_and_never_covered() -> None:
    vocabulary = Vocabulary(["a", "Hello", "don't", "<unk>", "a"])
    assert list(vocabulary.words) == ["a", "Hello", "don't", "<unk>"]
    assert vocabulary.unreachable() == ["Hello", "don't", "<unk>"]
    assert coverage(["a Hello don't <unk>"], vocabulary) == pytest.approx(1 / 4)


def test_reading_ends_when_every_word_was_seen() -> None:
    def texts() -> Iterator[str]:
        yield "one Two"
        for number in range(5000):
            yield f"three {number}"
        raise AssertionError("read on")

    assert coverage(texts(), Vocabulary(["one", "two", "TWO", "three"])) == pytest.approx(3 / 4)


def test_the_words_are_those_of_the_lstms_tokenizer() -> None:
    """On every character up to U+3000, between two letters and by itself."""
    from privsyn_flower.text.models.batches import encode
    from privsyn_flower.text.models.lstm import word_tokenizer

    text = [
        "".join(f"a{chr(c)}b {chr(c)} " for c in range(start, start + 64))
        for start in range(0, 0x3000, 64)
    ]
    tokenizer = word_tokenizer(text, 50_000)
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)[4:]
    vocabulary = Vocabulary(words)
    assert len(vocabulary) >= 9_000 and coverage(text, vocabulary) == 1.0
    ids = [[number - 4 for number in row[1:]] for row in encode(tokenizer, text, 10**6)]
    assert list(vocabulary.ids(text)) == ids


def test_a_vocabulary_from_a_file_and_from_a_models_folder(tmp_path: Path) -> None:
    from privsyn_flower.text.models.lstm import word_tokenizer

    listed = tmp_path / "words.txt"
    listed.write_text("\ufeffmom\nhello\n\nmom\n", encoding="utf-8")
    assert list(read_vocabulary(listed).words) == ["mom", "hello"]
    word_tokenizer(["hello hello mom"], 10).save_pretrained(tmp_path / "model")
    assert list(read_vocabulary(tmp_path / "model").words) == ["hello", "mom"]


def test_what_is_no_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    for name, what in (("empty.txt", "holds no word"), ("binary.txt", "is not UTF-8")):
        with pytest.raises(DataError, match=what):
            read_vocabulary(tmp_path / name)
    with pytest.raises(DataError, match=r"without the tokenizer\.json"):
        read_vocabulary(tmp_path)
