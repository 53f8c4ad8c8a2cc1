"""What is inspected: a run's synthetic text, the users it may repeat, others, and public text.

The owner of the private text runs this, outside of any node. Everything here but the synthetic and
the public text is PRIVATE.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from privsyn_flower.common.files import DataError, file_digest
from privsyn_flower.common.units import words
from privsyn_flower.config import RunConfig, cache_folder, load_config
from privsyn_flower.data import Federation, load_users, prepare
from privsyn_flower.data.canaries import Canary
from privsyn_flower.data.federation import prepared_key
from privsyn_flower.data.findings import LeftOut
from privsyn_flower.data.groups import cut
from privsyn_flower.data.text_files import public_groups
from privsyn_flower.data.users import Sample
from privsyn_flower.runs import SEEDS, SYNTHETIC, read_jsonl
from privsyn_flower.server_apps.public_text import is_deployment
from privsyn_flower.strategies.synthesis.topic_texts import MODEL
from privsyn_flower.text.embedders import KnownRows
from privsyn_flower.text.protocols import Embedder

SAME = 8  # words of a text that two people do not both write by chance
NO_HELD_OUT = (
    "no held-out users (--held-out FILE): nothing says how much of this is chance, nor whether who "
    "took part can be told"
)

Users = Mapping[str, Sequence[str]]


class InspectError(ValueError):
    """A run cannot be inspected so; the text says why, and what to do."""


@dataclass(frozen=True)
class Texts:
    """synthetic: of the run, by row. private, held_out: user -> texts, PRIVATE; nobody is in both.
    public: the run's. load_embedder: when it is first needed. digest: sha256 of the synthetic
    file. notes: what was left out or is missing. seeds: candidates that the run published, and
    their votes. canaries: of the run. claim: epsilon (None: nothing is claimed) and delta.
    no_bound: why the sides cannot bound epsilon, "" where both were drawn at random. run: its
    folder and configuration."""

    synthetic: list[str]
    private: Users
    held_out: Users
    public: Sequence[str]
    load_embedder: Callable[[], Embedder]
    digest: str = ""
    notes: list[str] = field(default_factory=list)
    seeds: Sequence[tuple[str, float]] = ()
    canaries: Sequence[Canary] = ()
    claim: tuple[float | None, float] = (None, 0.0)
    no_bound: str = ""
    run: tuple[Path, RunConfig] | None = None

    @property
    def published(self) -> list[str]:
        """All text of the run: what it wrote, and the seeds that go with it."""
        return [*self.synthetic, *(text for text, _ in self.seeds)]


def read_texts(
    run: Path,
    load: Callable[[str, str], Embedder],
    *,
    against: Path | None = None,
    held_out: Path | None = None,
    columns: tuple[str | None, str | None] = (None, None),
    embedder: str = "",
    at_random: bool = False,
) -> Texts:
    """Everything that a run's inspection compares.

    load: name and device -> an embedder. against, held_out: files of users, as of `data.path`;
    without `against` those of a simulated run with `benchmark = true`. columns: of user and text
    in the files, None: as the run's. embedder: instead of the run's. at_random: whether who was
    asked was drawn at random from the people of both files. Raises InspectError for a run
    without text, without users, and for held-out users who are not others; ConfigError, DataError,
    OSError.
    """
    folder = run.expanduser().absolute()
    if not (folder / "config.toml").is_file():
        raise InspectError(f"{folder} is no run folder of this app: it has no config.toml")
    config = load_config(folder / "config.toml")
    synthetic, digest = _synthetic(folder, config)
    notes: list[str] = []
    federation = _federation(config, notes) if against is None else None
    canaries: list[Canary] = []
    if federation is not None:
        canaries = federation.canaries()
        names = {one.name for one in canaries}
        private = _capped(federation.shard(0, 1), config)
        private = {user: own for user, own in private.items() if user not in names}
    else:
        assert against is not None  # _federation raises where there is neither
        private = _file_users(against, "--against", config, columns, notes)
        if config.data.canaries:
            notes.append("the run's canaries are not guessed with --against")
    others: Users = {}
    if held_out is not None:
        others = _file_users(held_out, "--held-out", config, columns, notes)
    elif federation is not None:
        others = _capped(federation.held_out("test"), config)
    check_apart(private, others, strict=held_out is not None)
    if not others:
        notes.append(NO_HELD_OUT)
    name = embedder or config.models.embedder
    return Texts(
        synthetic,
        private,
        others,
        _public(config, federation, notes),
        functools.cache(lambda: _remembering(load(name, config.models.device))),
        digest,
        notes,
        _seeds(folder),
        canaries,
        _claim(folder, config),
        _no_bound(config, files=held_out is not None, at_random=at_random),
        (folder, config),
    )


def _remembering(embedder: Embedder) -> Embedder:
    """Several attacks embed the same texts."""
    return KnownRows(embedder, [], np.zeros((0, embedder.dimension), dtype=np.float32))


def _seeds(folder: Path) -> list[tuple[str, float]]:
    path = folder / SEEDS
    try:
        rows = read_jsonl(path) if path.is_file() else []
        found = [(_cleaned(row["text"]), float(row.get("votes", 0.0))) for row in rows]
        if not all(math.isfinite(votes) for _, votes in found):
            raise ValueError("votes that are no number")
        return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InspectError(f"{path} is damaged ({type(error).__name__}: {error})") from None


def _no_bound(config: RunConfig, *, files: bool, at_random: bool) -> str:
    """Why who was asked is not a draw from both sides; "" where it is."""
    data = config.data
    if files:
        said = "" if at_random else "nobody says that who was asked was drawn at random from both"
        return said and f"{said} files (--drawn-at-random)"
    if data.source == "docstrings":
        return "modules are cut into users, of whom test users are the first"
    keys = {
        "data.partition = 'date'": data.partition == "date",
        "data.near-duplicates = 'remove'": data.near_duplicates == "remove",
    }
    used = ", ".join(key for key, here in keys.items() if here)
    return used and f"{used}: test users are not like the others"


def _claim(folder: Path, config: RunConfig) -> tuple[float | None, float]:
    """What the run's summary says of epsilon, None for nothing; and the configuration's delta."""
    path = folder / "summary.json"
    try:
        found = json.loads(path.read_text("utf-8"))["epsilon"] if path.is_file() else config.epsilon
    except (ValueError, KeyError, TypeError):
        raise InspectError(f"{path} is damaged: no epsilon can be read from it") from None
    number = isinstance(found, int | float) and math.isfinite(found)
    return float(found) if number else None, config.delta


def _cleaned(text: str) -> str:
    """Without halves of characters, which no embedder takes."""
    return text.encode("utf-8", "replace").decode()


def _synthetic(folder: Path, config: RunConfig) -> tuple[list[str], str]:
    path = folder / SYNTHETIC
    if not path.is_file() and (folder / MODEL).is_dir():
        return [], ""  # its result is a model
    if not path.is_file():
        raise InspectError(
            f"{folder} has no {SYNTHETIC}: its method = {config.method!r} wrote no text, or is not "
            "finished, so there is nothing to inspect"
        )
    digest = file_digest(path)
    try:
        found = [_cleaned(row["text"]) for row in read_jsonl(path)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InspectError(
            f"{path} is damaged, or a row has no text ({type(error).__name__}: {error})"
        ) from None
    if not found:
        raise InspectError(f"{path} holds no text: there is nothing to inspect")
    return found, digest


def _federation(config: RunConfig, notes: list[str]) -> Federation:
    """The run's own simulated users, from its cache or built again."""
    if is_deployment(config) or not config.benchmark:
        raise InspectError(
            "the run's private users are not known here (only a simulation with benchmark = true "
            "can open its own): name their file with --against FILE, and others with --held-out"
        )
    cache = cache_folder(config)
    if not (cache / "data" / prepared_key(config.data)[:24]).is_dir():
        notes.append(
            "the run's users are built again from data.source, and are those of the run only if "
            "that has not changed since"
        )
    return Federation(prepare(config.data, cache))


def _capped(users: Users, config: RunConfig) -> Users:
    """As much of each user as a node reads; users with a text alone."""
    cap = config.data.samples_per_user
    return {user: own[:cap] for user, own in users.items() if own}


def _file_users(
    path: Path,
    option: str,
    config: RunConfig,
    columns: tuple[str | None, str | None],
    notes: list[str],
) -> Users:
    """User -> texts of a file, cut into samples where the run's were."""
    user, text = columns
    user = config.data.user_column if user is None else user
    text = config.data.text_column if text is None else text
    found = load_users(path.expanduser(), user_column=user, text_column=text)
    if not user:  # each row is one, and its number is another's in the other file
        found = {f"{option} {name}": own for name, own in found.items()}
    left_out = LeftOut()
    users = {
        name: [s.text for s in cut([Sample(one) for one in own], config.data, left_out)]
        for name, own in found.items()
    }
    if left_out.total():
        notes.append(left_out.summary(option))
    users = {name: own for name, own in users.items() if own}
    if missing := len(found) - len(users):
        notes.append(f"{option}: {missing:,} users have no text")
    if not users:
        raise InspectError(f"{option} {path} holds no user with a text")
    return users


def check_apart(private: Users, held_out: Users, *, strict: bool) -> None:
    """Raises InspectError for users who are on both sides: by id, or, where strict, by a text of
    SAME words or more."""
    if both := private.keys() & held_out.keys():
        raise InspectError(
            f"{len(both):,} of {len(held_out):,} held-out users are among the private users by "
            "their id: held-out users must be others, whom the run has not asked"
        )
    shared = shared_texts(private, held_out) if strict else set()
    if long := {text for text in shared if len(words(text)) >= SAME}:
        users = sum(not long.isdisjoint(own) for own in held_out.values())
        raise InspectError(
            f"{users:,} of {len(held_out):,} held-out users have a text of {SAME} words or more "
            f"that a private user has, too ({len(long):,} texts): held-out users must be others; "
            "leave these texts out of both files"
        )


def shared_texts(private: Users, held_out: Users) -> set[str]:
    """Texts that users of both sides have, word for word."""
    mine = {text for own in private.values() for text in own}
    return mine & {text for own in held_out.values() for text in own}


def texts_of_several(people: Iterable[Sequence[str]]) -> set[str]:
    """Texts that more than one person has, word for word. people: the texts of each."""
    counts = Counter(text for own in people for text in set(own))
    return {text for text, owners in counts.items() if owners > 1}


def _public(config: RunConfig, federation: Federation | None, notes: list[str]) -> list[str]:
    """The run's public text: all that its source has, not the pool alone."""
    if federation is None and config.data.has_minority:
        try:
            federation = Federation(prepare(config.data, cache_folder(config)))
        except DataError as error:
            notes.append(f"without the run's public text: {error}")
    if federation is not None:
        return [*federation.public_corpus(), *federation.public_validation()]
    if config.data.public_path:
        return [s.text for group in public_groups(config.data) for s in group.samples]
    notes.append("the run has no public text: what everybody could know is not told apart")
    return []
