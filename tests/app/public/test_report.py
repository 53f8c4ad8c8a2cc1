"""Coverage of a vocabulary, by the words that the keyboard's LSTM reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from privsyn_flower.app.public.mixing import find_occurrences
from privsyn_flower.common.files import DataError
from privsyn_flower.text.words import Vocabulary, read_vocabulary

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
