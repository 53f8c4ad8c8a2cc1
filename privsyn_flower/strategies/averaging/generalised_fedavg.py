"""Generalised federated averaging: train from these parameters; the noisy sum moves the model.

The question of a round is the current model. Each user answers with the change that training on
its own data made to it, clipped; the sum with noise is divided by a public number of users and
handed to a server optimiser (Reddi et al. 2021, arXiv 2003.00295, Algorithm 1). DP-FedAvg and
DP-FTRL share this and differ in their noise.

With adaptive clipping the clip norm follows a quantile of the users' update norms (Andrew et al.
2021, arXiv 1905.03871, "Differentially private learning with adaptive clipping", Algorithm 1). Each
user also says whether its update was within the clip norm. That bit is one more coordinate of the
same bounded vector, so it has no charge of its own: it takes its share of the joint bound.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import MetricRecord
from numpy.typing import NDArray

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import AveragingConfig
from privsyn_flower.config.section import checked
from privsyn_flower.protocol.question import OptionValue, Query
from privsyn_flower.queries.updates import update_bound
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.averaging.server_optimizers import (
    server_optimizer,
    server_schedule,
)
from privsyn_flower.strategies.engine.rounds import Method, NothingLearned
from privsyn_flower.text.models.parameters import pack_parameters
from privsyn_flower.training import Layout, trained_layout

FRACTION_STD = 1 / 20  # of the noise on the fraction; the paper's sigma_b = m / 20
LARGEST_INDICATOR = 0.5  # few users: the model's noise grows by no more than 12 %


@dataclass(frozen=True)
class AdaptiveClipping:
    """Public numbers of the rule.

    target_quantile: gamma, share of users whose updates the clip norm shall hold. learning_rate:
    eta_C.
    """

    target_quantile: float
    learning_rate: float

    def indicator_for(self, noise_multiplier: float, users: float) -> float:
        """s: the coordinate is s C for an update within the clip norm C, and -s C for a longer one.

        A user's vector has norm C sqrt(1 + s^2), so at noise multiplier z the model's noise grows
        to z sqrt(1 + s^2), and the fraction within, over n users, has noise of standard deviation
        z sqrt(1 + s^2) / (2 s n). The paper's is 1/20, which this s gives: 1 / sqrt((n / 10 z)^2
        - 1), about 10 z / n. With z_u = z sqrt(1 + s^2) on updates and sigma_b = z_u / (2 s) on
        counts, z_u^-2 + (2 sigma_b)^-2 = z^-2: the paper's Theorem 1, with the joint z.
        """
        if not 0 < noise_multiplier < math.inf:
            raise ValueError(
                f"noise_multiplier = {noise_multiplier}: adaptive clipping derives its indicator "
                "from the run's noise multiplier, which must be above 0"
            )
        ratio = 2 * FRACTION_STD * users / noise_multiplier
        if ratio**2 >= 1 + LARGEST_INDICATOR**-2:
            return 1 / math.sqrt(ratio**2 - 1)
        noise = noise_multiplier * math.sqrt(1 + LARGEST_INDICATOR**-2) / (2 * users)
        logger.warning(
            "adaptive clipping: %g users at noise multiplier %.3g: the fraction of updates within "
            "the clip norm has noise of standard deviation %.2f; more users make it smaller",
            users,
            noise_multiplier,
            noise,
        )
        return LARGEST_INDICATOR

    def within(self, mean_sign: float) -> float:
        """The noisy fraction of users within the clip norm; noise may take it out of [0, 1].

        mean_sign: the sum of +1 and -1 over a fixed number of users. Who did not answer counts
        half as within.
        """
        return (mean_sign + 1) / 2

    def next_norm(self, clip_norm: float, within: float) -> float:
        """C <- C exp(-eta_C (b - gamma)), b the fraction within."""
        return clip_norm * math.exp(-self.learning_rate * (within - self.target_quantile))


logger = logging.getLogger("privsyn_flower")

Arrays = dict[str, NDArray[Any]]
Evaluate = Callable[[int, Arrays], MetricRecord | None]

EVALUATE = "evaluate."  # what the metrics of an evaluation on the server begin with
START = "training-start"  # all arrays, as they were given


class Diverged(NothingLearned):
    """The model's parameters are no longer finite numbers."""

    def __init__(self, rnd: int) -> None:
        super().__init__(
            f"round {rnd}: the server's step leaves parameters that are not finite: lower "
            "server-learning-rate, clip-norm or clip-learning-rate"
        )


class GeneralisedFedAvg(Method):
    """Federated averaging with a server optimiser, as rounds of noisy sums.

    `begin` says what is trained, `attach` where files are kept; then any round engine drives it.
    `parameters()` is the model at any time. The server's own copy of what is trained is one
    float64 vector; nodes are sent each array in the type in which it was given, so that the model
    they start from is the one they compare with.
    """

    def __init__(self, config: AveragingConfig | None, *, seed: int = 0, **keys: Any) -> None:
        """keys: of an AveragingConfig, in the place of one."""
        if config is None or keys:
            config = self._config_of(config, keys)
        if not isinstance(config, AveragingConfig):  # a clip norm alone is an easy slip
            raise TypeError(
                f"{type(self).__name__}({config!r}): expected a section of the configuration, "
                f"as in {type(self).__name__}(AveragingConfig(clip_norm=0.5))"
            )
        config = checked(config)
        self.config, self.seed, self.clip_norm = config, seed, float(config.clip_norm)
        self.optimizer = server_optimizer(config)
        self.clipping: AdaptiveClipping | None = None
        if config.adaptive_clipping:
            self.clipping = AdaptiveClipping(config.target_quantile, config.clip_learning_rate)
        self.indicator = 0.0
        self.schedule: dict[str, OptionValue] = {}
        self.one_rotation = False  # for all rounds
        self.evaluate: Evaluate | None = None
        self.rounds = 0
        self._folder: RunFolder | None = None
        self._name, self._older = START, START

    def _config_of(self, config: AveragingConfig | None, keys: dict[str, Any]) -> AveragingConfig:
        name, foreign = type(self).__name__, sorted(keys.keys() - AveragingConfig.model_fields)
        if foreign:
            raise TypeError(
                f"{name}({foreign[0]}=...): no such argument, and no key of AveragingConfig: "
                f"{', '.join(AveragingConfig.model_fields)}"
            )
        if config is not None:
            raise TypeError(
                f"{name} got a config and {', '.join(keys)} beside it: give one of both, as in "
                f"{name}(AveragingConfig(clip_norm=0.5)) or {name}(clip_norm=0.5)"
            )
        return AveragingConfig(**keys)

    # What is trained ---------------------------------------------------------------------

    def begin(
        self,
        parameters: Mapping[str, NDArray[Any]],
        *,
        model: str,
        rounds: int,
        users: int,
        options: Mapping[str, OptionValue],
        noise_multiplier: float = 0.0,
        nodes: int = 0,
    ) -> None:
        """Train `parameters` for `rounds` rounds with the declared `users`.

        parameters: named arrays, public; those of floating-point numbers that the option
        training.trained names are trained, the others travel and stay as they are. model: what
        the nodes compare with theirs. options: of the local training, and of an app's own.
        noise_multiplier: the calibrated one, for adaptive clipping. nodes: those the run waits
        for, where some of them are drawn. Raises ValueError on an array with NaN or infinity,
        where nothing can be trained, and on fewer rounds than the server's warm-up.
        """
        self.steps = server_schedule(self.config, rounds)
        self.layout = trained_layout(parameters, options)
        self.start_arrays = {name: np.array(array) for name, array in parameters.items()}
        _check_arrays(self.start_arrays)
        _log_untrained(self.start_arrays, self.layout)
        self.model, self.rounds, self.options = model, rounds, dict(options)
        self.denominator = self.expected_users(users, nodes)
        if self.clipping is not None:
            self.indicator = self.clipping.indicator_for(noise_multiplier, self.denominator)
        self.master = self.layout.flatten(self.start_arrays)
        self.slots = self.optimizer.start(self.layout.length)
        self._keep_start()

    def expected_users(self, users: int, nodes: int) -> float:
        """What sums are divided by: a public number, whoever answers."""
        return float(users)

    def parameters(self) -> Arrays:
        """The model: every array under its name, in its first type and shape."""
        trained = self.layout.unflatten(self.master, self.start_arrays)
        return {name: trained.get(name, array) for name, array in self.start_arrays.items()}

    # Generalised FedAvg ------------------------------------------------------------------

    def ask(self, rnd: int) -> Query:
        """The current model; a user's vector is its clipped change, and maybe one bit more."""
        options = {**self.options, **self.schedule}
        options |= {"clip-norm": self.clip_norm, "indicator": self.indicator}
        return Query.update(
            pack_parameters(self.parameters()),
            length=self.layout.length + (self.indicator > 0),
            bound=update_bound(self.clip_norm, self.indicator),
            model=self.model,
            rotation=seeded(self.seed, 0 if self.one_rotation else rnd, "rotation").bytes(32),
            options=options,
        )

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        """One server step with the noisy sum (d,) or (d + 1,), public from here.

        The denominator is fixed: users who did not answer count as users who changed nothing.
        Raises Diverged, with the model as it was.
        """
        dimension = self.layout.length
        mean = released[:dimension] / self.denominator
        with np.errstate(over="ignore", invalid="ignore"):
            change, slots = self.optimizer.step(mean, self.slots)
            rate = self.config.server_learning_rate
            change = self.steps.scaled(rnd, change, self.master, rate)
            master = self.master + change
            sent = self.layout.unflatten(master, self.start_arrays)
        if not all(np.isfinite(array).all() for array in sent.values()):
            raise Diverged(rnd)
        metrics = update_facts(mean, noise_std / self.denominator)
        metrics |= {"clip_norm": self.clip_norm, "step_norm": float(np.linalg.norm(change))}
        clip_norm = self.clip_norm
        if self.clipping is not None:
            unit = self.indicator * self.clip_norm * self.denominator
            within = self.clipping.within(float(released[dimension]) / unit)
            metrics["fraction_within"] = within
            clip_norm = self.clipping.next_norm(self.clip_norm, within)
            if not 0 < clip_norm < math.inf:
                raise Diverged(rnd)
        self.master, self.slots, self.clip_norm = master, slots, clip_norm
        self._save(rnd)
        return metrics | self.evaluated(rnd)

    def evaluated(self, rnd: int) -> dict[str, Any]:
        """The figures of `evaluate` for the present model, as metrics; {} without one."""
        if self.evaluate is None:
            return {}
        found = self.evaluate(rnd, self.parameters())
        return {EVALUATE + key: _finite(rnd, key, value) for key, value in (found or {}).items()}

    # Resume ------------------------------------------------------------------------------

    def attach(self, folder: RunFolder) -> None:
        """Keep the model and the optimiser's memory in `folder`; before the first round."""
        self._folder = folder
        self._keep_start()

    def state(self) -> dict[str, Any]:
        """Small JSON; the arrays of the round are on disk already."""
        names = {"arrays": self._name, "older": self._older, "model": self.model}
        return {**names, "clip_norm": self.clip_norm, "layout": self.layout.digest()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue with the bits of `state`. Raises ValueError for another model or optimiser."""
        if state["layout"] != self.layout.digest():
            raise ValueError(
                f"{self.folder.path} holds the training of other arrays: give it the arrays it "
                "began with, or choose another folder"
            )
        if state["model"] != self.model:  # LoRA's arrays would fit another one, too
            raise ValueError(
                f"{self.folder.path} holds the training of another model than the one at hand "
                "(was a tuned one in a cache that is gone?): restore it, or choose another folder"
            )
        arrays = self._load(str(state["arrays"]))
        master = arrays.pop("parameters")
        if set(arrays) != set(self.slots):
            raise ValueError(
                f"{self.folder.path} was begun with another server-optimizer: it remembers "
                f"{sorted(arrays)}, this one {sorted(self.slots)}"
            )
        self.master, self.slots = master, arrays
        self.clip_norm = float(state["clip_norm"])
        self._name, self._older = str(state["arrays"]), str(state["older"])

    @property
    def folder(self) -> RunFolder:
        """Where arrays are kept. Raises RuntimeError before `attach`."""
        if self._folder is None:
            raise RuntimeError("training keeps files: call attach(RunFolder(path)) first")
        return self._folder

    def _keep_start(self) -> None:
        """The arrays that the run began with; a resumed run goes on with those."""
        if self._folder is None or not self.rounds:
            return
        self._name, self._older = START, START
        if self._folder.load_arrays(START) is None:
            self._folder.save_arrays(START, pack_parameters(self.start_arrays).tobytes())
            return
        kept = self._load(START)
        if _description(kept) != _description(self.start_arrays):
            raise ValueError(
                f"{self._folder.path} began with other arrays (name, type or shape): give it "
                "those, or choose another folder"
            )
        if any(kept[name].tobytes() != a.tobytes() for name, a in self.start_arrays.items()):
            logger.warning("%s goes on from the arrays it began with", self._folder.path)
        self.start_arrays = {name: kept[name] for name in self.start_arrays}
        self.master = self.layout.flatten(kept)

    def _save(self, rnd: int) -> None:
        """The newest arrays; those before them stay until the checkpoint of this round is there."""
        arrays = {"parameters": self.master, **self.slots}
        name, older = f"training-{rnd:04d}", self._older
        self.folder.save_arrays(name, pack_parameters(arrays).tobytes())
        self._name, self._older = name, self._name
        if older != START:
            self.folder.drop_arrays(older)

    def _load(self, name: str) -> Arrays:
        from safetensors.numpy import load

        packed = self.folder.load_arrays(name)
        if packed is None:
            raise ValueError(
                f"{self.folder.path} lacks the arrays {name!r} of its last round: restore the "
                "folder, or choose another one"
            )
        arrays: Arrays = load(packed)
        return arrays


def update_facts(mean: F64, noise_std: float) -> dict[str, float]:
    """Public figures of a noisy mean update (d,) with noise of std `noise_std` per coordinate.
    What it has beyond its noise is the round's `excess` (`evaluation.verdict`)."""
    noise = noise_std * math.sqrt(len(mean))
    return {"update_norm": float(np.linalg.norm(mean)), "noise_norm_expected": noise}


def _description(arrays: Mapping[str, NDArray[Any]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (array.dtype.str, array.shape) for name, array in arrays.items()}


def _check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            raise ValueError(f"array {name!r} has type {array.dtype}, which no model travels in")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"array {name!r} has entries that are NaN or infinite")


def _log_untrained(arrays: Mapping[str, NDArray[Any]], layout: Layout) -> None:
    left = sorted(set(arrays) - set(layout.names))
    if left:
        logger.info("%d arrays are not trained and stay as they are: %s", len(left), left)


def _finite(rnd: int, key: str, value: Any) -> Any:
    """A metric for JSON, which knows no NaN: None in its place."""
    values = value if isinstance(value, list) else [value]
    if all(math.isfinite(one) for one in values):
        return value
    logger.warning("round %d: the evaluation's %s is not finite", rnd, key)
    return None
