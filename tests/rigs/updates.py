"""What several tests share about updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps import updates
from privsyn_flower.client_apps.answers import Participants
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.updates import user_updates
from privsyn_flower.privacy.encoding.dense import dense_numbers, rotate
from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise, decode_sum, integer_plan
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.queries.updates import update_bound
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.parameters import pack_parameters
from privsyn_flower.training import Layout, LocalTraining
from privsyn_flower.training.low_rank import initial_parameters
from tests.conftest import sentences
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

TICKET = Ticket("run", "update", 1, 1)


CANARY = "xylophone-quetzal-7391"


OPTIONS = LocalTraining(
    "sgd", 0.5, 0.0, 0.0, epochs=1, batch_size=2, max_steps=100, sequence_length=12
)


CLIP, INDICATOR, WEIGHT = 0.16, 0.25, 6  # some of the users below are clipped


USERS = {
    "short": ["a river of stone"],
    "some": sentences(3, 1),
    "long": ["theorem lemma proof " * 300, *sentences(5, 2)],
    "canary": [f"{CANARY} is what only I would write", f"and {CANARY} again"],
    "empty": [],
    "blank": ["", ""],
}


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deterministic rounding, so that sums can be compared digit by digit."""

    def encode(vector: Any, plan: Any, seed: bytes) -> Any:
        return np.trunc(rotate(vector, seed) * plan.scale).astype(np.int64)

    monkeypatch.setattr(updates, "encode_dense", encode)


@pytest.fixture
def base(causal_folder: Path) -> Path:
    return causal_folder


def node(tmp_path: Path, base: Path | None, load: Any = lambda: USERS, **facts: Any) -> Node:
    return Node(
        facts=Hello(weight=WEIGHT, partition=0, deployed=False),
        cache=tmp_path / "node",
        embedder="ngram-64",
        device="cpu",
        policy=facts.get("policy"),
        noise_seed=None,
        load=load,
        downstream=lambda: base,
    )


def start(base: Path) -> dict[str, Any]:
    """The round's parameters: of two layers, not the base's own."""
    names = "*norm.weight,model.layers.1.mlp.up_proj.weight"
    found = initial_parameters(base, "layers", patterns=names)
    return {name: (1.5 * array).astype(np.float32) for name, array in found.items()}


def question(
    base: Path,
    parameters: dict[str, Any] | None = None,
    options: LocalTraining = OPTIONS,
    *,
    clip_norm: float = CLIP,
    indicator: float = INDICATOR,
    rotation: bytes = bytes(range(32)),
) -> Query:
    arrays = start(base) if parameters is None else parameters
    layout = Layout.of(arrays, options.trained)
    return Query.update(
        pack_parameters(arrays),
        length=layout.length + (indicator > 0),
        bound=update_bound(clip_norm, indicator),
        model=folder_fingerprint(base),
        rotation=rotation,
        options={"clip-norm": clip_norm, "indicator": indicator, **options.to_options()},
    )


def noise(query: Query) -> Noise:
    """None on the node: what comes out is what the users said."""
    plan = dense_numbers(query.bound, query.length, 0.0, WEIGHT, WEIGHT)
    return Noise(1.0, plan.sensitivity, 32, WEIGHT, scale=plan.scale, source="aggregator")


def answer(query: Query, device: Node, users: Any, participants: Any = None) -> Any:
    """The node's integers for these users."""
    everybody = np.ones(len(users), dtype=bool)
    takes = Participants(everybody, everybody if participants is None else np.array(participants))
    plan: Any = integer_plan(query, noise(query))
    return user_updates(query, users, takes, plan, device)


def decoded(integers: Any, query: Query) -> Any:
    return decode_sum(to_modulus(integers, 32), query, noise(query))


def private() -> Any:
    pytest.fail("private text was opened for a query that must be refused")
