"""A causal language model that measures itself on texts: tokens, right predictions, loss.

One base model stays in memory; public parameters (`parameters.py`) are laid over it for a while
and taken off again exactly. The model is the caller's own folder, in safetensors.
`Likelihoods`: of each of many public texts, without gradients.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.text.conditions import Pair, encode_pairs, encode_sources, encode_texts
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.batches import (
    IGNORED,
    SpecialTokens,
    bos_and_eos,
    causal_loss,
    class_loss,
    decoder_start,
    encode,
    next_tokens,
    pad_rows,
    seq2seq_loss,
    unknown_token,
    within_budget,
)
from privsyn_flower.text.models.devices import map_batches, one_worker, resolve_device
from privsyn_flower.text.models.parameters import DOWN, UP, Parameters
from privsyn_flower.text.models.pretrained import (
    ModelUnavailableError,
    auto_class,
    classes_in,
    encodes,
    load_model,
    load_tokenizer,
    local_folder,
)

if TYPE_CHECKING:
    import torch

BATCH_TOKENS = 2048  # padded tokens that go through the model at once


class Scorer:
    """A language model in float32 and its tokenizer. Raises ModelUnavailableError.

    encodes: it is an encoder-decoder, which learns pairs and measures no texts. classes: of a text
    classifier, which learns them alone; () of a language model.
    """

    def __init__(self, folder: Path, device: str) -> None:
        key = "downstream"
        if not any(folder.glob("*.safetensors")):
            raise ModelUnavailableError(f"{key} = {str(folder)!r} holds no *.safetensors file")
        self.device = resolve_device(device)
        self.tokenizer = load_tokenizer(folder, key)
        self.encodes, self.classes = encodes(folder), classes_in(folder)
        kind = auto_class(folder)
        self.model = load_model(kind, folder, key, self.device, "float32", safetensors=True)
        self._unknown = unknown_token(self.tokenizer)
        self._named = dict(self.model.named_parameters())
        self._busy = threading.Lock()

    @contextmanager
    def with_parameters(self, parameters: Parameters) -> Iterator[None]:
        """The base with these parameters on it (checked before), and the base exactly after."""
        import torch

        targets = {name.removesuffix(UP).removesuffix(DOWN) for name in parameters}
        targets |= set(parameters) & set(self._named)
        with self._busy, torch.no_grad():
            kept = {name: self._named[name].clone() for name in targets if name in self._named}
            try:
                for name, value in kept.items():
                    self._named[name].copy_(self._worn(name, value, parameters))
                yield
            finally:
                for name, value in kept.items():
                    self._named[name].copy_(value)

    def _worn(self, name: str, base: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        import torch

        def tensor(key: str) -> torch.Tensor:
            return torch.tensor(parameters[key], dtype=torch.float32, device=self.device)

        if name in parameters:
            return tensor(name)
        if name + UP in parameters:
            return base + tensor(name + UP) @ tensor(name + DOWN)
        return base

    def encode(
        self,
        texts: Sequence[str],
        *,
        max_tokens: int,
        length: int,
        special_tokens: SpecialTokens = "tokenizer",
    ) -> list[list[int]]:
        """One user's texts -> ids, in order, until max_tokens tokens are to be predicted.

        A text is tokenised once and cut to `length` tokens, the special ones counted (see
        `batches.encode`); a row of n has n - 1 to predict.
        """
        rows: list[list[int]] = []
        left = max_tokens
        for text in texts:
            if left == 0:
                break
            (row,) = encode(self.tokenizer, [text], min(length, left + 1), special_tokens)
            self.check(row)
            if len(row) > 1:
                rows.append(row)
                left -= len(row) - 1
        return rows

    def encode_pairs(
        self, pairs: Sequence[Pair], *, length: int, max_source: int
    ) -> list[tuple[list[int], int]]:
        """(ids, leading) of each pair: a condition of at most max_source tokens, then a text of at
        most `length`, with its end. leading: the condition's tokens, which carry no loss."""
        if not self.encodes:
            return encode_pairs(self.tokenizer, pairs, length, max_source)
        sources = encode_sources(self.tokenizer, [pair.condition for pair in pairs], max_source)
        targets = encode_texts(self.tokenizer, [pair.text for pair in pairs], length)
        return [(one + two, len(one)) for one, two in zip(sources, targets, strict=True)]

    def loss(self, rows: Sequence[tuple[Sequence[int], int]], max_source: int = 0) -> torch.Tensor:
        """Mean loss in nats over the rows' tokens but for the leading ones of each, with its graph
        of gradients where there are any.

        max_source: tokens that every row's leading ones cost the time of, however many there are.
        A classifier's row ends with the number of its class, which alone has a loss.
        """
        if self.classes:
            return class_loss(self.model, rows)
        if self.encodes:
            start = decoder_start(self.tokenizer, self.model.config)
            return seq2seq_loss(self.model, rows, start, max_source)
        least = width_of(rows, max_source)
        ids, mask = pad_rows([row for row, _ in rows], 0, least)  # after what is looked at
        leading = [before for _, before in rows]
        return causal_loss(self.model, ids.to(self.device), mask.to(self.device), leading)

    def mean_loss(self, rows: Sequence[tuple[Sequence[int], int]]) -> float:
        """`loss` of some rows, without what training needs of it."""
        import torch

        with one_worker(), torch.inference_mode():
            return float(self.loss(rows))

    def check(self, row: Sequence[int]) -> None:
        """Raises ValueError for a token beyond the embeddings: on CUDA it would break the model for
        everybody."""
        known = self.model.get_input_embeddings().num_embeddings
        if max(row, default=0) >= known:
            raise ValueError(f"token {max(row)} is beyond the model's {known} embeddings")

    def rehearse(self, length: int) -> None:
        """Score a full batch of sequences of `length` made-up tokens; raises what that raises.

        So that a question which needs too much memory fails for every text, or for none.
        """
        self.sums([[0] * length] * max(1, BATCH_TOKENS // length), 1.0)

    def sums(self, rows: Sequence[Sequence[int]], max_loss: float) -> tuple[int, float]:
        """One user's rows -> right predictions, and nats with each token's cut at max_loss.

        A batch holds rows of this user only, so that nobody else's text can change a digit.
        """
        import torch

        if self.encodes or self.classes:
            what = "a text classifier" if self.classes else "an encoder-decoder model"
            raise ValueError(f"{what} does not measure texts by themselves")
        correct, nats = 0, 0.0
        for batch in within_budget(rows, BATCH_TOKENS, len):
            ids, mask = pad_rows(batch, 0)  # padding comes after all that is looked at
            ids, mask = ids.to(self.device), mask.to(self.device)
            with one_worker(), torch.inference_mode():
                logits, targets, _ = next_tokens(self.model, ids, mask)
                losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
                right = logits.argmax(dim=-1) == targets
                if self._unknown is not None:  # nobody has named the word
                    right &= targets != self._unknown
                correct += int(right.sum())
                nats += float(losses.double().clamp(0.0, max_loss).sum())
        return correct, nats


def width_of(rows: Sequence[tuple[Sequence[int], int]], max_source: int) -> int:
    """Tokens of a row of a batch, ids and how many of them lead: as many as the longest, and as if
    max_source led each, so that it tells nothing of how many do."""
    return max(max(len(row), max_source + len(row) - leading) for row, leading in rows)


def base_folder(name: str) -> Path:
    """The folder of a base model: the folder itself, or a hub model that is on this machine.

    Nothing is fetched. Raises ModelUnavailableError.
    """
    from huggingface_hub import snapshot_download

    try:
        return local_folder(name, "downstream") or Path(
            snapshot_download(name, local_files_only=True)
        )
    except (OSError, ValueError) as error:
        raise ModelUnavailableError(
            f"downstream = {name!r} is no model folder, and no hub model on this machine"
        ) from error


def check_special_tokens(folder: Path, special_tokens: SpecialTokens) -> None:
    """Raises ValueError where the folder's tokenizer has no such tokens."""
    if special_tokens == "bos-eos":
        bos_and_eos(load_tokenizer(folder, "downstream"))


def load_scorer(folder: Path, device: str) -> Scorer:
    """The scorer of a folder; the last one stays loaded for as long as its files do not change."""
    return _load(folder, folder_fingerprint(folder), device)


@functools.lru_cache(maxsize=1)
def _load(folder: Path, _fingerprint: str, device: str) -> Scorer:
    return Scorer(folder, device)


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
        room = self._entries // int(self._scorer.model.config.vocab_size)  # padded tokens at once
        batches = list(within_budget(order.tolist(), room, lambda place: int(lengths[place])))
        found = np.full(len(rows), np.nan)
        sums = map_batches(
            lambda places: self._nats([rows[place] for place in places]),
            batches,
            self._scorer.device,
        )
        for places, nats in zip(batches, sums, strict=True):
            found[places] = -nats / (lengths[places] - 1)
        return found

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
