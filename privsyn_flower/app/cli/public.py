"""`privsyn public`: public text made to look like the private, before any run and without users."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privsyn_flower.app.cli.errors import RESUMED, failing, group

if TYPE_CHECKING:
    from privsyn_flower.common.progress import Progress
    from privsyn_flower.config.public import PublicTextConfig
    from privsyn_flower.text.protocols import Answering

public_app = group("Public text made to look like the private: filter, write, convert and mix it.")

Config = Annotated[Path, typer.Argument(help="TOML file, as configs/gboard-public.toml.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="key=value, for example chat.personas=1000")
]


@public_app.command("filter")
def filter_(config: Config, settings: Settings = None) -> None:
    """Ask the model of each public text whether people write about such things on their phones.

    The folder's filter.jsonl has those that they do. Called again, it goes on where it was.
    """
    from privsyn_flower.app.public.corpus import filter_texts

    _make("filter", config, settings, lambda one, bar: filter_texts(one, _opener(one), bar))


@public_app.command()
def chat(config: Config, settings: Settings = None) -> None:
    """Let the model write conversations of invented people: receivers, subjects, messages.

    They are in the folder's chat.jsonl. Called again, it goes on where it was.
    """
    from privsyn_flower.app.public.corpus import write_chats

    _make("chat", config, settings, lambda one, bar: write_chats(one, _opener(one), bar))


@public_app.command()
def convert(config: Config, settings: Settings = None) -> None:
    """Let the model make conversations of a share of the filtered texts.

    They are in the folder's convert.jsonl. Called again, it goes on where it was.
    """
    from privsyn_flower.app.public.corpus import convert_texts

    _make("convert", config, settings, lambda one, bar: convert_texts(one, _opener(one), bar))


@public_app.command()
def mix(config: Config, settings: Settings = None) -> None:
    """Put the stages' turns and sentences together: the folder's mix.jsonl.

    Runs name the folder as data.public-path.
    """
    from privsyn_flower.app.public.mixing import mix as mixed

    _make("mix", config, settings, mixed)


@public_app.command()
def coverage(
    config: Config,
    settings: Settings = None,
    source: Annotated[
        bool, typer.Option("--source", help="Of all of filter.source, too; it is read whole.")
    ] = False,
) -> None:
    """How many words of `vocabulary` occur in each stage's text, and in the mix."""
    from privsyn_flower.app.public.mixing import measure_coverage

    _make("", config, settings, lambda one, bar: measure_coverage(one, source=source, progress=bar))


def _make(
    stage: str,
    path: Path,
    settings: list[str] | None,
    work: Callable[[PublicTextConfig, Progress], object],
) -> None:
    """Load the file, do a stage's work, and tell what the corpus is then."""
    from privsyn_flower.app.cli.display import Display
    from privsyn_flower.app.public.corpus import corpus_folder
    from privsyn_flower.app.public.mixing import REPORT, write_report
    from privsyn_flower.config.public import load_public_config

    with failing(ValueError, RuntimeError, interrupted=RESUMED):
        config = load_public_config(path, settings or ())
        folder = corpus_folder(config)
        try:
            with Display() as display:
                work(config, display.report)
        except BaseException:
            if folder.is_dir():
                with suppress(OSError, ValueError):  # what ended the work is told, not this
                    write_report(folder)
            raise
        report = write_report(folder)
    typer.echo(described(report), err=True)
    print(folder / (f"{stage}.jsonl" if stage else REPORT))


def _opener(config: PublicTextConfig) -> Callable[[], AbstractContextManager[Answering]]:
    """How the configuration's model is opened, when a stage has anything to ask.

    Raises ConfigError where it names none.
    """
    from privsyn_flower.config import ConfigError

    if not config.models.generator:
        raise ConfigError(
            "models.generator is empty: name a model that was taught to follow instructions"
        )

    def opened() -> AbstractContextManager[Answering]:
        from privsyn_flower.app.public.corpus import corpus_folder
        from privsyn_flower.common.files import default_cache
        from privsyn_flower.text.models.gguf import import_model, packaged
        from privsyn_flower.text.opening import open_generator
        from privsyn_flower.text.protocols import Sampling

        name = config.models.generator
        if packaged("generator", name) and not config.generation.base_url:
            name = str(import_model(name, default_cache(), f"models.generator = {name!r}"))
        model = open_generator(
            name,
            config.generation,
            Sampling(1),  # each stage has its own
            log=corpus_folder(config) / "vllm.log",
            batch_size=config.generation.concurrency,
            device=config.models.device,
            stop=(),
            seed=config.seed,
            progress=False,
        )
        return closing(model)

    return opened


def _size(count: int) -> str:
    """Bytes in words."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.2f} MB"


def described(report: dict[str, Any]) -> str:
    """The report as lines: of each stage, texts, bytes, what it counts, and tokens."""
    lines = []
    for stage, figures in report["stages"].items():
        counts = dict(figures["counts"])
        spent = [counts.pop(key, 0) for key in ("answers", "prompt_tokens", "completion_tokens")]
        told = [f"{figures['texts']:,} texts, {_size(figures['bytes'])}"]
        told += [
            f"{key.replace('_', ' ')} {count:,}"
            for key, count in sorted(counts.items())
            if not key.endswith(("_bytes", "_texts"))  # of the mix, by stage
        ]
        if spent[0]:
            told.append(f"{spent[0]:,} answers, {spent[1]:,} + {spent[2]:,} tokens")
        told += [] if figures["complete"] else ["not complete"]
        lines.append(f"{stage}: {'; '.join(told)}")
    if found := report.get("coverage"):
        shares = ", ".join(f"{name} {share:.1%}" for name, share in found["shares"].items())
        never = (
            f", of which no text can give {found['unreachable']:,}" if found["unreachable"] else ""
        )
        lines.append(f"coverage of {found['words']:,} words{never}: {shares}")
    return "\n".join(lines)
