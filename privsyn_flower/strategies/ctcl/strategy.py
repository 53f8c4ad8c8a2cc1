"""CTCL: a noisy histogram of topics, and a small generator trained privately (Tan et al. 2025).

arXiv 2503.12347, section 3.3: the users' texts are counted by topic, once, and the generator is
fine-tuned on pairs of a topic's keywords and a text; then it writes as many texts of each topic as
the counts say. The paper is central. Here the histogram is a vote on the topics' vectors, and the
fine-tuning is DP-FedAvg or DP-FTRL, whose nodes make the pairs: both under one privacy plan.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from privsyn_flower.common.arrays import F64, I64
from privsyn_flower.common.progress import silent
from privsyn_flower.config import ExpandConfig, FtrlConfig, TrainingConfig
from privsyn_flower.config.section import checked
from privsyn_flower.privacy.accounting.sampling import EVERYBODY, Sampler
from privsyn_flower.privacy.plan import Phase, PrivacyPlan
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.strategies.averaging.generalised_fedavg import Arrays
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.dp_fedavg.strategy import DPFedAvg
from privsyn_flower.strategies.dp_ftrl.strategy import DPFTRL
from privsyn_flower.strategies.engine.aggregation import aggregation_of
from privsyn_flower.strategies.engine.arguments import check_arguments
from privsyn_flower.strategies.engine.one_question import OneQuestion
from privsyn_flower.strategies.engine.outcome import note_samples
from privsyn_flower.strategies.engine.session import Session
from privsyn_flower.strategies.synthesis.start import SynthesisResult, SynthesisStrategy
from privsyn_flower.strategies.synthesis.topic_counts import (
    largest_remainder,
    proportions,
    topic_question,
)
from privsyn_flower.strategies.synthesis.topic_texts import GenerationInputs, try_writing, write
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.prompts import LabelledText
from privsyn_flower.text.topics import TopicModel
from privsyn_flower.training import LocalTraining
from privsyn_flower.training.conditions import Conditions
from privsyn_flower.training.low_rank import initial_parameters, trained_patterns

TOPICS = "topics"  # the phase of the histogram, and the folder of its release
HISTOGRAM_QUERY = "ctcl-histogram"  # the query of the histogram, in the run folder
WRITTEN = "ctcl-written"  # rounds that the texts of `start` were written after
BOUND = 1.0  # L2 norm of one user's counts


def trainer_of(
    training: TrainingConfig,
    ftrl: FtrlConfig | None = None,
    *,
    sampler: Sampler = EVERYBODY,
    seed: int = 0,
) -> DPFedAvg | DPFTRL:
    """What trains the generator: DP-FTRL where an aggregator adds the noise, else DP-FedAvg."""
    if training.noise == "aggregator":
        return DPFTRL(training, ftrl, seed=seed)
    return DPFedAvg(training, sampler=sampler, seed=seed)


def ctcl_phases(
    config: CtclConfig,
    trainer: TrainingStrategy,
    rounds: int,
    spare_rounds: int = 1,
    *,
    nodes: int = 0,
    noise_multiplier: float = 0.0,
) -> list[Phase]:
    """The histogram, then the rounds, under one `privacy.plan`.

    The histogram asks everybody, once, whoever the rounds draw: sampling would blur what is asked a
    single time and bring it little. One failed attempt of it is paid for where the rounds have
    spare ones. Alone, without a multiplier of its own, it has the whole budget. noise_multiplier:
    of the rounds; 0: the least that is left.
    """
    main = trainer.phase(rounds, spare_rounds, nodes=nodes).with_multiplier(noise_multiplier)
    if not config.histogram:
        return [main]
    both, given = config.generator_training, config.histogram_multiplier
    counted = Phase(
        TOPICS,
        spare=min(1, spare_rounds),
        source=main.source,
        multiplier=given,
        share=config.histogram_share if both and not given else 0.0,
    )
    return [counted, main] if both else [counted]


class CTCL(SynthesisStrategy):
    """Topics, a histogram of them, and a generator that learns texts by their topics' keywords.

    Parameters
    ----------
    topics : public; users must hold the embedder that it names. None: for a generator without
        conditions (condition = "none").
    generator : folder of the conditional generator, which the nodes have too.
    rounds : T of the fine-tuning.
    config : histogram, topic_threshold, condition, ... (`[ctcl]`).
    training : clip_norm, noise, the local steps, what is trained, ... (`[training]`). With noise =
        "aggregator" the rounds are DP-FTRL's, as `ftrl` says; else DP-FedAvg's.
    sampler : who takes part in a round of the fine-tuning; the histogram asks everybody.
    samples_per_user : the most texts of one user that count. sequence_length: tokens of a text.
    seed : of the server's choices; never of noise.

    `begin` and `attach` make it ready, `histogram` asks for the counts, and then any round engine
    drives it. `plan(n)` says how many texts of each topic n texts are.
    """

    method = "ctcl"

    def __init__(
        self,
        topics: TopicModel | None,
        generator: str | Path,
        *,
        rounds: int = 8,
        config: CtclConfig | None = None,
        training: TrainingConfig | None = None,
        ftrl: FtrlConfig | None = None,
        sampler: Sampler = EVERYBODY,
        samples_per_user: int = 8,
        sequence_length: int = 64,
        seed: int = 0,
    ) -> None:
        check_arguments(rounds=rounds)
        self.config = CtclConfig() if config is None else checked(config)
        if topics is None and self.config.by_topic:
            raise ValueError("ctcl.condition = 'topic' needs topics: give a topic model, or 'none'")
        self.table = TrainingConfig() if training is None else checked(training)
        self.topics, self.generator, self.seed = topics, Path(generator), seed
        self.samples_per_user, self.sequence_length = samples_per_user, sequence_length
        self.trainer = trainer_of(self.table, ftrl, sampler=sampler, seed=seed)
        self.rounds = rounds if self.config.generator_training else 0
        self.seeds: list[str] = []
        self.counts: F64 | None = None  # released, noisy, (m,)
        self.noise_std = 0.0
        self.conditions = Conditions(
            topics if self.config.by_topic else None,
            self.config.document_type,
            self.config.classes,
            self.config.max_source,
        )

    def summary(self) -> None:
        """And those of the fine-tuning."""
        super().summary()
        self.trainer.summary()

    def phases(self, spare_rounds: int = 1, *, nodes: int = 0) -> list[Phase]:
        """The histogram and the rounds; see `ctcl_phases`."""
        rounds = max(1, self.rounds)
        return ctcl_phases(self.config, self.trainer, rounds, spare_rounds, nodes=nodes)

    # Once: the histogram -----------------------------------------------------------------

    def question(self) -> Query:
        """Which topics a user's texts are of, in each class if there are classes: votes of length 1
        in all. Answer: (m,), or (classes m,), topic j of class c at place c m + j."""
        asked = topic_question(self._model, BOUND, samples_cap=self.samples_per_user)
        return asked.by_class(self.config.classes) if self.config.classes else asked

    @property
    def _model(self) -> TopicModel:
        if self.topics is None:
            raise ValueError("there are no topics to ask for (ctcl.condition = 'none')")
        return self.topics

    def histogram(self, session: Session) -> None:
        """Fill in `counts`, from disk when they were released; inside `session.begun`.

        A run never asks twice. Raises as `Session.ask`, and ValueError, naming the key, when the
        folder's histogram was asked with other values.
        """
        if not self.config.histogram:
            return
        settings = self._histogram_settings()
        _check_same(session.folder, settings)
        labels = [f"{label}: " for label in self.config.classes] or [""]
        names = [f"{label}topic {i}" for label in labels for i in range(len(self._model))]
        question = OneQuestion(self.question(), names)
        session.folder.save_value(HISTOGRAM_QUERY, settings)
        session.ask(question, TOPICS)
        self.counts, self.noise_std = np.array(question.released), question.noise_std

    def _histogram_settings(self) -> dict[str, Any]:
        """What a released histogram is about, by the keys that change it."""
        return {
            "ctcl.topics": self._model.fingerprint,
            "ctcl.labels": ", ".join(self.config.classes),
            "data.samples-per-user": self.samples_per_user,
        }

    def proportions(self) -> F64:
        """Each topic's share (m,) of the texts to come, or (classes m,) of topics in classes; equal
        ones without a histogram, and [1] without topics.

        Raises NoTopicLeft, and RuntimeError before `histogram`.
        """
        if not self.config.histogram:
            count = 1 if self.topics is None else len(self.topics)
            count *= max(1, len(self.config.classes))
            return np.full(count, 1 / count)
        if self.counts is None:
            raise RuntimeError("the histogram of topics was not asked yet: call histogram(session)")
        return proportions(self.counts, self.noise_std, self.config.topic_threshold)

    def plan(self, samples: int) -> I64:
        """How many of so many texts each of the `proportions` makes: by largest remainder."""
        return largest_remainder(self.proportions(), samples)

    # The rounds: the training ------------------------------------------------------------

    def begin(self, *, users: int, nodes: int = 0, noise_multiplier: float = 0.0) -> None:
        """Make the fine-tuning ready; users: the declared population.

        noise_multiplier: the calibrated one, for adaptive clipping. Raises ValueError for keys that
        do not fit the generator.
        """
        table = self.table
        chosen: dict[str, Any] = {"factors": table.lora_factors, "patterns": table.layers}
        arrays = initial_parameters(
            self.generator, table.parameters, rank=table.lora_rank, seed=self.seed, **chosen
        )
        local = LocalTraining(
            optimizer=table.optimizer,
            learning_rate=table.learning_rate,
            momentum=table.momentum,
            weight_decay=table.weight_decay,
            epochs=table.epochs,
            batch_size=table.batch_size,
            max_steps=table.steps(self.samples_per_user),
            sequence_length=self.sequence_length,
            seed=self.seed,
            trained=trained_patterns(self.generator, table.parameters, **chosen),
        )
        self.trainer.begin(
            arrays,
            model=folder_fingerprint(self.generator),
            rounds=self.rounds,
            users=users,
            options={**local.to_options(), **self.conditions.to_options()},
            noise_multiplier=noise_multiplier,
            nodes=nodes,
        )

    # In any ServerApp -------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        *,
        folder: str | Path,
        samples: int = 1000,
        expand: ExpandConfig | None = None,
        device: str = "auto",
        noise_keys: str | Path = "",
        **options: Any,
    ) -> SynthesisResult:
        """As SynthesisStrategy.start; the result has about `samples` texts, in synthetic.jsonl.

        Fewer where the generator wrote nothing usable (`topic_texts.DRAWS`). A line there has the
        text's topic, too; the trained generator is in model/. expand: how text is drawn
        (`[expand]`). device: of the generator. noise_keys: folder, outside `folder`, for the key of
        an aggregator's noise; "" for the user's own.
        """
        # Before the folder is made, and a model loaded.
        check_arguments(folder=folder, noise_keys=noise_keys, **options)
        aggregation_of(options.get("aggregation", "secure"))
        if not self.config.generator_training:
            raise ValueError(
                "ctcl.generator-training = false needs a whole run (privsyn run): start trains, so "
                "set it to true"
            )
        if self.config.resample_pool:
            raise ValueError(
                f"ctcl.resample-pool = {self.config.resample_pool} needs a whole run (privsyn "
                "run), which asks for the histogram after the rounds: set it to 0"
            )
        self.noise_keys = Path(noise_keys) if noise_keys else None
        run, how = RunFolder(folder), ExpandConfig() if expand is None else expand
        if run.load_value(WRITTEN) is None:
            try_writing(self.config, how, device, self.generator, self.topics, self.seed)
        result = super().start(grid, folder=folder, **options)
        target, model = run.path / "synthetic.jsonl", run.path / "model"
        with run.lock():
            if run.load_value(WRITTEN) != result.rounds:  # a run that ended early has gone on
                target.unlink(missing_ok=True)
                shutil.rmtree(model, ignore_errors=True)
                run.save_value(WRITTEN, result.rounds)
            from privsyn_flower.evaluation.public import export_model

            export_model(self.generator, self.parameters(), model)
            if not target.exists():
                shares = self.proportions()
                inputs = GenerationInputs(model, self.topics, shares)
                write(
                    self.config, how, device, inputs, target, samples=samples, seed=self.seed,
                    purpose="synthetic", progress=options.get("progress") or silent,
                )  # fmt: skip
            texts = [LabelledText(row["text"]) for row in read_jsonl(target)]
            note_samples(run, len(texts))
        return replace(result, texts=texts)

    def statement_fields(self) -> dict[str, Any]:
        """What else the statement says."""
        return {"adaptive_clipping": self.trainer.clipping is not None}

    def invariants(self, plan: PrivacyPlan) -> dict[str, Any]:
        """What must not change while a run lasts, beside its privacy plan."""
        return self.trainer.invariants(plan)

    def ready(self, session: Session) -> None:
        """Make the fine-tuning ready for `start`; warns of numbers that cannot give much."""
        main, terms = session.privacy_plan.main, session.spec
        self.begin(users=terms.users, nodes=terms.nodes, noise_multiplier=main.equivalent)
        self.trainer.warn_if_infeasible(session)
        self.attach(session.folder)

    def prepare(self, session: Session) -> None:
        """The histogram, and whether anything can be made of it."""
        self.histogram(session)
        self.proportions()

    def attach(self, folder: RunFolder) -> None:
        """Keep the model and the optimiser's memory in `folder`; before the first round."""
        if self.rounds:
            self.trainer.attach(folder)

    def ask(self, rnd: int) -> Query:
        """The generator as it is, and the topics: a user's vector is the clipped change."""
        query = self.trainer.ask(rnd)
        return replace(query, extra={**query.extra, **self.conditions.to_arrays()})

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        """One server step with the noisy sum."""
        return self.trainer.learn(rnd, released, noise_std)

    def parameters(self) -> Arrays:
        """The generator's trained arrays, public; {} where none are trained."""
        return self.trainer.parameters() if self.rounds else {}

    def state(self) -> dict[str, Any]:
        """Small JSON; the arrays of the round are on disk already."""
        return self.trainer.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue with the bits of `state`. Raises ValueError for another model or optimiser."""
        self.trainer.restore(state)


def _check_same(folder: RunFolder, settings: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the keys, unless the folder's histogram was asked with the same."""
    from privsyn_flower.config import differences

    if changed := differences(settings, folder.load_value(HISTOGRAM_QUERY) or settings):
        raise ValueError(
            f"{folder.path} holds a histogram of topics that was asked with other values: "
            f"{', '.join(changed)}; restore them, or start a run in another folder"
        )
