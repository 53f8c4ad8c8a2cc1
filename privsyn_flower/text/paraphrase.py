"""Paraphrases with clipped logits: DP-Prompt (Utpala, Hooker and Chen, EMNLP Findings 2023).

The prompt is theirs, "Document: ... Paraphrase of the document:". Every token is drawn in
proportion to exp(u / T) of logits u that are clipped to [low, high], and nothing else may depend on
the text: no nucleus, no stop string, no second attempt, and at most `max_tokens` tokens. So a token
is a draw of the exponential mechanism that costs 2 (high - low) / T, and a text at most
`max_tokens` times that (`privacy.baseline.LocalParaphrases`).

The sampling loop is our own: `generate` of the library takes further settings from a model's
folder (nucleus, penalties, forced tokens), any of which would void the claim.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from privsyn_flower.arrays import F32, I64
from privsyn_flower.progress import Progress
from privsyn_flower.text.generators import HuggingFaceGenerator

if TYPE_CHECKING:
    import torch


def paraphrase_prompt(text: str) -> str:
    """A document -> the question for its paraphrase, on two lines."""
    return f"Document: {' '.join(text.split())}\nParaphrase of the document:"


class Paraphraser(HuggingFaceGenerator):
    """A causal language model that paraphrases under clipped logits; arguments as its parent's."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        max_tokens: int = 64,
        batch_size: int = 64,
        device: str = "auto",
        progress: bool | Progress = True,
    ) -> None:
        super().__init__(
            model,
            max_tokens=max_tokens,
            batch_size=batch_size,
            device=device,
            stop=(),
            progress=progress,
        )
        self._range = (0.0, 0.0)

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
        self._range, self.temperature = (low, high), temperature
        prompts = [paraphrase_prompt(text) for text in texts]
        return [drawn for (drawn,) in self.complete(prompts, 1, rng)]

    def choose(self, logits: torch.Tensor, uniforms: F32) -> I64:
        """(r, v), (r,) -> (r,) drawn tokens; logits are clipped first, NaN is the lower end."""
        import torch

        low, high = self._range
        return super().choose(torch.nan_to_num(logits.float(), nan=low).clamp(low, high), uniforms)

    def logit_range(self, texts: Sequence[str]) -> tuple[float, float]:
        """The lowest and the highest logit over PUBLIC texts, each shown with itself as paraphrase.

        Of the tokens that may be drawn, at the places of the paraphrase. Raises ValueError without
        a text.
        """
        import torch

        lowest, highest = np.inf, -np.inf
        for text in texts:
            prompt = self.tokenizer(paraphrase_prompt(text))["input_ids"]
            said = self.tokenizer(f" {text}", add_special_tokens=False)["input_ids"]
            ids = [*prompt, *said[: self.max_tokens]][-self._context :]
            with torch.inference_mode():
                logits = self.model(torch.tensor([ids], device=self.device)).logits[0]
            places = logits[-len(said[: self.max_tokens]) - 1 :, ~self._banned].float()
            lowest = min(lowest, float(places.min()))
            highest = max(highest, float(places.max()))
        if not lowest < highest:
            raise ValueError(f"{len(texts)} public texts: no range of logits to clip to")
        return lowest, highest
