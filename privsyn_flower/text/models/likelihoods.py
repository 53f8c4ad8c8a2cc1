"""How likely a causal language model finds each of many texts; public text, no gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.text.models.batches import IGNORED, encode, pad_rows, unknown_token
from privsyn_flower.text.models.devices import map_batches
from privsyn_flower.text.models.lm_metrics import Scorer

TOKEN_CHARACTERS = 64  # of a text's tokens on average; what is beyond them is not tokenised
# Entries of the scores that are held for one batch: rows times tokens times words. On a CPU more of
# them are slower: the system takes memory of that size back after each batch, and has to clear it.
ON_CPU, ON_DEVICE = 1 << 22, 1 << 27


class Likelihoods:
    """A causal language model that texts are measured by.

    Raises ModelUnavailableError for a folder that is none, ValueError for an encoder-decoder.
    """

    def __init__(self, folder: Path, device: str = "auto") -> None:
        self._scorer = Scorer(folder, device)
        if self._scorer.encodes:
            raise ValueError(
                f"{folder} is an encoder-decoder, which does not measure texts by themselves: "
                "name a causal language model"
            )
        self.tokenizer = self._scorer.tokenizer
        self._entries = ON_CPU if self._scorer.device == "cpu" else ON_DEVICE

    def encode(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """n texts -> n rows of at most `length` ids, with the tokenizer's own special ones. A text
        is to have been cut to `length * TOKEN_CHARACTERS` characters."""
        rows = encode(self.tokenizer, texts, length)
        for row in rows:
            self._scorer.check(row)
        return rows

    def means(self, rows: Sequence[Sequence[int]]) -> F64:
        """n rows -> (n,) mean log-likelihood of a row's tokens but the first, natural logarithm;
        NaN for a row of fewer than two, in which nothing is predicted."""
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        order = np.argsort(lengths, kind="stable")
        order = order[lengths[order] > 1]
        batches = self._batches(order.tolist(), lengths)
        found = np.full(len(rows), np.nan)
        sums = map_batches(
            lambda places: self._nats([rows[place] for place in places]),
            batches,
            self._scorer.device,
        )
        for places, nats in zip(batches, sums, strict=True):
            found[places] = -nats / (lengths[places] - 1)
        return found

    def _batches(self, order: Sequence[int], lengths: Any) -> list[list[int]]:
        """Rows from short to long, together as long as their scores fit; one at least."""
        words = int(self._scorer.model.config.vocab_size)
        batches: list[list[int]] = []
        for place in order:
            full = batches and (len(batches[-1]) + 1) * int(lengths[place]) * words > self._entries
            if full or not batches:
                batches.append([])
            batches[-1].append(place)
        return batches

    def _nats(self, rows: Sequence[Sequence[int]]) -> F64:
        """b rows -> (b,) nats of the tokens that are predicted."""
        import torch

        ids, mask = pad_rows(rows, 0)  # padding comes after all that is looked at
        ids, mask = ids.to(self._scorer.device), mask.to(self._scorer.device)
        with torch.inference_mode():
            logits = self._scorer.model(input_ids=ids, attention_mask=mask).logits.float()
            # Shifted labels, not shifted scores, which would be copied.
            targets = torch.full_like(ids, IGNORED)
            targets[:, :-1] = ids.masked_fill(mask == 0, IGNORED)[:, 1:]
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
            )  # 0 where nothing is predicted
            nats: F64 = losses.view(ids.shape).double().sum(dim=1).cpu().numpy()
        return nats


def unknown_rates(tokenizer: Any, rows: Sequence[Sequence[int]]) -> F64:
    """n rows of ids -> (n,) share of a text's own tokens that the vocabulary does not have.

    0 where everything can be spelled; NaN for a text without tokens.
    """
    lengths = [len(row) for row in rows]
    flat = np.fromiter((token for row in rows for token in row), dtype=np.int64, count=sum(lengths))
    owner = np.repeat(np.arange(len(rows)), lengths)
    unknown = unknown_token(tokenizer)
    added = [token for token in tokenizer.all_special_ids if token != unknown]
    own = np.bincount(owner[~np.isin(flat, added)], minlength=len(rows))
    missing = np.zeros(len(rows))
    if unknown is not None:
        missing = np.bincount(owner[flat == unknown], minlength=len(rows)).astype(np.float64)
    rates: F64 = np.divide(missing, own, out=np.full(len(rows), np.nan), where=own > 0)
    return rates


def same_tokenizer(one: Any, other: Any) -> bool:
    """Whether two tokenizers that were just loaded turn every text into the same ids."""
    if one.get_vocab() != other.get_vocab():
        return False
    if not (one.is_fast and other.is_fast):
        return True  # no more can be told of tokenizers in Python
    return bool(one.backend_tokenizer.to_str() == other.backend_tokenizer.to_str())
