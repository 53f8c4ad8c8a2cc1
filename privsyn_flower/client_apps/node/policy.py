"""The node's own limits: a TOML file of its owner, enforced against every message (rule 11).

The server's numbers are claims. What the policy does not allow is refused with the code
`policy`, which tells the server nothing about users' data: all that is compared is public.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from privsyn_flower.config import ConfigError, Section, explain
from privsyn_flower.protocol.wire import Refusal, WireError

Mode = Literal["secure", "plain"]
Kind = Literal["votes", "scores", "evaluation", "update"]
_SHARE_ROUNDING = 1 - 1e-9  # a share times a weight, and back, may lose its last digit


class Policy(Section):
    """What this node answers. A TOML list becomes a tuple, so that a policy cannot change."""

    aggregation: Annotated[tuple[Mode, ...], Field(strict=False)] = Field(
        ("secure",), description="modes allowed; plain trusts the server with this node's vector"
    )
    queries: Annotated[tuple[Kind, ...], Field(strict=False)] = Field(
        # Both put the same bound and noise on a user. The others run models on the texts.
        ("votes", "scores"),
        description="kinds of question answered; evaluation: how well models fit the texts; "
        "update: train a model on them",
    )
    trusted_aggregator: bool = Field(
        False,
        description="allow sums without the nodes' noise: the server is trusted to add its own",
    )
    min_noise_multiplier: float = Field(
        1.0, gt=0, description="least guaranteed noise std / bound of one query"
    )
    min_surviving_weight: float = Field(
        10.0, gt=0, description="least W_min: honest users who must share the noise of a sum"
    )
    max_surviving_weight: float = Field(
        1_000_000.0,
        gt=0,
        description="largest W_min: over so many users the noise of a sum is spread",
    )
    max_population: int = Field(
        1_000_000, ge=1, description="most users that the nodes of a sum say they stand for"
    )
    max_member_share: float = Field(
        0.5, gt=0, le=1, description="largest share of one node in the weight of a sum"
    )
    min_cohort: int = Field(3, ge=1, description="least nodes in a sum")
    min_colluding_share: float = Field(
        0.0, ge=0, lt=1, description="least share of the weight the server must assume colluding"
    )
    max_candidates: int = Field(
        20_000, ge=1, description="most coordinates of an answer; of an update: max-parameters"
    )
    max_parameters: int = Field(
        20_000_000, ge=1, description="most coordinates of an update: the parameters it trains"
    )
    max_past_vectors: int = Field(
        0,
        ge=0,
        description="most earlier rounds of a run whose updates, summed over this node's users, "
        "are kept here without noise, 4 bytes a coordinate and round; 0: none",
    )
    max_neighbors: int = Field(16, ge=1, description="most candidates one sample votes for")
    max_tokens: int = Field(
        500_000,
        ge=1,
        description="most tokens of one user that a question puts through models: of an update "
        "steps x texts of a step x their length, of an evaluation models x tokens",
    )
    allowed_models: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="models' fingerprints; empty: whichever this node has"
    )
    max_rounds_per_run: int = Field(
        200, ge=1, description="highest round, and most answers, attempts included, in one run"
    )
    max_participations: int = Field(
        0, ge=0, description="per user, over all runs, attempts included; 0: no limit"
    )
    min_separation: int = Field(
        0, ge=0, description="least difference of a user's rounds in a run; 0: none"
    )
    lifetime_epsilon: float = Field(10.0, gt=0, description="per user, over all runs")
    lifetime_delta: float = Field(1e-6, gt=0, lt=1, description="at which it is counted")
    require_roster: bool = Field(False, description="refuse peers that the roster does not name")
    roster: str = Field("", description="roster file, relative to this file; empty: none")

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        if self.require_roster and not self.roster:
            raise ValueError("require-roster = true needs a file: set roster")
        if self.max_surviving_weight < self.min_surviving_weight:
            raise ValueError(
                f"max-surviving-weight = {self.max_surviving_weight:g} is below "
                f"min-surviving-weight = {self.min_surviving_weight:g}: no W_min fits"
            )
        return self

    @property
    def roster_path(self) -> Path:
        """The roster's file; meaningful only when `roster` is set."""
        return Path(self.roster)


class RosterEntry(Section):
    """One node that may take part: its name, Ed25519 public key (hex) and weight in users."""

    name: str = Field(min_length=1)
    key: str = Field(pattern="^[0-9a-fA-F]{64}$")
    weight: int = Field(ge=1)
    revoked: bool = False

    @field_validator("key")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()  # one spelling, so that a duplicate shows


Roster = dict[bytes, RosterEntry]


def load_policy(path: Path | None = None) -> Policy:
    """A policy file -> the policy; None gives the defaults. Raises ConfigError if wrong.

    A relative `roster` becomes absolute: it is meant from the policy file's folder.
    """
    if path is None:
        return Policy()
    known = [name.replace("_", "-") for name in Policy.model_fields]
    values = _toml(path)
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{path}: unknown policy key {key!r}{hint}")
    try:
        policy = Policy.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error)}") from None
    if not policy.roster:
        return policy
    absolute = path.absolute().parent / Path(policy.roster).expanduser()
    return policy.model_copy(update={"roster": str(absolute)})


def check_query(
    policy: Policy,
    *,
    aggregation: str,
    kind: str,
    noise_multiplier: float,
    min_weight: float,
    colluding: float,
    length: int,
    neighbors: int,
    model: str,
    round: int,
    source: str = "nodes",
    cycle: int = 1,
    past_vectors: int = 0,
) -> None:
    """Refuse a query that the policy does not allow: raises WireError(POLICY). All PUBLIC.

    noise_multiplier: guaranteed noise std / bound of one user's vector, or of independent noise
    that costs as much a participation. past_vectors: rounds that are kept. min_weight: W_min in
    users; only a cycle-th of them is in a sum. colluding: share of the run's weight assumed
    colluding. length: of one user's vector.
    neighbors: candidates one sample votes for. model: the fingerprint of the embedder, or of the
    model that is trained. source: who adds the noise, "nodes" or "aggregator".
    """
    _one_of("aggregation", aggregation, policy.aggregation, "aggregation")
    _one_of("query kind", kind, policy.queries, "queries")
    _at_least(
        "noise multiplier", noise_multiplier, policy.min_noise_multiplier, "min-noise-multiplier"
    )
    _at_least("W_min", min_weight / cycle, policy.min_surviving_weight, "min-surviving-weight")
    # The noise of all nodes is in a sum, whoever's turn it is.
    _at_most("W_min", min_weight, policy.max_surviving_weight, "max-surviving-weight")
    least = policy.min_colluding_share * _SHARE_ROUNDING
    _at_least("colluding share", colluding, least, "min-colluding-share")
    if source != "nodes" and not policy.trusted_aggregator:
        raise WireError(
            Refusal.POLICY,
            f"noise is to be added by the {source}: policy key trusted-aggregator = false",
            "trusted-aggregator",
        )
    if kind == "update":
        _at_most("length", length, policy.max_parameters, "max-parameters")
    else:
        _at_most("length", length, policy.max_candidates, "max-candidates")
    _at_most("earlier rounds kept", past_vectors, policy.max_past_vectors, "max-past-vectors")
    _at_most("neighbors", neighbors, policy.max_neighbors, "max-neighbors")
    check_model(policy, model)
    _at_most("round", round, policy.max_rounds_per_run, "max-rounds-per-run")


def check_model(policy: Policy, model: str) -> None:
    """Refuse a model, by its fingerprint, that the owner did not name: raises WireError."""
    if policy.allowed_models:
        _one_of("model", model, policy.allowed_models, "allowed-models")


def check_work(policy: Policy, tokens: int) -> None:
    """Refuse a question that computes too long on one user's texts: raises WireError(POLICY).

    tokens: most that it puts through models, whatever the user wrote. PUBLIC.
    """
    _at_most("tokens of one user", tokens, policy.max_tokens, "max-tokens")


def check_cohort(
    policy: Policy, *, weights: Sequence[int], min_weight: float, colluding: float = 0.0
) -> None:
    """Refuse to join, or to unmask, a sum of too few: raises WireError(POLICY). All PUBLIC.

    weights: of the nodes in the sum, in users, as they declare them. colluding: weight (users,
    not a share) assumed to take its own noise off. min_weight: W_min, the honest weight that
    guarantees it.
    """
    weight, heaviest = sum(weights), max(weights, default=0)
    _at_least("W_min", min_weight, policy.min_surviving_weight, "min-surviving-weight")
    _at_most("W_min", min_weight, policy.max_surviving_weight, "max-surviving-weight")
    _at_least("nodes in the sum", len(weights), policy.min_cohort, "min-cohort")
    _at_most("weight of the sum", weight, policy.max_population, "max-population")
    most = policy.max_member_share * weight / _SHARE_ROUNDING
    _at_most("weight of one node", heaviest, most, "max-member-share")
    least = policy.min_colluding_share * weight * _SHARE_ROUNDING
    _at_least("weight assumed colluding", colluding, least, "min-colluding-share")
    if not weight - colluding >= min_weight:  # written so that NaN fails
        raise WireError(
            Refusal.POLICY,
            f"weight {weight} less {colluding} assumed colluding is below W_min = {min_weight}: "
            "the sum would not carry the guaranteed noise",
            "min-surviving-weight",
        )


def load_roster(path: Path) -> Roster:
    """A roster file -> public key (32 bytes) -> entry; revoked entries are kept.

    TOML with one [[nodes]] table per node, or JSON (`.json`): a list, or {"nodes": [...]}.
    Raises ConfigError on wrong values, and on a name or key that appears twice.
    """
    content = _json(path) if path.suffix == ".json" else _toml(path)
    if isinstance(content, Mapping):
        unknown = sorted(set(content) - {"nodes"})
        if unknown:
            raise ConfigError(f"{path}: unknown roster key {unknown[0]!r}; did you mean 'nodes'?")
        content = content.get("nodes", [])
    if not isinstance(content, list) or not content:
        raise ConfigError(f"{path} names no nodes: expected a list of name, key, weight")
    roster: Roster = {}
    names: set[str] = set()
    for number, item in enumerate(content, start=1):
        try:
            entry = RosterEntry.model_validate(item)
        except ValidationError as error:
            raise ConfigError(f"{path}, node {number}: {explain(error)}") from None
        key = bytes.fromhex(entry.key)
        if key in roster or entry.name in names:
            what = f"key {entry.key}" if key in roster else f"name {entry.name!r}"
            raise ConfigError(f"{path}, node {number}: {what} appears twice: remove one")
        roster[key] = entry
        names.add(entry.name)
    return roster


def check_member(roster: Roster, key: bytes, weight: int) -> RosterEntry:
    """The entry of a peer's key; raises WireError(POLICY) when unknown, revoked or reweighted."""
    entry = roster.get(key)
    if entry is None:
        raise WireError(Refusal.POLICY, f"key {key.hex()} is not in this node's roster", "roster")
    if entry.revoked:
        raise WireError(Refusal.POLICY, f"key {key.hex()} of {entry.name!r} is revoked", "roster")
    if entry.weight != weight:
        raise WireError(
            Refusal.POLICY,
            f"{entry.name!r} has weight {entry.weight} in the roster, not {weight}",
            "roster",
        )
    return entry


def _one_of(what: str, value: str, allowed: tuple[str, ...], key: str) -> None:
    if value not in allowed:
        raise WireError(
            Refusal.POLICY, f"{what} {value!r} is not among {list(allowed)}: policy key {key}", key
        )


def _at_least(what: str, value: float, bound: float, key: str) -> None:
    # Written so that NaN fails; an infinite W_min would make every share of the noise zero.
    if not bound <= value < math.inf:
        raise WireError(
            Refusal.POLICY, f"{what} = {value} must be >= {bound}: policy key {key}", key
        )


def _at_most(what: str, value: float, bound: float, key: str) -> None:
    if not value <= bound:
        raise WireError(
            Refusal.POLICY, f"{what} = {value} must be <= {bound}: policy key {key}", key
        )


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
