"""Token batches for small models: cut by a token budget, similar lengths together; their losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from privsyn_flower.common.arrays import I64
from privsyn_flower.common.units import spaced

if TYPE_CHECKING:
    import torch

Row = TypeVar("Row")
SpecialTokens = Literal["tokenizer", "bos-eos"]

WINDOW = 4096  # texts sorted by length at a time: little padding, still a shuffled order
IGNORED = -100  # label of a position that carries no loss


def encode(
    tokenizer: Any, texts: Sequence[str], length: int, special_tokens: SpecialTokens = "tokenizer"
) -> list[list[int]]:
    """Texts -> ids, tokenised once, cut to `length`.

    special_tokens: what the tokenizer itself puts around a text, or one BOS before it and one EOS
    behind it, as PrE-Text's and POPri's code for DistilGPT2 (a cut text has no EOS; one without a
    token is empty). Raises ValueError as `bos_and_eos` does.
    """
    if not texts:
        return []
    given, own = as_read(tokenizer, texts), special_tokens == "tokenizer"
    rows: list[list[int]] = tokenizer(
        given, add_special_tokens=own, truncation=True, max_length=length
    )["input_ids"]
    if own:
        return rows
    bos, eos = bos_and_eos(tokenizer)
    return [[bos, *ids, eos][:length] if ids else [] for ids in rows]


def bos_and_eos(tokenizer: Any) -> tuple[int, int]:
    """Both ids. Raises ValueError for a tokenizer that lacks one."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if bos is None or eos is None:
        raise ValueError(
            "evaluation.special-tokens = 'bos-eos': the tokenizer of models.downstream has no BOS "
            "or no EOS; set it to 'tokenizer'"
        )
    return bos, eos


def as_read(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Texts as the tokenizer takes them: one of words knows them by the spaces between them."""
    return [spaced(text) for text in texts] if getattr(tokenizer, "units", 0) else list(texts)


def unknown_token(tokenizer: Any) -> int | None:
    """The id that stands for every word outside of the vocabulary; None where all can be spelled.

    GPT-2's tokenizer names its end-of-text token so, and never writes it for a word.
    """
    other = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    unknown: int | None = tokenizer.unk_token_id
    return None if unknown in other else unknown


def token_batches(lengths: Sequence[int] | I64, budget: int, rng: np.random.Generator) -> list[I64]:
    """Row numbers of one epoch's batches, each of at most `budget` padded tokens.

    Every row appears once; a row longer than the budget gets a batch of its own.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    order = rng.permutation(len(sizes))
    batches: list[I64] = []
    for start in range(0, len(order), WINDOW):
        window = order[start : start + WINDOW]
        window = window[np.argsort(sizes[window], kind="stable")]
        first = 0
        for i in range(len(window)):
            if i > first and int(sizes[window[i]]) * (i - first + 1) > budget:
                batches.append(window[first:i])
                first = i
        batches.append(window[first:])
    return [batches[i] for i in rng.permutation(len(batches))]


def longest_first(lengths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Places of rows in batches of at most `width`: what needs most memory fails at once."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    for first in range(0, len(order), width):
        yield order[first : first + width]


def within_budget(
    rows: Sequence[Row], budget: int, size: Callable[[Row], int]
) -> Iterator[list[Row]]:
    """Rows in order, in batches of at most `budget` padded tokens; a longer row alone."""
    batch: list[Row] = []
    widest = 0
    for row in rows:
        if batch and max(widest, size(row)) * (len(batch) + 1) > budget:
            yield batch
            batch, widest = [], 0
        batch.append(row)
        widest = max(widest, size(row))
    if batch:
        yield batch


def pad_rows(
    rows: Sequence[Sequence[int]], pad: int, least: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """n rows -> ids (n, l) padded on the right, and an attention mask (n, l) of 0 and 1.

    l is the longest row's length, or `least` where that is more.
    """
    import torch

    length = max(least, *(len(row) for row in rows))
    ids = np.full((len(rows), length), pad, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def causal_loss(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, leading: Sequence[int] | None = None
) -> torch.Tensor:
    """Mean next-token cross-entropy in nats over the positions that `mask` (n, l) attends to.

    leading: how many first tokens of each row carry no loss (a prompt's); None: none of them.
    """
    import torch

    logits, targets, _ = next_tokens(model, ids, mask, leading)
    return torch.nn.functional.cross_entropy(logits, targets)


def next_tokens(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, leading: Sequence[int] | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (p, v) float32 of the p positions that have a loss, their targets (p,), and which
    positions these are (n, l - 1).

    Nothing else is scored: of a large vocabulary that is most of the memory.
    """
    labels = causal_labels(ids, mask, leading)
    wanted = labels != IGNORED
    own = getattr(model, "module", model)  # what several processes wrap
    head = own.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, :-1][wanted],))
    try:
        logits = model(input_ids=ids, attention_mask=mask).logits
    finally:
        hook.remove()
    return logits.float(), labels[wanted], wanted


def causal_labels(
    ids: torch.Tensor, mask: torch.Tensor, leading: Sequence[int] | None = None
) -> torch.Tensor:
    """The tokens (n, l - 1) that are to be predicted; IGNORED where there is no loss."""
    import torch

    labels = ids.masked_fill(mask == 0, IGNORED)
    if leading is not None:
        first = torch.tensor(list(leading), device=ids.device)[:, None]
        labels = labels.masked_fill(torch.arange(ids.shape[1], device=ids.device) < first, IGNORED)
    return labels[:, 1:]


def class_loss(model: Any, rows: Sequence[tuple[Sequence[int], int]]) -> torch.Tensor:
    """Mean cross-entropy in nats of the rows' classes. rows: ids, the last of which is the number
    of a class. Padded as the model's configuration says: some find a text's end by it."""
    import torch

    ids, mask = pad_rows([row[:-1] for row, _ in rows], model.config.pad_token_id or 0)
    ids, mask = ids.to(model.device), mask.to(model.device)
    classes = torch.tensor([row[-1] for row, _ in rows], device=model.device)
    logits = model(input_ids=ids, attention_mask=mask).logits.float()
    return torch.nn.functional.cross_entropy(logits, classes)


def decoder_start(tokenizer: Any, config: Any) -> int:
    """The token that the decoder starts from: the tokenizer's first of a text where it has one, as
    in CTCL's released code, else the model's own. Raises ValueError for a model without one."""
    # A configuration has the attribute only where its file has it.
    for token in (tokenizer.bos_token_id, getattr(config, "decoder_start_token_id", None)):
        if token is not None:
            return int(token)
    raise ValueError(f"{config.name_or_path!r} names no decoder_start_token_id")


def seq2seq_inputs(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], first: int, least: int = 0
) -> dict[str, torch.Tensor]:
    """An encoder-decoder's inputs, and the targets' tokens as labels (n, l), IGNORED in padding.

    The encoder reads the sources, padded to `least` tokens; the decoder `first` and the target's
    tokens but the last.
    """
    ids, mask = pad_rows(sources, 0, least)
    wanted, there = pad_rows(targets, 0)
    read, _ = pad_rows([[first, *target[:-1]] for target in targets], 0)
    labels = wanted.masked_fill(there == 0, IGNORED)
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": read, "labels": labels}


def seq2seq_loss(
    model: Any, rows: Sequence[tuple[Sequence[int], int]], first: int, least: int = 0
) -> torch.Tensor:
    """Mean cross-entropy in nats over the targets' tokens. rows: ids, and how many of them are the
    source's. least: tokens that sources are padded to."""
    import torch

    sources, targets = [ids[:n] for ids, n in rows], [ids[n:] for ids, n in rows]
    inputs = seq2seq_inputs(sources, targets, first, least)
    inputs = {name: part.to(model.device) for name, part in inputs.items()}
    labels = inputs.pop("labels")
    logits = model(**inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED
    )
