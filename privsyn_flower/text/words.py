"""Words as the keyboard's LSTM reads them, and a vocabulary of them, without any model.

The same library and the same steps as `models.lstm.word_tokenizer`: the units of `units`, Unicode's
composed form, lower case, runs of letters and digits, and runs of marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from privsyn_flower.files import DataError
from privsyn_flower.units import spaced

BLOCK = 1024  # texts that are read at once: all that is in memory of a stream
UNKNOWN = "<unk>"


class Vocabulary:
    """Distinct words in their order, and the texts that are made of them.

    words: repeated ones count once. A word that no text can give, because it has capitals or the
    tokenizer cuts it ("don't" is three words), stays and is never found (`unreachable`). Raises
    ValueError without words.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words: Sequence[str] = list(dict.fromkeys(words))
        if not self.words:
            raise ValueError("a vocabulary needs at least one word")
        self._tokenizer = _tokenizer(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def ids(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Texts, as a stream -> the places of each one's words; -1: of none of the vocabulary."""
        stream = iter(texts)
        while block := list(islice(stream, BLOCK)):
            for encoded in self._tokenizer.encode_batch_fast([spaced(text) for text in block]):
                yield [number - 1 for number in encoded.ids]

    def unreachable(self) -> list[str]:
        """Words that no text gives, in their order."""
        found = self.ids(self.words)
        return [
            word
            for place, (word, ids) in enumerate(zip(self.words, found, strict=True))
            if ids != [place]
        ]


def read_vocabulary(path: Path) -> Vocabulary:
    """A text file with a word on each line, or the folder of a word-level model.

    A model's special words (<unk>, <s>, ...) are not among them. Raises DataError for neither, and
    OSError.
    """
    if path.is_dir():
        return Vocabulary(_of_model(path / "tokenizer.json"))
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
        return Vocabulary(word for line in lines if (word := line.strip()))
    except (UnicodeDecodeError, ValueError) as error:
        what = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else "holds no word"
        raise DataError(f"{path} {what}: name a text file with a word on each line") from None


def _of_model(path: Path) -> list[str]:
    """The words of a tokenizer's file, by number, without the special ones."""
    problem = DataError(
        f"{path.parent} is a folder without the tokenizer.json of a word-level model: name such a "
        "folder, or a text file with a word on each line"
    )
    try:
        tree: Any = json.loads(path.read_text(encoding="utf-8"))
        if tree["model"]["type"] != "WordLevel":
            raise problem
        numbers: dict[str, int] = tree["model"]["vocab"]
        special = {token["content"] for token in tree["added_tokens"] if token["special"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise problem from None
    return [word for word in sorted(numbers, key=numbers.__getitem__) if word not in special]


def _tokenizer(words: Sequence[str]) -> Any:
    """A tokenizer of the library: number 0 for what is unknown, from 1 on the words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    # No text gives UNKNOWN as one word: it is cut at its marks.
    numbers = {UNKNOWN: 0} | {word: place for place, word in enumerate(words, 1) if word != UNKNOWN}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer
