"""Configuration -> the public text of a run, and whether its users are real or simulated."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from privsyn_flower.app.public.source import carried
from privsyn_flower.common.files import private_folder, replace_private
from privsyn_flower.common.progress import Progress
from privsyn_flower.common.randomness import seeded
from privsyn_flower.common.units import beginning
from privsyn_flower.config import ConfigError, RunConfig, cache_folder
from privsyn_flower.config.models import ModelsConfig
from privsyn_flower.data import Federation, prepare
from privsyn_flower.data.federation import identity
from privsyn_flower.data.findings import LeftOut
from privsyn_flower.data.reading import text_file
from privsyn_flower.data.text_files import place_name, public_groups
from privsyn_flower.privacy.sentence import FILE
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.ctcl.config import CtclConfig

logger = logging.getLogger("privsyn_flower")

ALIKE = "like another in its first data.sample-words"
CARRIED, READ = "carried", "read"  # values in the run folder
BEYOND = "beyond data.public-pool and data.public-validation"


@dataclass(frozen=True)
class PublicText:
    """pool: candidates, examples and retrieval. validation: other public text, like the pool.
    federation: the simulated one, None in deployment. by_class: texts of the pool by their labels,
    of the method's classes; empty without classes. left_out: texts of the source that are in none
    of these, by cause."""

    pool: list[str]
    federation: Federation | None
    validation: list[str] = field(default_factory=list)
    by_class: dict[str, list[str]] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)


def is_deployment(config: RunConfig) -> bool:
    """No private file named: the users' text is on real nodes, only public text is here."""
    return config.data.source == "files" and not config.data.path


def check_deployment(config: RunConfig) -> None:
    """Raises ConfigError for keys that are not for real users."""
    if is_deployment(config) and (config.benchmark or config.simulation_seeded_noise):
        raise ConfigError(
            "benchmark and simulation-seeded-noise are for simulation only; with data.path "
            "empty the users are real: set both to false"
        )


def public_text(config: RunConfig, progress: Progress) -> PublicText:
    """The public side of the data. Raises ConfigError for keys that deployment forbids."""
    check_deployment(config)
    _warn_of_a_claim(config)
    if is_deployment(config):
        if (config.trains or config.measures) and not config.data.public_path:
            return PublicText([], None)  # nothing is made of it there
        left_out = LeftOut()
        groups = public_groups(config.data, lambda note: progress("data", 0, 1, note), left_out)
        samples = [sample for group in groups for sample in group.samples]
        texts = candidates([sample.text for sample in samples], config)
        pool, validation = drawn(texts, config)
        left_out[ALIKE] += len(samples) - len(texts)
        left_out[BEYOND] += len(texts) - len(pool) - len(validation)
        _tell(left_out, config, progress)
        classes = by_class(((s.text, s.label) for s in samples), pool, config)
        return PublicText(pool, None, validation, classes, left_out)
    progress("data", 0, 1, "preparing the simulated federation")
    prepared = prepare(config.data, cache_folder(config), lambda note: progress("data", 0, 1, note))
    federation = Federation(prepared)
    left_out = LeftOut(federation.meta["public"]["left_out"])
    validation = candidates(federation.public_validation(), config)
    texts = federation.public()
    pool = candidates(texts, config)
    left_out[ALIKE] += len(texts) - len(pool)
    _tell(left_out, config, progress)
    progress("data", 1, 1)
    classes = by_class(zip(texts, federation.public_labels(), strict=True), pool, config)
    return PublicText(pool, federation, validation, classes, left_out)


def drawn(texts: list[str], config: RunConfig) -> tuple[list[str], list[str]]:
    """Pool and validation of a deployed server's texts: at random, as a file may be sorted."""
    order = seeded(config.data.seed, "deployed public text").permutation(len(texts)).tolist()
    size, more = config.data.public_pool, config.data.public_validation
    found = [texts[place] for place in order[: size + more]]
    return found[:size], found[size:]


def _tell(left_out: LeftOut, config: RunConfig, progress: Progress) -> None:
    if left_out.total():
        place = config.data.public_path
        progress("data", 0, 1, left_out.summary(place_name(place) if place else "public text"))


def warn_of_other_text(config: RunConfig, folder: RunFolder) -> None:
    """Say so where a resumed simulation reads other text than it began with: users, and who of
    them is held out, are drawn from it anew.

    The run folder has a random name; the digest of private text, under that name, is in the cache.
    """
    if (name := folder.load_value(READ)) is None:
        name = secrets.token_hex(12)
        folder.save_value(READ, name)
    path = private_folder(cache_folder(config) / "data") / f"read-{name}"
    now = json.dumps(identity(config.data), sort_keys=True)
    if not path.is_file():
        replace_private(path, now.encode())
    elif path.read_text("utf-8") != now:
        logger.warning(
            "the text of data.source = %r is not what this run began with: from here on other "
            "users answer, and held-out users may be among those who answered before; for figures "
            "that mean something, start a new run", config.data.source,
        )  # fmt: skip


def carried_by(config: RunConfig, folder: RunFolder | None = None) -> str:
    """The statements that lie beside the public text and the models' folders; "" where none do.

    folder: of a run, which keeps them: text that was made of what was given carries them still,
    when it has moved away since, or another model was named.
    """
    found = list(_carried(config).values())
    if folder is None:
        return "\n\n".join(dict.fromkeys(found))
    before = folder.load_value(CARRIED) or []
    if new := [one for one in dict.fromkeys(found) if one not in before]:
        folder.save_value(CARRIED, [*before, *new])
    return "\n\n".join([*before, *new])


def _carried(config: RunConfig) -> dict[str, str]:
    """key -> the statement that lies beside what it names."""
    text = config.data.public_path
    models = {f"models.{kind}": getattr(config.models, kind) for kind in ModelsConfig.kinds}
    places = {key: name for key, name in models.items() if Path(name).expanduser().is_dir()}
    if config.uses("ctcl") and (topics := config[CtclConfig].topics) != "train":
        places["ctcl.topics"] = topics
    if text:
        hub = text.startswith("hub:")
        places["data.public-path"] = text if hub else str(text_file(Path(text).expanduser()))
    return {key: found for key, place in places.items() if (found := carried(place))}


def _warn_of_a_claim(config: RunConfig) -> None:
    """Say so where public text or a model was made of users' answers, as the statement beside it
    tells."""
    for key in _carried(config):
        logger.warning(
            "%s: %s beside it says what it carries already. What the run makes of it carries that, "
            "too, beside the run's own epsilon", key, FILE,
        )  # fmt: skip


def by_class(
    labelled: Iterable[tuple[str, str]], pool: list[str], config: RunConfig
) -> dict[str, list[str]]:
    """Class -> its texts of the pool; of texts that were cut to the same words, each label's."""
    found: dict[str, list[str]] = {name: [] for name in config.classes}
    kept = set(pool) if found else set()
    for text, label in labelled:
        if label in found:
            found[label] += [one for one in candidates([text], config) if one in kept]
    return found


def candidates(pool: list[str], config: RunConfig) -> list[str]:
    """The pool's distinct texts, cut to `data.sample-words` words each.

    The first population, and so the first seeds, come from here: whole web pages would not be
    candidates of the length that the later rounds have.
    """
    words = config.data.sample_words
    return list(dict.fromkeys(beginning(text, words) for text in pool))


def labels_of(federation: Federation, config: RunConfig) -> dict[str, str]:
    """Text of the pool -> its label, its domain where the pool has several; of texts that were cut
    to the same words, the first's."""
    found = dict[str, str]()
    for text, label in zip(federation.public(), federation.public_labels(), strict=True):
        for cut in candidates([text], config):
            found.setdefault(cut, label)
    return found
