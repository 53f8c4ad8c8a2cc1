"""POPri in a run: a generator aligned with the users' scores, and the text that it writes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from privsyn_flower.app.benchmark.feedback import Feedback, response_rounds
from privsyn_flower.app.benchmark.names import PUBLIC_CONTROLS
from privsyn_flower.app.benchmark.private import Private, distance_to_development
from privsyn_flower.common.arrays import F32, F64
from privsyn_flower.common.units import units
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.privacy.planning import evaluation_phases
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.changes import WRITING
from privsyn_flower.server_apps.methods import stages
from privsyn_flower.server_apps.methods.pretext import PrETextRecipe
from privsyn_flower.server_apps.methods.recipe import NOISE
from privsyn_flower.server_apps.methods.stages import Task
from privsyn_flower.server_apps.methods.synthesis import Synthesis, state_of
from privsyn_flower.server_apps.selection import CANDIDATES, check_sequences, select_round
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.strategies.popri.strategy import POPri
from privsyn_flower.strategies.synthesis.preferences import Distance
from privsyn_flower.text.models.lm_metrics import base_folder
from privsyn_flower.text.prompts import HEADING, LabelledText
from privsyn_flower.text.protocols import Trainer

UNALIGNED = "unaligned"

logger = logging.getLogger("privsyn_flower")


class POPriRecipe(Synthesis[POPri]):
    """The method, with a paid choice of a round, and PrE-Text as its rival."""

    controls = (NOISE, UNALIGNED, *PUBLIC_CONTROLS)
    libraries = ("torch", "transformers", "peft", "trl", "datasets")
    length_keys = "popri.prompts or popri.responses"
    noise = "noise_scores"
    rewrites = True
    selection: dict[str, Any] | None = None

    @classmethod
    def question(cls, config: RunConfig) -> tuple[str, dict[str, Any]]:
        kind = "votes" if config[PopriConfig].score == "nearest" else "scores"
        return kind, {"bound": config[PopriConfig].score_bound}

    @classmethod
    def phases(cls, config: RunConfig) -> list[Phase]:
        """And the choice of a round on the nodes, which costs a user as much as a round."""
        [rounds] = super().phases(config)
        return [rounds, *evaluation_phases(rounds, int(config[PopriConfig].select == "federated"))]

    @classmethod
    def statement_fields(cls, config: RunConfig) -> dict[str, Any]:
        return {"private_selection": config[PopriConfig].checkpoint == "private"}

    @classmethod
    def length(cls, config: RunConfig) -> int:
        return config[PopriConfig].prompts * config[PopriConfig].responses

    @classmethod
    def lessons(cls, config: RunConfig) -> int:
        """Pairs that a round trains on, at most, or what else costs as much as so many."""
        return config[PopriConfig].prompts

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        selects = {"downstream"} if config[PopriConfig].select == "federated" else set()
        rival = PrETextRecipe.loads(config) if config.evaluation.rival else set()
        return {"embedder", "generator"} | selects | rival

    @classmethod
    def retrieves(cls, config: RunConfig) -> bool:
        """For the rival alone."""
        return bool(config.evaluation.rival) and PrETextRecipe.retrieves(config)

    @classmethod
    def first_texts(cls, config: RunConfig) -> tuple[str, int]:
        return "popri.examples", config[PopriConfig].examples

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        if config.evaluation.rival:
            yield from PrETextRecipe.faults(config)

    @classmethod
    def asks_with(cls, config: RunConfig, *, released: bool) -> Sequence[str]:
        """Responses are what users score, and its adapters are of one generator."""
        if released:
            return ["models.generator"]
        selects = (
            ["evaluation", "models.downstream"] if config[PopriConfig].select == "federated" else []
        )
        return [*WRITING, "models.training-processes", *selects]

    @classmethod
    def writing(cls, config: RunConfig) -> list[Task]:
        """Each round's responses, their rows and training; the choices; the synthetic texts."""
        own, rounds, shown = config[PopriConfig], config.rounds, _shown(config)
        asked, tokens = cls.length(config), stages.tokens_of(config.data.sample_words)
        compared = own.select_samples * (own.epochs if own.checkpoint != "last" else 1)
        compared *= own.checkpoint != "last" or own.select == "public"
        chosen = min(CANDIDATES, rounds) * (own.select == "federated")
        tasks = [
            *([stages.public_pool(config)] if cls.retrieves(config) else []),
            stages.generation(config, "rounds", "responses", asked, rounds),
            stages.embedding("rounds", "responses", asked, tokens, rounds),
            stages.private_texts(config),
            stages.preferences(config, cls.lessons(config) * own.epochs, shown, rounds),
            stages.generation(config, "rounds", "texts to choose an epoch by", compared, rounds),
            stages.embedding("rounds", "texts to choose an epoch by", compared, tokens, rounds),
            stages.generation(
                config, "rounds", "texts to choose a round by", own.select_samples * chosen
            ),
            stages.fine_tuning(
                config, "rounds", "models to choose a round by", own.select_samples, chosen
            ),
            stages.generation(config, "expansion", "synthetic texts", config.expand.samples),
        ]
        return [task for task in tasks if task.items * task.times]

    @classmethod
    def compared_work(cls, config: RunConfig) -> list[Task]:
        own, options = cls.writing(config), config.evaluation
        found = [
            replace(task, stage="unaligned")
            for task in own
            if task.stage == "expansion" and options.compares(UNALIGNED)
        ]
        if options.rival:
            found += [
                replace(task, stage="rival")
                for task in PrETextRecipe.writing(config)
                if task.stage != "models" and not task.nodes
            ]
        return found

    def begin(self) -> POPri:
        with self.run.clock("models"):
            strategy = self.strategy(self.folder)
            if self.config[PopriConfig].select == "federated":
                base = base_folder(self.models.folder("downstream"))
                check_sequences(self.config, base, evaluates=True)
        return strategy

    def strategy(self, folder: RunFolder) -> POPri:
        strategy = self.algorithm(**self.arguments())
        strategy.attach(folder)
        return strategy

    def algorithm(self, **arguments: Any) -> POPri:
        return POPri(**arguments, trainer=self.trainer(self.config[PopriConfig].training))

    def trainer(self, method: Literal["dpo", "sft", "grpo"], **options: Any) -> Trainer:
        """Of adapters, by the keys of `[popri]`."""
        from privsyn_flower.text.preference import PreferenceTrainer
        from privsyn_flower.text.preference.tuning import EXPAND_ENDING

        config, popri = self.config, self.config[PopriConfig]
        # A list goes on with the next heading; an answer, and a turn of a chat, just ends.
        listed = popri.examples > 0 or HEADING in popri.instruction
        chat = config.generation.chat
        return PreferenceTrainer(
            self.models.folder("generator"),
            method=method,
            beta=popri.beta,
            label_smoothing=popri.label_smoothing,
            learning_rate=popri.learning_rate,
            schedule=popri.schedule,
            warmup_steps=popri.warmup_steps,
            epochs=popri.epochs,
            batch_size=popri.batch_size,
            micro_batch_size=popri.micro_batch_size,
            lora_rank=popri.lora_rank,
            lora_alpha=popri.lora_alpha,
            ending=EXPAND_ENDING if listed and not chat else None,
            chat=chat,
            device=config.models.device,
            processes=config.models.training_processes,
            launch_arguments=config.models.accelerate_arguments,
            progress=self.run.progress,
            **options,
        )

    def arguments(self) -> dict[str, Any]:
        """Of the algorithm, but for its trainer."""
        config, public = self.config, self.models.public
        return {
            "prompts": public.pool,
            "private_distance": self._private_distance(),
            "embedder": self.models.embedder(),
            "generator": self.models.generator(),
            "rounds": config.rounds,
            "config": config[PopriConfig],
            "samples_cap": config.data.samples_per_user,
            "min_words": config.expand.min_words,
            "max_words": config.data.sample_words,
            "validation": public.validation,
            "seed": config.seed,
            "progress": self.run.progress,
        }

    def _private_distance(self) -> Distance | None:
        """The paper's choice of checkpoints, by text that epsilon does not cover."""
        if self.config[PopriConfig].checkpoint != "private":
            return None
        logger.warning("popri.checkpoint = 'private': epsilon does not cover the selection")
        return distance_to_development(self.config, self.run.federation(), self.models.embedder())

    def evaluate(self, strategy: POPri) -> None:
        """The choice of a round on the nodes, with `popri.select = "federated"`."""
        if self.config[PopriConfig].select != "federated":
            return
        with self.run.clock("rounds"):
            self.selection = select_round(strategy, self.models, self.config, self.run.session)

    def write(self, strategy: POPri, purpose: str) -> list[LabelledText]:
        samples = self.config.expand.samples
        return self.as_far_as(purpose, lambda tally: strategy.synthesise(samples, tally))

    def rewritten(self, released: RunFolder, purpose: str) -> list[LabelledText]:
        """By the adapter of the selected round."""
        state, chosen = state_of(released), released.load_value("selection")
        strategy = self.strategy(released)
        strategy.restore(state)
        if chosen is not None:
            strategy.choose(int(chosen["round"]))
        elif self.config[PopriConfig].select == "federated":
            strategy.choose(len(strategy.adapters))  # nothing was paid to choose another
        return self.write(strategy, purpose)

    def figures(self, strategy: POPri) -> dict[str, Any]:
        chosen = {} if self.selection is None else {"selection": self.selection}
        return {"selected_round": strategy.selected_round(), **chosen, **self.written_facts()}

    # The benchmark -----------------------------------------------------------------------

    def noise_answers(
        self, strategy: POPri, row: Mapping[str, Any], rng: np.random.Generator
    ) -> F64:
        """Around zero: only the scores' order counts."""
        return rng.normal(0.0, row["noise_std"], strategy.ask(row["round"]).length)

    def control(self) -> POPri:
        """No evaluation is paid for it: it ends with the round that was selected for the run."""
        strategy = super().control()
        if self.selection is not None:
            strategy.choose(min(int(self.selection["round"]), len(strategy.candidates())))
        return strategy

    def compared(self) -> list[str]:
        """And the generator before alignment, and the rival at the run's noise and rounds."""
        options = self.config.evaluation
        unaligned = [UNALIGNED] if options.compares(UNALIGNED) else []
        return [*super().compared(), *unaligned, *([options.rival] if options.rival else [])]

    def output_paths(self) -> list[str]:
        """Whichever are compared."""
        return [*super().output_paths(), UNALIGNED, f"{UNALIGNED}.jsonl", "rival", "rival.jsonl"]

    def comparison(self, name: str, private: Private) -> list[LabelledText]:
        if name == UNALIGNED:
            with self.run.clock("unaligned"):
                base = self.strategy(RunFolder(self.folder.path / "unaligned"))
                base.choose(0)
                return self.written("unaligned", base)
        if name == self.config.evaluation.rival:
            with self.run.clock("rival"):
                rival = PrETextRecipe(self.run, self.models)
                return rival.written("rival", rival.as_rival(private))
        return super().comparison(name, private)

    def feedback(self, strategy: POPri, private: Private, held_out: F32) -> Feedback:
        """What the users preferred, round by round."""
        rank = self.config[PopriConfig].rejected_rank
        rounds, responses = response_rounds(self.folder, private, held_out, rank)
        return {"responses": rounds}, responses


def _shown(config: RunConfig) -> int:
    """Tokens of a prompt: its examples, or the instruction."""
    own = config[PopriConfig]
    if not own.examples:
        return stages.tokens_of(len(units(own.instruction)))
    return own.examples * (stages.tokens_of(config.data.sample_words) + stages.HEADING_TOKENS)


RECIPE = POPriRecipe
