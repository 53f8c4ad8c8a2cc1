"""`privsyn public proximity`: a finished training's model chooses from any public text, a file of
it or a corpus folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privsyn_flower.app.cli.errors import RESUMED, failing, stored_config
from privsyn_flower.app.public.source import USER, carried, check_chosen, text_lines, together
from privsyn_flower.app.report.summaries import read_summary
from privsyn_flower.common.files import DataError, file_digest, locked, write_atomic
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.config.data import DataConfig
from privsyn_flower.data.reading import column_names, read_rows, text_file
from privsyn_flower.data.values import check_column
from privsyn_flower.privacy.sentence import FILE as STATEMENT
from privsyn_flower.privacy.wording import CHOSEN_TEXT, at_most
from privsyn_flower.runs import RunFolder, write_json

if TYPE_CHECKING:
    from privsyn_flower.app.public.proximity import Pool, Row, Thresholds

SCORES, REPORT = "scores", "report.json"  # of OUT
CARRIED = ("method", "epsilon", "delta", "rho_zcdp", "unit", "adjacency", "threat_model")


def proximity(
    run: Annotated[Path, typer.Argument(help="Folder of a finished dp-ftrl or dp-fedavg run.")],
    texts: Annotated[
        Path,
        typer.Option(
            help="PUBLIC text: jsonl, csv, parquet, .txt with a text a line, or a folder of "
            "privsyn public mix."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for proximity.jsonl, its report and scores.")],
    text_column: Annotated[str, typer.Option(help="Of --texts.")] = "text",
    public: Annotated[
        bool,
        typer.Option("--public", help="The texts are public although a column names users."),
    ] = False,
    start: Annotated[
        Path | None,
        typer.Option(help="Model before the training; default: the folder that the run began at."),
    ] = None,
    most_unknown: Annotated[
        float | None, typer.Option(help="Instead of the run's proximity.most-unknown.")
    ] = None,
    least_score: Annotated[
        float | None, typer.Option(help="Instead of the run's proximity.least-score.")
    ] = None,
    least_quantile: Annotated[
        float | None, typer.Option(help="Instead of the run's proximity.least-quantile.")
    ] = None,
    gain: Annotated[
        bool | None,
        typer.Option("--gain/--no-gain", help="Drop texts that the training made less likely?"),
    ] = None,
) -> None:
    """Keep the PUBLIC texts that are near the users' by the model that was trained on them.

    Post-processing: no user is asked and no privacy is spent; the kept text carries the run's
    epsilon. Called again, it goes on where it was; other thresholds take no model, and write
    proximity.jsonl anew. The last line on stdout is that file.
    """
    given = {
        "most_unknown": most_unknown,
        "least_score": least_score,
        "least_quantile": least_quantile,
        "gain": gain,
    }
    with failing(ValueError, RuntimeError, interrupted=RESUMED):
        file, report = filter_by(run, texts, out, text_column, start, given, public=public)
    typer.echo(described(report), err=True)
    print(file)


def filter_by(
    run: Path,
    texts: Path,
    out: Path,
    column: str,
    start: Path | None,
    given: Mapping[str, Any],
    *,
    public: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """The file that was written, and the report beside it.

    given: thresholds in the place of the run's; None for those that stay. public: as in `texts_at`.
    Raises ValueError for a run that trained no model or is not finished, text that `texts_at`
    refuses, and an `out` that has something else in it; ModelUnavailableError, OSError.
    """
    from privsyn_flower.app.cli.display import Display
    from privsyn_flower.app.public.proximity import Pair, filter_pool
    from privsyn_flower.server_apps.methods.proximity import FILE

    folder, out = run.expanduser().absolute(), out.expanduser().absolute()
    config = _config(folder)
    summary = read_summary(folder)
    models = Pair(
        _start(folder, start), folder / "model", config.evaluation.sequence_length,
        config.models.device,
    )  # fmt: skip
    thresholds, texts = _thresholds(config, given), _file(texts.expanduser())
    pool = texts_at(texts, column, config.data, public)
    before = together([carried(texts), carried(models.before), str(summary.get("carries", ""))])
    said = page(summary, before).encode()
    _check_own(out)
    with locked(out / ".lock"), Display() as display:

        def claimed() -> None:
            write_atomic(out / STATEMENT, said)

        # First the folder, then the claim, then the text that it is about.
        found = filter_pool(
            pool, models, thresholds, out / FILE, out / SCORES, display.report, claimed
        )
        report = {**found, "run": {key: summary.get(key) for key in CARRIED}}
        report |= {"privacy": summary["privacy"], "texts_carry": before or None}
        write_json(out / REPORT, report)
    return out / FILE, report


def _check_own(out: Path) -> None:
    """Raises ConfigError for a folder with anything in it that no filter has scores of there: a
    run, a corpus or another text would lose its statement or its report to this one."""
    from privsyn_flower.app.public.proximity import ABOUT

    if not out.is_dir() or (out / SCORES / ABOUT).is_file():
        return
    others = [path.name for path in out.iterdir() if path.name[0] != "." and path.name != SCORES]
    if others:
        raise ConfigError(
            f"--out {out} holds {min(others)!r}, which is of something else: name a folder that is "
            "empty or not there"
        )


def page(summary: Mapping[str, Any], before: str = "") -> str:
    """What is said of the chosen text: what it carries, and the training's own statement.

    before: what the text to choose from, and the model that chooses, carried already.
    """
    text = (
        "# Privacy of this text\n\n"
        f"{CHOSEN_TEXT}\n\nThe statement of the training, a run of method = "
        f"{summary['method']!r}:\n\n{summary['privacy']}\n"
    )
    if not before:
        return text
    return (
        f"{text}\nThe text to choose from, or the model before that training, CARRIED AN EPSILON "
        "ALREADY, and the chosen text carries it beside this one: for a user of both, they add up. "
        f"What was said of it:\n\n{before}\n"
    )


def _config(folder: Path) -> RunConfig:
    """The run's own configuration. Raises ConfigError for a folder that has no trained model."""
    config = stored_config(folder)
    if not config.trains:
        raise ConfigError(
            f"{folder} is a run of method = {config.method!r}, which trains no model on the nodes: "
            "`privsyn public proximity` needs one of method = 'dp-ftrl' or 'dp-fedavg'"
        )
    return config


def _start(folder: Path, given: Path | None) -> Path:
    """The model before the training. Raises ConfigError where it must be named."""
    from privsyn_flower.server_apps.methods.proximity import start_of

    if given is not None:
        if not (given := given.expanduser()).is_dir():
            raise ConfigError(f"--start {given} is no model folder: name one")
        return given
    found = start_of(RunFolder(folder))
    if found is None:
        raise ConfigError(
            f"the model that {folder} began its training with is not where it was, or is another "
            "by now: name it with --start (the run's models.downstream, or start-* in its cache)"
        )
    return found


def _thresholds(config: RunConfig, given: Mapping[str, Any]) -> Thresholds:
    """The run's thresholds with these in their place; one kind of least score replaces the other.

    Raises ValueError for a number out of bounds.
    """
    from dataclasses import replace

    from privsyn_flower.server_apps.methods.proximity import thresholds_of

    told = {key: value for key, value in given.items() if value is not None}
    if "least_score" in told:
        told.setdefault("least_quantile", 0.0)
    return replace(thresholds_of(config.proximity), **told)


def described(report: Mapping[str, Any]) -> str:
    """The report as lines: what was kept, of which stage, and what that carries."""

    def share(name: str, own: Mapping[str, int]) -> str:
        of = max(1, own["bytes_of"])
        return (
            f"{name}: {own['kept']:,} of {own['of']:,} texts, {own['bytes_kept'] / 1e6:,.2f} of "
            f"{own['bytes_of'] / 1e6:,.2f} MB ({own['bytes_kept'] / of:.1%})"
        )

    lines = [share("kept", report)]
    lines += [share(f"  {name}", own) for name, own in report.get("by", {}).items()]
    run = report["run"]
    epsilon = "infinity" if run["epsilon"] is None else at_most(run["epsilon"])
    lines.append(
        f"the kept text carries the training's epsilon = {epsilon} at delta = {run['delta']:g} "
        f"({run['threat_model']}); privacy.md says what that covers"
    )
    if report["texts_carry"]:
        lines.append("and what its source carried before, as privacy.md says, too")
    return "\n".join(lines)


STAGE = "stage"  # column of a corpus folder's lines: which stage wrote them
OTHER = "other"  # what is told of a stage that `privsyn public` has not


def texts_at(path: Path, column: str, data: DataConfig, public: bool) -> Pool:
    """The public texts of a file, which is read whole once for its digest.

    data: of the run, whose users' text is refused. public: whether a file is taken that has a
    column of users. Raises DataError for a file without the column or without text, for one that
    seems to be private, and for text that a model chose without a statement beside it; OSError.
    """
    from privsyn_flower.app.public.proximity import Pool

    if _is(path, data.path):
        raise DataError(f"--texts {path} is data.path of the run: its users' own text")
    plain = path.suffix.lower() == ".txt"
    names = [column] if plain else column_names(path)
    check_column(path, column, names, "--text-column")
    if not public:
        _check_users(path, names, data)
    claimed = bool(carried(path))
    if not claimed:
        check_chosen(path, names)
    by = STAGE if STAGE in names and column != STAGE else ""

    def rows() -> Iterator[Row]:
        if plain:
            return ({"text": text} for text in text_lines(path))
        return _rows(path, column, by, None if public else data, claimed)

    count = sum(1 for _ in rows())
    if not count:
        raise DataError(f"{path} holds no text in column {column!r}: name it with --text-column")
    return Pool(rows, count, f"{file_digest(path)} {column}", by)


def _file(path: Path) -> Path:
    """The file that a path names. Raises DataError for a folder without mixed text."""
    found = text_file(path)
    if found.is_dir():
        raise DataError(
            f"--texts {path} is a folder without mixed text: run `privsyn public mix`, or name a "
            "file"
        )
    return found


def _is(path: Path, place: str) -> bool:
    """Whether a key of the run names that file."""
    named = text_file(Path(place).expanduser())
    return bool(place) and named.exists() and named.samefile(path)


def _check_users(path: Path, names: Sequence[str], data: DataConfig, where: str = "") -> None:
    """Raises DataError for a file that says whose its texts are, as private ones do; the run's own
    public text may."""
    if _is(path, data.public_path):
        return
    found = [name for name in names if name in {USER, data.user_column}]
    if found:
        raise DataError(
            f"{path} has a column {found[0]!r}{where}, as users' own text has, and what is chosen "
            "here must be public: if these texts are, say so with --public"
        )


def _rows(
    path: Path, column: str, by: str, data: DataConfig | None, claimed: bool
) -> Iterator[Row]:
    """data: of the run, where whose texts they are is not known to be public; claimed: what they
    carry is said beside them. Rows of a jsonl file have columns of their own."""
    from privsyn_flower.config.public import STAGES

    wanted = (column, by) if by else (column,)
    for number, row in read_rows(path, lambda *_: None, wanted):
        if data is not None and not {USER, data.user_column}.isdisjoint(row):
            _check_users(path, tuple(row), data, f" in row {number}")
        if not claimed:
            check_chosen(path, row)
        if isinstance(text := row.get(column), str):
            # Half a pair of surrogates, which JSON can spell, could not be written again.
            own = {"text": text.encode("utf-8", "replace").decode("utf-8")}
            stage = row.get(by) if by else None
            yield own | ({by: stage if stage in STAGES else OTHER} if by else {})
