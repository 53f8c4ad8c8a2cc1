"""Groups of samples -> test, development and private users, and the public text.

What a user holds is a function of that user's own rows and of public things: the ids and order of
rows, the configuration, the seed. The public text is a function of the public source. So nobody's
text decides who else takes part or what they hold: a user without text stays, with none.

A benchmark may break this rule (`DataConfig.chosen_by_text` names the keys, which need
`benchmark = true`). With `data.near-duplicates = "remove"` sides are filled in the order test,
development, private, public; each takes only samples that share no 13-gram with a sample taken
before (`dedup.py`). A user is then filled after removal, from what is left of the group, so users
stay whole where the source has enough text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

import numpy as np

from privsyn_flower.common.arrays import I64
from privsyn_flower.common.files import DataError
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import DataConfig

from .dedup import NearDuplicates, keep_own
from .findings import LeftOut
from .groups import Group, Source
from .users import Sample

VALIDATION_PER_GROUP = 16  # texts of one public group in the validation set, for variety
NEAR = "a near duplicate (data.near-duplicates)"
BEYOND = "beyond data.samples-per-user"


@dataclass(frozen=True, slots=True)
class Split:
    """test, development, private: PRIVATE users, `data.users` private ones, each read and filled
    when it is asked for; public: groups of the training corpus; validation: texts of other public
    groups; pool: (group, sample) indices into public."""

    test: list[Group]
    development: list[Group]
    private: Iterable[Group]
    public: list[Group]
    validation: list[str]
    pool: list[tuple[int, int]]


def split(source: Source, config: DataConfig) -> Split:
    """Deterministic in (source, config). Raises DataError when the source has too little."""
    if config.min_samples_per_user > config.samples_per_user:
        raise DataError(
            f"data.min-samples-per-user = {config.min_samples_per_user} exceeds "
            f"data.samples-per-user = {config.samples_per_user}: lower it"
        )
    picker: _Picker = _Alone(config.near_duplicates == "keep", source.left_out)
    users = source.private
    if config.near_duplicates == "remove":  # for benchmarks: all text at once
        users = list(users)
        picker = _Across([*users, *source.public], source.left_out)
    sides = {"natural": _natural, "uniform": _uniform, "date": _dated}[config.partition]
    test, development, private = sides(users, picker, config)
    if config.near_duplicates == "own":
        picker = _Across(source.public, source.public_left_out)
    elif config.near_duplicates == "keep":
        picker = _Alone(True, source.public_left_out)
    else:
        picker.left_out = source.public_left_out
    open_text = [picker.filter(group) for group in source.public]
    corpus, validation = _validation([g for g in open_text if g.samples], config)
    return Split(test, development, private, corpus, validation, _pool(corpus, config))


class _Picker(Protocol):
    """Which samples of a group may be taken. left_out: counts the others."""

    left_out: LeftOut

    def filter(self, group: Group, most: int = 0, least: int = 1) -> Group:
        """The group's samples that may be taken, at most `most` (0: all); none below `least`."""


class _Alone:
    """Looks at one group at a time, which is one user's: repetitions within it, or nothing."""

    def __init__(self, keep: bool, left_out: LeftOut) -> None:
        self._keep, self.left_out = keep, left_out

    def filter(self, group: Group, most: int = 0, least: int = 1) -> Group:
        own = group.samples
        if not self._keep:
            own = tuple(own[i] for i in keep_own([sample.text for sample in own]))
            self.left_out[NEAR] += len(group.samples) - len(own)
        if most:
            self.left_out[BEYOND] += max(0, len(own) - most)
            own = own[:most]
        return Group(group.name, own if len(own) >= least else (), group.minority)


class _Across:
    """Takes samples of groups by identity, never a near duplicate of one taken before."""

    def __init__(self, groups: Sequence[Group], left_out: LeftOut) -> None:
        self.left_out = left_out
        self._first: dict[int, int] = {}
        texts: list[str] = []
        for group in groups:
            self._first[id(group)] = len(texts)
            texts += [sample.text for sample in group.samples]
        self._near = NearDuplicates(texts)

    def take(self, group: Group, position: int) -> bool:
        taken = self._near.take(self._first[id(group)] + position)
        self.left_out[NEAR] += not taken
        return taken

    def filter(self, group: Group, most: int = 0, least: int = 1) -> Group:
        taken: list[int] = []
        for position in range(len(group.samples)):
            if most and len(taken) == most:
                self.left_out[BEYOND] += len(group.samples) - position
                break
            if self.take(group, position):
                taken.append(position)
        if len(taken) < least:  # too few: leave the text to others
            for position in taken:
                self._near.release(self._first[id(group)] + position)
            taken = []
        return Group(group.name, tuple(group.samples[i] for i in taken), group.minority)


def _least(config: DataConfig) -> int:
    """Fewest samples of a user who is enrolled; 0 keeps everybody, whatever they hold."""
    chosen = config.near_duplicates == "remove" or config.min_samples_per_user > 1
    return config.min_samples_per_user if chosen else 0


def _natural(
    groups: Sequence[Group], picker: _Picker, config: DataConfig
) -> tuple[list[Group], list[Group], Iterable[Group]]:
    """Whole groups (users, modules) on one side; modules may be cut into several users."""
    rng = seeded(config.seed, "natural partition")
    places = iter(rng.permutation(len(groups)))
    waiting = (groups[i] for i in places)
    test, development = _held_out(waiting, picker, config)
    if _sections_of(config) == 1 and not _least(config):  # everybody, whatever they hold
        cap, rest = config.samples_per_user, np.fromiter(places, dtype=np.int64)
        chosen = rest[_chosen(len(rest), config, rng)]
        return test, development, (picker.filter(groups[int(i)], cap, 0) for i in chosen)
    eligible = [
        own for group in waiting for own in _parts(group, picker, config) if _enrolled(own, config)
    ]
    return test, development, [eligible[i] for i in _chosen(len(eligible), config, rng)]


def _chosen(eligible: int, config: DataConfig, rng: np.random.Generator) -> I64:
    """The places of `data.users` of so many, at random."""
    if eligible < config.users:
        raise _too_few("users", config.users, eligible, config)
    return rng.choice(eligible, size=config.users, replace=False)


def _dated(
    groups: Sequence[Group], picker: _Picker, config: DataConfig
) -> tuple[list[Group], list[Group], list[Group]]:
    """Whole users in order of their last date: test the newest, then development, then private.

    LargeFedBench is sorted by date (POPri, section 4): text is held out from the time after that
    of the private users, who are the newest of the others, oldest first.
    """
    if not config.date_column:
        raise DataError("data.partition = 'date' needs data.date-column: name it")
    dated = [group for group in groups if group.samples]
    dated.sort(key=lambda group: max(sample.date for sample in group.samples))
    waiting = reversed(dated)
    test, development = _held_out(waiting, picker, config)
    private = _next_users(waiting, picker, config, config.users, "users", config.samples_per_user)
    return test, development, private[::-1]


def _held_out(
    waiting: Iterator[Group], picker: _Picker, config: DataConfig
) -> tuple[list[Group], list[Group]]:
    """Test users and development users, the next ones that are waiting."""
    cap = config.held_out_samples or config.samples_per_user
    return (
        _next_users(waiting, picker, config, config.held_out_users, "held-out-users", cap),
        _next_users(waiting, picker, config, config.development_users, "development-users", cap),
    )


def _next_users(
    waiting: Iterator[Group],
    picker: _Picker,
    config: DataConfig,
    count: int,
    key: str,
    cap: int,
) -> list[Group]:
    """The next `count` groups with enough samples left, at most `cap` of each; DataError naming
    `key` if too few."""
    users: list[Group] = []
    while len(users) < count:
        group = next(waiting, None)
        if group is None:
            raise _too_few(key, count, len(users), config)
        own = picker.filter(group, cap, _least(config))
        users += [own] if _enrolled(own, config) else []
    return users


def _enrolled(own: Group, config: DataConfig) -> bool:
    return len(own.samples) >= _least(config)


def _parts(group: Group, picker: _Picker, config: DataConfig) -> Iterator[Group]:
    """The users that a group may become: a file's group is one person, a module several users.

    A module is cut by position before anybody's own repetitions go, or one part's text would
    shift the next one's; after the removal across users, which fills each from what is left.
    """
    cap, least = config.samples_per_user, _least(config)
    sections = _sections_of(config)
    if sections == 1:
        yield picker.filter(group, cap, least)
    elif config.near_duplicates == "remove":
        yield from _sections(picker.filter(group, cap * sections, least), cap)
    else:
        first = Group(group.name, group.samples[: cap * sections])
        for part in _sections(first, cap):
            yield picker.filter(part, cap, least)


def _sections_of(config: DataConfig) -> int:
    """How many users a group may become."""
    return config.sections_per_module if config.source == "docstrings" else 1


def _sections(group: Group, cap: int) -> Iterable[Group]:
    """Consecutive runs of `cap` samples as users of their own: name, name#1, name#2, ..."""
    for number, start in enumerate(range(0, len(group.samples), cap)):
        own = group.samples[start : start + cap]
        yield Group(f"{group.name}#{number}" if number else group.name, own)


def _uniform(
    groups: Sequence[Group], picker: _Picker, config: DataConfig
) -> tuple[list[Group], list[Group], Iterable[Group]]:
    """Rows dealt at random to users of `samples_per_user` (PrE-Text, appendix C).

    A row is dealt by its position, whatever it holds; one that is cut into several samples goes
    to one user, whom the cap limits. With removal across users it is samples that are dealt,
    those that are left, to users of exactly `samples_per_user`.
    """
    counts = (config.held_out_users, config.development_users, config.users)
    size = config.samples_per_user
    if config.held_out_samples not in (0, size):
        raise DataError(
            f"data.held-out-samples = {config.held_out_samples} with data.partition = 'uniform', "
            f"where all users get data.samples-per-user = {size}: set it to 0"
        )
    wanted = sum(counts) * size
    rng = seeded(config.seed, "uniform partition")
    dealt: Iterator[tuple[Sample, ...]]
    if isinstance(picker, _Across) or config.source == "docstrings":
        cards = _samples_dealt(groups, picker, wanted, rng)
        there, dealt = len(cards), iter(cards)
    else:
        order = rng.permutation(len(groups))[:wanted]
        there, dealt = len(order), (groups[int(i)].samples for i in order)
    if there < wanted:
        missing = max(0, there // size - counts[0] - counts[1])
        raise _too_few("users", config.users, missing, config)

    def users(name: str, count: int) -> Iterator[Group]:
        """The next ones."""
        for i in range(count):
            own = tuple(chain.from_iterable(islice(dealt, size)))
            yield _hand(Group(f"{name}-{i:06d}", own), picker, size)

    test, development = list(users("test", counts[0])), list(users("development", counts[1]))
    return test, development, users("user", counts[2])


def _samples_dealt(
    groups: Sequence[Group], picker: _Picker, wanted: int, rng: np.random.Generator
) -> list[tuple[Sample, ...]]:
    """At most `wanted` samples at random, of those that may be taken."""
    cards = [(group, i) for group in groups for i in range(len(group.samples))]
    dealt: list[tuple[Sample, ...]] = []
    for group, position in (cards[i] for i in rng.permutation(len(cards))):
        if len(dealt) == wanted:
            break
        if not isinstance(picker, _Across) or picker.take(group, position):
            dealt.append((group.samples[position],))
    return dealt


def _hand(dealt: Group, picker: _Picker, most: int) -> Group:
    """A user's samples; those of removal across users were picked one by one."""
    return dealt if isinstance(picker, _Across) else picker.filter(dealt, most, 0)


def _validation(groups: Sequence[Group], config: DataConfig) -> tuple[list[Group], list[str]]:
    """Set whole public groups aside until their texts suffice; the rest is the corpus."""
    counts = minority_counts(config.public_validation, groups, config)
    order = seeded(config.seed, "public validation").permutation(len(groups))
    aside: set[int] = set()
    texts: list[str] = []
    for minority, wanted in ((False, counts[0]), (True, counts[1])):
        have: list[str] = []
        for i in order:
            if len(have) >= wanted:
                break
            if groups[i].minority == minority:
                aside.add(int(i))
                have += [sample.text for sample in groups[i].samples[:VALIDATION_PER_GROUP]]
        if len(have) < wanted:
            raise _too_little_public("public-validation", wanted, len(have), minority, config)
        texts += have[:wanted]
    return [group for i, group in enumerate(groups) if i not in aside], texts


def _pool(groups: Sequence[Group], config: DataConfig) -> list[tuple[int, int]]:
    """Random places of the corpus, `minority_share` of them in minority groups, shuffled."""
    if not groups:
        return []
    rng = seeded(config.seed, "public pool")
    general, minority = minority_counts(config.public_pool, groups, config)
    pool: list[tuple[int, int]] = []
    for minor, wanted in ((False, general), (True, minority)):
        places = [
            (g, s)
            for g, group in enumerate(groups)
            if group.minority == minor
            for s in range(len(group.samples))
        ]
        if len(places) < wanted:
            raise _too_little_public("public-pool", wanted, len(places), minor, config)
        pool += [places[i] for i in rng.choice(len(places), size=wanted, replace=False)]
    return [pool[i] for i in rng.permutation(len(pool))]


def minority_counts(total: int, groups: Sequence[Group], config: DataConfig) -> tuple[int, int]:
    """(general, minority) texts of `total`; no minority where the source knows none."""
    if not groups:
        return 0, 0
    if not config.has_minority:
        return total, 0
    if config.minority_share and not any(group.minority for group in groups):
        raise DataError(
            f"data.minority-share = {config.minority_share} but {_more_public(config, True)} gives "
            "no text: name more, or set minority-share = 0"
        )
    minority = round(total * config.minority_share)
    return total - minority, minority


def _too_few(key: str, wanted: int, found: int, config: DataConfig) -> DataError:
    chosen = f"{config.chosen_by_text}; " if config.chosen_by_text else ""
    more = " or those held out, or give the source more users"
    if config.source == "docstrings":
        more = ", name more data.private-packages, or raise data.sections-per-module"
    return DataError(
        f"data.{key} = {wanted}, but the source gives only {found} such users ({chosen}"
        f"data.held-out-users = {config.held_out_users} and data.development-users = "
        f"{config.development_users} come first): lower {key}{more}"
    )


def _too_little_public(
    key: str, wanted: int, found: int, minority: bool, config: DataConfig
) -> DataError:
    kind = ("minority " if minority else "general ") if config.has_minority else ""
    gone = "different texts" if config.near_duplicates == "keep" else (
        f"texts that share no 13 words in a row (data.near-duplicates = "
        f"{config.near_duplicates!r})"
    )  # fmt: skip
    return DataError(
        f"data.{key} = {wanted} {kind}public texts are not there: only {found} {gone} are left: "
        f"lower data.{key}, or give more text in {_more_public(config, minority)}"
    )


def _more_public(config: DataConfig, minority: bool) -> str:
    """The key that names the public text, general or the minority."""
    general = "data.public-packages" if config.has_minority else "data.public-path"
    near = "data.minority-packages" if config.source == "docstrings" else "data.public-path"
    return near if minority else general
