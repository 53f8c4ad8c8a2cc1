"""Paraphrases with clipped logits: DP-Prompt (Utpala, Hooker and Chen, EMNLP Findings 2023).

The prompt is theirs, "Document: ... Paraphrase of the document:". Every token is drawn in
proportion to exp(u / T) of logits u that are clipped to [low, high], and nothing else may depend on
the text: no nucleus, no stop string, no second attempt, and at most `max_tokens` tokens. So a token
is a draw of the exponential mechanism that costs 2 (high - low) / T, and a text at most
`max_tokens` times that (`privacy.baseline.LocalParaphrases`).

The sampling loops are our own: `generate` of the library takes further settings from a model's
folder (nucleus, penalties, forced tokens), any of which would void the claim.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from privsyn_flower.common.arrays import F32, I64
from privsyn_flower.text.generators import KEY, HuggingFaceGenerator
from privsyn_flower.text.models.decoding import choose_tokens
from privsyn_flower.text.models.pretrained import SEQ2SEQ, model_config

if TYPE_CHECKING:
    import torch

LONGEST = 1 << 20  # a tokenizer's limit beyond this is none


def paraphrase_prompt(text: str) -> str:
    """A document -> the question for its paraphrase, on two lines."""
    return f"Document: {' '.join(text.split())}\nParaphrase of the document:"


def load_paraphraser(model: str | os.PathLike[str], **options: Any) -> Paraphraser:
    """Of a causal model, or of an encoder with a decoder (Flan-T5 in the paper).

    model: folder or hub name. options: max_tokens, batch_size, device and progress, as of
    `HuggingFaceGenerator`. Raises ModelUnavailableError.
    """
    whole = getattr(model_config(model, KEY), "is_encoder_decoder", False)
    return (Seq2SeqParaphraser if whole else Paraphraser)(model, **options)


class Paraphraser(HuggingFaceGenerator):
    """Draws paraphrases under clipped logits. options: as `load_paraphraser`."""

    clip: tuple[float, float] = (0.0, 0.0)

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(model, stop=(), **options)

    def after(self, prompt: str, prefix: list[int]) -> torch.Tensor:
        """Logits (len(prefix) + 1, v) of the tokens after the prompt, and prefix[:1], [:2] ..."""
        import torch

        ids = [*self.tokenizer(prompt)["input_ids"], *prefix][-self._context :]
        logits: torch.Tensor = self.model(torch.tensor([ids], device=self.device)).logits[0]
        return logits[-len(prefix) - 1 :]

    def _tell_cut(self, encoded: Sequence[Sequence[int]], room: int) -> None:
        """Nothing: how many texts are long is PRIVATE, and epsilon does not cover it."""

    def paraphrase(
        self,
        texts: Sequence[str],
        *,
        low: float,
        high: float,
        temperature: float,
        rng: np.random.Generator,
    ) -> list[str]:
        """n texts -> n paraphrases, in order; all randomness comes from `rng`.

        Raises ValueError unless low < high and temperature > 0.
        """
        if not (low < high and temperature > 0):
            raise ValueError(
                f"{low=} must be below {high=}, and {temperature=} above 0: otherwise a draw costs "
                "more than 2 (high - low) / temperature, or says nothing"
            )
        self.clip, self.temperature = (low, high), temperature
        prompts = [paraphrase_prompt(text) for text in texts]
        return [drawn for (drawn,) in self.complete(prompts, 1, rng)]

    def choose(self, logits: torch.Tensor, uniforms: F32, seen: I64 | None = None) -> I64:
        """(r, v), (r,) -> (r,) drawn tokens; logits are clipped first, NaN is the lower end.

        seen: not looked at; a repetition penalty would widen the range that epsilon counts with.
        """
        import torch

        low, high = self.clip
        tokens: I64 = (
            choose_tokens(
                torch.nan_to_num(logits.float(), nan=low).clamp(low, high),
                torch.from_numpy(uniforms).to(logits.device),
                temperature=self.temperature,
                banned=self._banned,
            )
            .cpu()
            .numpy()
        )
        return tokens

    def logit_range(self, texts: Sequence[str]) -> tuple[float, float]:
        """The lowest and the highest logit over PUBLIC texts, each shown with itself as paraphrase.

        Of the tokens that may be drawn, at the places of the paraphrase. Raises ValueError without
        a text.
        """
        import torch

        lowest, highest = np.inf, -np.inf
        for text in texts:
            said = self.tokenizer(f" {text}", add_special_tokens=False)["input_ids"]
            with torch.inference_mode():
                logits = self.after(paraphrase_prompt(text), said[: self.max_tokens - 1])
            allowed = logits[:, ~self._banned].float()
            lowest = min(lowest, float(allowed.min()))
            highest = max(highest, float(allowed.max()))
        if not lowest < highest:
            raise ValueError(f"{len(texts)} public texts: no range of logits to clip to")
        return lowest, highest


class Seq2SeqParaphraser(Paraphraser):
    """An encoder that reads the prompt, and a decoder that writes the paraphrase."""

    auto_class = SEQ2SEQ

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(model, thinking_tag="", **options)
        self.tokenizer.truncation_side = "left"  # the end of the prompt says what to do
        self._longest = min(int(self.tokenizer.model_max_length), LONGEST)
        first = getattr(self.model.config, "decoder_start_token_id", None)
        if first is None:
            raise ValueError(f"{model} names no decoder_start_token_id in its config.json")
        self._first = int(first)

    @property
    def first(self) -> int:
        return self._first

    def after(self, prompt: str, prefix: list[int]) -> torch.Tensor:
        import torch

        written = torch.tensor([[self.first, *prefix]], device=self.device)
        read = torch.tensor(self._encode([prompt]), device=self.device)
        logits: torch.Tensor = self.model(input_ids=read, decoder_input_ids=written).logits[0]
        return logits

    def _encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """The end of each prompt, as much as the encoder takes."""
        encoded = self.tokenizer(list(prompts), truncation=True, max_length=self._longest)
        rows: list[list[int]] = encoded["input_ids"]
        return rows
