"""`privsyn topics`: topics of public text, made once, looked at, or taken over from BERTopic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privsyn_flower.app.cli.errors import AsJson, failing, group
from privsyn_flower.app.public.source import carried, hand_on, text_lines
from privsyn_flower.config import RunConfig, cache_folder, load_config, parse_override
from privsyn_flower.data.reading import column_names, read_rows
from privsyn_flower.data.values import check_column
from privsyn_flower.strategies.ctcl.config import CtclConfig

if TYPE_CHECKING:
    from privsyn_flower.common.arrays import F32
    from privsyn_flower.common.progress import Progress
    from privsyn_flower.text.protocols import Embedder
    from privsyn_flower.text.topics import TopicModel

topics_app = group("Topics of public text: make, look at, import.")

COUNT = 64  # topics, where no configuration of CTCL says how many

NewFolder = Annotated[Path, typer.Argument(help="The new folder; runs name it as ctcl.topics.")]


@topics_app.command()
def make(
    folder: NewFolder,
    config: Annotated[
        Path | None, typer.Option(help="TOML file: its public text and models.embedder.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, of the configuration")
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(help="Public text instead: .txt with a text a line, jsonl, csv or parquet."),
    ] = None,
    text_column: Annotated[str, typer.Option(help="Of --texts.")] = "text",
    count: Annotated[
        int | None,
        typer.Option(
            help="Topics; with hdbscan the most that are kept. Default: ctcl.topic-count of a "
            "configuration with method = 'ctcl', else 64."
        ),
    ] = None,
    clustering: Annotated[
        str | None,
        typer.Option(help="k-means, or hdbscan as in the paper. Default: ctcl.clustering."),
    ] = None,
    words: Annotated[
        int | None, typer.Option(help="Keywords of a topic, at most. Default: ctcl.topic-words.")
    ] = None,
    rerank: Annotated[
        bool, typer.Option("--rerank", help="Keywords by their own embeddings, as KeyBERT's.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="The same seed and text give the same topics. Default: seed."),
    ] = None,
) -> None:
    """Cluster PUBLIC text into topics with keywords, and write them to FOLDER.

    Text of a configuration is its public pool, cut to data.sample-words as a run does, and without
    options the topics are those that its run would make; --texts is read once, as a stream,
    whatever its length. Embeddings stay in the cache: after an interruption the same command goes
    on.
    """
    from privsyn_flower.app.cli.display import Display
    from privsyn_flower.server_apps.public_text import carried_by
    from privsyn_flower.text.embedders import load_embedder
    from privsyn_flower.text.topic_training import make_topics
    from privsyn_flower.text.topics import save_topics

    folder = folder.expanduser()
    with failing(ValueError):
        _check_free(folder)
        if (config is None) == (texts is None):
            raise ValueError("name the public text: --config FILE or --texts FILE, one of them")
        loaded = load_config(config, dict(parse_override(text) for text in settings or []))
        with Display() as display:
            public = _public(loaded, texts, text_column, display.report)
            models = loaded.models
            embedder = load_embedder(models.embedder, models.device, progress=False)
            model = make_topics(
                public,
                CachedEmbedder(embedder, cache_folder(loaded) / "public"),
                **_options(loaded, count=count, clustering=clustering, words=words, seed=seed),
                rerank=rerank,
                progress=display.report,
            )
        claim = carried(texts.expanduser()) if texts is not None else carried_by(loaded)
        hand_on(claim, folder)  # the keywords are of that text
        save_topics(model, folder)
    typer.echo(_summary(folder, model))


@topics_app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Of `privsyn topics make` or `import`.")],
    as_json: AsJson = False,
) -> None:
    """The topics in FOLDER: number, public texts where they are known, and keywords."""
    from privsyn_flower.text.topics import load_topics

    with failing(ValueError):
        model = load_topics(folder.expanduser())
    if as_json:
        facts = {"topics": len(model), "dimension": model.dimension, "embedder": model.embedder}
        facts |= {"fingerprint": model.fingerprint, "sizes": model.sizes}
        typer.echo(json.dumps({**facts, "keywords": model.keywords}, ensure_ascii=False))
        return
    typer.echo(_summary(folder, model))
    for number, words in enumerate(model.keywords):
        size = f"{model.sizes[number]:>8,}  " if model.sizes else ""
        typer.echo(f"{number:>5}  {size}{', '.join(words)}")


@topics_app.command("import")
def import_(
    source: Annotated[
        Path, typer.Argument(help="topic_embeddings.safetensors and topic_infos.json.")
    ],
    folder: NewFolder,
    embedder: Annotated[
        str, typer.Option(help="What SOURCE was made with; CTCL's authors: minilm.")
    ] = "minilm",
) -> None:
    """Import a BERTopic folder like that of CTCL's authors, without outliers."""
    from privsyn_flower.text.embedders import embedder_fingerprint, known_dimension
    from privsyn_flower.text.topics import import_bertopic, save_topics

    folder = folder.expanduser()
    with failing(ValueError):
        _check_free(folder)
        model = import_bertopic(source.expanduser(), embedder_fingerprint(embedder))
        if (dimension := known_dimension(embedder) or model.dimension) != model.dimension:
            raise ValueError(
                f"{source} has rows of {model.dimension} dimensions, and embedder {embedder!r} "
                f"makes {dimension}: name theirs with --embedder"
            )
        hand_on(carried(source.expanduser()), folder)
        save_topics(model, folder)
    typer.echo(_summary(folder, model))


def _options(config: RunConfig, **options: Any) -> dict[str, Any]:
    """What `make_topics` is asked for: the options, and for those that are None what a run of the
    configuration makes."""
    own = config[CtclConfig]
    by_umap = options["clustering"] in (None, own.clustering)
    of_run = {
        "umap_components": own.umap_components if by_umap else 0,
        "count": own.topic_count if config.owns(CtclConfig) else COUNT,
        "clustering": own.clustering,
        "words": own.topic_words,
        "seed": config.seed,
    }
    return of_run | {name: one for name, one in options.items() if one is not None}


def _public(config: RunConfig, file: Path | None, column: str, progress: Progress) -> Iterable[str]:
    """The public texts of a file, one at a time, or of a configuration. Raises ValueError."""
    if file is not None:
        return texts_of(file.expanduser(), column)
    from privsyn_flower.server_apps.public_text import public_text

    pool = public_text(config, progress).pool
    if not pool:
        raise ValueError("the configuration has no public text: name it with data.public-path")
    return pool


class CachedEmbedder:
    """An embedder of public texts that keeps each call's rows on disk, by content.

    Whoever embeds block by block goes on where it was interrupted.
    """

    def __init__(self, embedder: Embedder, folder: Path) -> None:
        self.embedder, self.folder = embedder, folder
        self.fingerprint, self.dimension = embedder.fingerprint, embedder.dimension

    def embed(self, texts: Sequence[str]) -> F32:
        """n texts -> (n, d) unit rows, read-only."""
        from privsyn_flower.data import cached_embeddings

        return cached_embeddings(self.folder, self.fingerprint, texts, self.embedder.embed)


def texts_of(path: Path, column: str) -> Iterator[str]:
    """The texts of a public file, one at a time. Raises ValueError without the column, OSError."""
    if path.suffix.lower() == ".txt":
        path.stat()  # that it is missing is said before a model is loaded
        return text_lines(path)
    check_column(path, column, column_names(path), "--text-column")
    rows = (row.get(column) for _, row in read_rows(path, lambda *_: None, (column,)))
    return (text for text in rows if isinstance(text, str))


def _check_free(folder: Path) -> None:
    from privsyn_flower.text.topics import ROWS_FILE, WORDS_FILE

    if any((folder / name).exists() for name in (ROWS_FILE, WORDS_FILE)):
        raise ValueError(f"{folder} holds topics already: name another folder, or delete it")


def _summary(folder: Path, model: TopicModel) -> str:
    texts = f" of {sum(model.sizes):,} public texts" if model.sizes else ""
    return (
        f"{folder}: {len(model):,} topics{texts}, {model.dimension} dimensions, embedder "
        f"{model.embedder[:16]}, fingerprint {model.fingerprint[:16]}"
    )
