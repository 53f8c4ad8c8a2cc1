"""The text that a run names: is it there, can it be read, is there enough of it? What generator
can write its language, where the run names none?
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from privsyn_flower.app.public.source import USER, carried, check_chosen
from privsyn_flower.common.files import DataError
from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.config.section import Scalar
from privsyn_flower.config.toml import read_flat
from privsyn_flower.data.docstrings import STDLIB, find_distribution, package_lists
from privsyn_flower.data.federation import identity
from privsyn_flower.data.findings import LeftOut
from privsyn_flower.data.groups import Source
from privsyn_flower.data.hub import HUB
from privsyn_flower.data.partition import BEYOND, split
from privsyn_flower.data.reading import NO_MIX, text_file
from privsyn_flower.data.spool import OTHER_DATES
from privsyn_flower.data.surveys import WHOLE, Preview, preview
from privsyn_flower.data.text_files import (
    check_public,
    place_name,
    private_columns,
    private_groups,
    public_groups,
)
from privsyn_flower.data.values import Columns, quote_columns
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.public_text import by_class, candidates, drawn, is_deployment
from privsyn_flower.server_apps.readiness import WRITER, WRITER_MODULES, missing, used_models
from privsyn_flower.strategies.baselines.config import DPPromptConfig
from privsyn_flower.text.embedders import longer_than_read
from privsyn_flower.text.tiny.assets import shipped_model
from privsyn_flower.text.words import MOST_TOKENS, MOST_UNREADABLE, Spelling, spelling

from .findings import Finding, Findings
from .sizes import model_files

SPELLING = ("generator", "conditional", "infiller", "downstream")  # models that read tokens
CHECK = "`privsyn data check` says what is skipped"


def private_file(config: RunConfig) -> Findings:
    """The users' text of a simulation: columns, ids, dates, users against keys."""
    data = config.data
    if is_deployment(config) and data.chunk:
        text = "data.chunk = true cuts the public text: nodes take their users' texts as they are"
        yield Finding(text, fatal=False)
    if data.source != "files" or not data.path:
        return
    columns, where = private_columns(data), f"{data.path} (data.path)"
    seen = _look(data.path, columns, "data.path")
    if seen is None:
        return
    if not seen.rows:
        yield Finding(f"{where} holds no row that can be read")
    else:
        # Labels and dates may begin below what was looked at.
        sure = columns if seen.whole else Columns(columns.user, columns.text)
        sure.require(seen.columns, where)
    if seen.read.shared:
        yield Finding(f"{seen.read.shared_id_message(where)} ({CHECK})")
    elif seen.read.all_outside:
        yield Finding(f"{where}: {seen.read.all_outside}", fatal=seen.whole)
    elif seen.whole and seen.rows and not data.chunk:
        yield from _too_few_users(config, seen)
    if seen.read.inside and seen.read.mostly_outside:
        yield Finding(f"{where}: {seen.read.mostly_outside}", fatal=False)


def _too_few_users(config: RunConfig, seen: Preview) -> Findings:
    """At most as many users can be enrolled as the file has: fewer are left after the split."""
    data = config.data
    asked = data.users + data.held_out_users + data.development_users
    sizes = (
        f"data.users = {data.users}, data.held-out-users = {data.held_out_users} and "
        f"data.development-users = {data.development_users} need"
    )
    if data.partition == "uniform":
        needed = asked * data.samples_per_user
        there = len(seen.texts) if data.chosen_by_text else seen.records
        if there < needed:
            yield Finding(
                f"{sizes} {needed} texts (data.partition = 'uniform'), and {data.path} has "
                f"{there}: lower them, or give more text ({CHECK})"
            )
        return
    # Who has no text is a user all the same, unless the split is chosen by texts.
    there = seen.users(data.min_samples_per_user if data.chosen_by_text else 0)
    if there < asked:
        of = f" with {data.min_samples_per_user} texts or more" * (data.min_samples_per_user > 1)
        yield Finding(
            f"{sizes} {asked} users{of}, and {data.path} has {there}: lower them, or give the "
            f"text of more users ({CHECK})"
        )


def public_file(config: RunConfig) -> Findings:
    """The public text: there at all, readable, and enough for the pool and the population."""
    data = config.data
    if data.has_minority:
        return
    if not data.public_path:
        if recipe_of(config).first_texts(config)[1]:
            yield Finding(
                f"data.public-path is empty, and method = {config.method!r} begins with public "
                "text: name a file of it, or hub:NAME"
            )
        return
    check_public(data)
    text = data.public_text_column or data.text_column
    seen = _look(data.public_path, Columns("", text), "data.public-path")
    if seen is None:
        return
    if not carried(data.public_path):
        check_chosen(Path(data.public_path), seen.columns)
    if found := {USER, data.user_column} & seen.columns:
        yield Finding(
            f"{data.public_path} (data.public-path) has a column {min(found)!r}, as users' own "
            "text has: all of it is used and released as public text",
            fatal=False,
        )
    if not seen.rows:
        yield Finding(f"{data.public_path} (data.public-path) holds no row that can be read")
        return
    if text not in seen.columns:
        key = "data.public-text-column" if data.public_text_column else "data.text-column"
        yield Finding(
            f"column {text!r} ({key}) is not in {data.public_path} (data.public-path), which has: "
            f"{quote_columns(sorted(seen.columns))}"
        )
        return
    if seen.whole and not data.chunk:
        yield from _too_little_public(config, len(seen.texts))


def _too_little_public(config: RunConfig, texts: int) -> Findings:
    """At most this many texts: fewer are left when repetitions are gone."""
    data, facts = config.data, f"{config.data.public_path} (data.public-path) has {texts} texts"
    if not is_deployment(config):
        if texts < data.public_pool + data.public_validation:
            yield Finding(
                f"{facts}, and data.public-pool = {data.public_pool} and data.public-validation = "
                f"{data.public_validation} need more: lower them, or give more public text"
            )
        return
    key, least = recipe_of(config).first_texts(config)
    if texts < least:  # the pool is all of it
        yield Finding(f"{facts}, fewer than {key} = {least}: lower it, or give more public text")


def left_out(config: RunConfig) -> Findings:
    """What of the users' text the run takes for no sample, for the terminal of its owner; of a long
    file what its first rows show. Near duplicates are found when the run reads the file."""
    data, counts = config.data, LeftOut()
    if data.source != "files" or not data.path:
        return
    seen = preview(Path(data.path), private_columns(data))
    groups = private_groups(seen.samples, data, counts)
    counts[OTHER_DATES] += seen.read.outside
    if data.partition != "uniform":
        most = data.samples_per_user
        counts[f"{BEYOND} = {most}"] += sum(max(0, len(own.samples) - most) for own in groups)
    if counts.total():
        of = "" if seen.whole else f", of its first {seen.rows:,} rows"
        yield Finding(f"{counts.summary(place_name(data.path))}{of}", fatal=False)
    if without := sum(not own.samples for own in groups):
        yield Finding(
            f"{data.path}: {without:,} of {len(groups):,} users have no text", fatal=False
        )


def split_files(config: RunConfig) -> Findings:
    """What the run makes of files that are small enough to be read here: near duplicates are gone
    and texts are cut, as they are there. For files in which nothing else is wrong."""
    data = config.data
    if data.source != "files" or not data.public_path or not _small(config):
        return
    public = public_groups(data)
    if is_deployment(config):
        samples = [sample for group in public for sample in group.samples]
        pool, _ = drawn(candidates([sample.text for sample in samples], config), config)
    else:
        seen = preview(Path(data.path), private_columns(data))
        parts = split(Source(private_groups(seen.samples, data, LeftOut()), public), data)
        samples = [parts.public[group].samples[at] for group, at in parts.pool]
        pool = candidates([sample.text for sample in samples], config)
    key, least = recipe_of(config).first_texts(config)
    if len(pool) < least:
        yield Finding(
            f"{data.public_path} (data.public-path) leaves {len(pool)} different texts of "
            f"data.sample-words = {data.sample_words} words at most, fewer than {key} = {least}: "
            "lower it, or give more public text"
        )
    elif least and not config.uses("ctcl"):
        labelled = [(sample.text, sample.label) for sample in samples]
        table, names = config.labels
        for name, texts in by_class(labelled, pool, config).items():
            if not texts:
                yield Finding(
                    f"class {name!r} ({table} = {names!r}) has no public text in "
                    f"{data.public_path} (data.public-path; data.label-column = "
                    f"{data.label_column!r}): add some, or leave the class out"
                )


def long_texts(config: RunConfig) -> Findings:
    """Texts of files that the embedder reads the beginning of only. Public ones are cut first, as
    the run cuts them; the users' are as their nodes have them."""
    data, name = config.data, config.models.embedder
    if data.source != "files" or data.chunk or "embedder" not in recipe_of(config).loads(config):
        return
    public = Columns("", data.public_text_column or data.text_column)
    files = {"data.path": private_columns(data), "data.public-path": public}
    for key, columns in files.items():
        place = data.path if key == "data.path" else data.public_path
        try:
            seen = _look(place, columns, key) if place else None
        except (DataError, OSError):  # said already
            continue
        texts, cut = seen.texts if seen else [], "cut them with data.chunk = true"
        if key == "data.public-path":
            texts, cut = candidates(texts, config), "lower data.sample-words"
        found = longer_than_read(name, texts)
        if seen and found and found[0]:
            of = f"{'' if seen.whole else 'the first '}{len(texts):,}"
            yield Finding(
                f"{place} ({key}): {found[0]:,} of {of} texts are longer than the {found[1]} "
                f"tokens that models.embedder = {name!r} reads of a text: {cut}, or name an "
                "embedder of longer texts",
                fatal=False,
            )


def public_preview(config: RunConfig) -> Preview | None:
    """A look at the public text of users' files; None where it is no file. Raises DataError and
    OSError for one that cannot be read."""
    data = config.data
    if data.source == "docstrings" or not data.public_path:
        return None
    columns = Columns("", data.public_text_column or data.text_column)
    return _look(data.public_path, columns, "data.public-path")


def language(config: RunConfig) -> Findings:
    """Models whose tokenizers spell the public file in letters or bytes. Private text is not read
    for it. Nothing is found where a model is a server's or not here, or the text is the hub's."""
    used, seen = used_models(config), public_preview(config)
    if config.generation.base_url:
        used.pop("generator", None)
    foreign = dict[str, Spelling]()
    for kind in SPELLING:
        folder = model_files(kind, used[kind], config) if seen and kind in used else None
        found = folder and seen and spelling(folder, seen.texts)
        if found and found.foreign:
            foreign[f"models.{kind} = {used[kind]!r}"] = found
    if foreign:
        told = ", ".join(
            f"{key} ({own.tokens_per_word:.1f} and {own.unreadable_share:.0%})"
            for key, own in foreign.items()
        )
        yield Finding(
            f"{config.data.public_path} (data.public-path) is in a language that these models "
            "hardly know, by tokens a word and the share of them that are bytes or unknown: "
            f"{told}; at most {MOST_TOKENS:g} and {MOST_UNREADABLE:.0%} are usual. Name models of "
            "this language",
            fatal=False,
        )


def _small(config: RunConfig) -> bool:
    """Whether the files of a run are looked at as a whole."""
    data = config.data
    places = [text_file(Path(data.public_path)), *([Path(data.path)] if data.path else [])]
    return not data.public_path.startswith(HUB) and all(
        place.is_file() and place.stat().st_size <= WHOLE for place in places
    )


def docstring_packages(config: RunConfig) -> Findings:
    """Packages whose docstrings are the text: all installed, none on two sides."""
    if config.data.source != "docstrings":
        return
    for names in package_lists(config.data):
        for name in names:
            if name != STDLIB:
                try:
                    find_distribution(name)
                except DataError as error:
                    yield Finding(str(error))


def messages(config: RunConfig) -> Findings:
    """What chats and e-mails are made of: all there, with the digests that are known."""
    if config.data.source in ("chats", "emails"):
        try:
            identity(config.data)
        except DataError as error:
            yield Finding(str(error))


def _look(place: str, columns: Columns, key: str) -> Preview | None:
    """A look at a file; None for a data set of the hub. Raises DataError, OSError."""
    if place.startswith(HUB):
        return None
    path = text_file(Path(place)) if key == "data.public-path" else Path(place)
    if path.is_dir() and key == "data.public-path":
        raise DataError(f"{path} {NO_MIX}")
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} ({key}) {what}: name a .jsonl, .csv, .tsv or .parquet file")
    return preview(path, columns)


KEY = "models.generator"
ENGLISH = "generator"  # has read English alone: what its tokenizer knows is English


def default_generator(
    path: Path | None, overrides: Mapping[str, Scalar]
) -> tuple[dict[str, Scalar], str]:
    """What to set beside a configuration file and its overrides, and a line that says why; nothing
    and "" where a generator is named, or there is no choice. Only public text is read."""
    if KEY in {**read_flat(path), **overrides} or missing(*WRITER_MODULES):
        return {}, ""
    config = load_config(path, {**overrides, KEY: WRITER})
    if not _writes_here(config):
        return {}, ""
    try:
        seen = public_preview(config)
    except (DataError, OSError):  # the checks of the run say it
        return {}, ""
    found = spelling(shipped_model(ENGLISH), seen.texts) if seen else None
    stays = f"{KEY} stays {RunConfig().models.generator!r}: {WRITER!r} writes English, and"
    if found is None:
        return {}, f"{stays} the language of data.public-path cannot be told here"
    told = f"{found.tokens_per_word:.1f} tokens a word, of English at most {MOST_TOKENS:g}"
    if found.foreign:
        return {}, f"{stays} data.public-path is not ({told})"
    return {KEY: WRITER}, f"{KEY} = {WRITER!r}: it is here, and data.public-path English ({told})"


def _writes_here(config: RunConfig) -> bool:
    """Whether a causal model in this process would write for users who are not the demos'."""
    own, here = config.data.source == "files", config.generation.backend == "huggingface"
    return own and here and "generator" in used_models(config) and not config.owns(DPPromptConfig)
