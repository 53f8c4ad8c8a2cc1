"""DP-Prompt (S. Utpala, S. Hooker and P.-Y. Chen, EMNLP Findings 2023; PrE-Text, App. D.2 (4)).

Each device would paraphrase its own texts by a language model and send the paraphrases. Here the
benchmark makes them all, in a simulation: a row to compare with, under a statement of its own
(`privacy.baseline.LocalParaphrases`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from privsyn_flower.app.benchmark.private import private_texts
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.privacy.baseline import LocalParaphrases
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods.stages import Task, generation
from privsyn_flower.server_apps.methods.synthesis import BaselineRecipe
from privsyn_flower.strategies.baselines.config import DPPromptConfig
from privsyn_flower.text.prompts import LabelledText

PROBES = 64  # public texts whose logits give the range to clip to


class DPPromptRecipe(BaselineRecipe):
    """Local privacy of epsilon for each user: the temperature follows from it.

    owners: the user of each text that is paraphrased, PRIVATE.
    """

    owners: list[str]

    @classmethod
    def baseline(cls, config: RunConfig, **facts: Any) -> LocalParaphrases:
        tokens, texts = config[DPPromptConfig].max_tokens, config.data.samples_per_user
        return LocalParaphrases(
            each=config.epsilon / (tokens * texts),
            tokens=tokens,
            texts=texts,
            seeded=config.simulation_seeded_noise,
            **facts,
        )

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        return super().loads(config) | {"generator"}

    @classmethod
    def asks_with(cls, config: RunConfig, *, released: bool) -> Sequence[str]:
        """The generator's draws are the mechanism, and each text is paid for once."""
        return ["models.generator", "models.device", "generation", "expand"]

    @classmethod
    def texts(cls, config: RunConfig) -> int:
        return config.data.users * config.data.samples_per_user

    @classmethod
    def writing(cls, config: RunConfig) -> list[Task]:
        """One paraphrase of every text."""
        tokens = config[DPPromptConfig].max_tokens
        return [generation(config, "expansion", "paraphrases", cls.texts(config), tokens=tokens)]

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        yield from super().faults(config)
        if not config.benchmark:
            yield (
                "method = 'dp-prompt' is simulated, by opening private text: no device here has a "
                "language model that paraphrases; for comparison only, with benchmark = true"
            )
        if config[DPPromptConfig].measured and not config.data.public_validation:
            yield (
                "data.public-validation = 0: dp-prompt.logit-low and dp-prompt.logit-high are "
                "measured on such texts; raise it, or give both"
            )

    def strategy(self, folder: RunFolder) -> list[str]:
        """The users' texts. PRIVATE. Raises ConfigError as `faults` tells."""
        for fault in self.faults(self.config):
            raise ConfigError(fault)
        users = private_texts(self.config, self.run.federation())
        self.owners = [user for user, own in users.items() for _ in own]
        return [text for own in users.values() for text in own]

    def write(self, strategy: list[str], purpose: str) -> list[LabelledText]:
        """One paraphrase of each text, never a second: each is paid for. Empty ones are left out.

        Raises ModelUnavailableError where the model cannot be loaded.
        """
        from privsyn_flower.text.paraphrase import load_paraphraser

        config, own = self.config, self.config[DPPromptConfig]
        paraphraser = load_paraphraser(
            self.models.folder("generator"),
            max_tokens=own.max_tokens,
            batch_size=config.expand.batch_size,
            device=config.models.device,
            progress=self.run.progress,
        )
        try:
            low, high = own.logit_low, own.logit_high
            if own.measured:
                low, high = paraphraser.logit_range(self.models.public.validation[:PROBES])
            # 2 (high - low) / T is the epsilon of a token.
            claim = self.baseline(config)
            temperature = 2 * (high - low) / claim.each
            texts = paraphraser.paraphrase(
                strategy, low=low, high=high, temperature=temperature, rng=self._generator()
            )
        finally:
            paraphraser.close()
        lines = [" ".join(text.split()) for text in texts]
        sent = Counter[str]()
        for owner, line in zip(self.owners, lines, strict=True):
            sent[owner] += len(line.encode())
        facts = {"logit_low": low, "logit_high": high, "temperature": temperature}
        facts |= {"bytes_of_a_user": max(sent.values(), default=0)}
        self.folder.save_value("dp-prompt", facts)
        return [LabelledText(line) for line in lines if line]

    def _generator(self) -> np.random.Generator:
        """The draws are the mechanism: of the operating system's randomness unless for tests."""
        if self.config.simulation_seeded_noise:
            return seeded(self.config.seed, "dp-prompt")
        return np.random.default_rng()

    def figures(self, strategy: list[str]) -> dict[str, Any]:
        """What was clipped and drawn how, what a text costs, and the most bytes that one user's
        device would send."""
        claim = self.baseline(self.config)
        costs = {"epsilon_of_a_token": claim.each, "epsilon_of_a_text": claim.per_text}
        return {"dp_prompt": {**self.folder.load_value("dp-prompt"), **costs}}


RECIPE = DPPromptRecipe
