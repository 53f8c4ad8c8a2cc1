"""What all commands share: their options, and how one ends that cannot do its work.

The last line on stderr begins with "error:" then.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from privsyn_flower.common.terminal import escaped
from privsyn_flower.config import ConfigError, RunConfig, load_config, without_benchmark
from privsyn_flower.config.section import Scalar
from privsyn_flower.runs import failure

OURS = "privsyn_flower"
RESUMED = "interrupted; the same command goes on where it was"

Config = Annotated[
    Path | None, typer.Argument(help="TOML file; default: the demo (configs/chats-demo.toml).")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="key=value, for example epsilon=1.29")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def benchmark_free(path: Path | None, overrides: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """`without_benchmark`, which a line for each key says."""
    from privsyn_flower.app.cli.ending import tell

    changed = without_benchmark(path, overrides)
    for key, value in changed.items():
        tell(f"benchmark = false: {key} = {value!r} (the file's value goes by private text)")
    return changed


def group(about: str) -> typer.Typer:
    """A group of commands, its help where it is called without one."""
    return typer.Typer(cls=Commands, no_args_is_help=True, help=about)


def json_text(value: Any) -> str:
    """One line of JSON, which has no infinity: null there."""

    def finite(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: finite(one) for key, one in part.items()}
        if isinstance(part, list | tuple):
            return [finite(one) for one in part]
        return None if isinstance(part, float) and not math.isfinite(part) else part

    return json.dumps(finite(value))


def fail(text: str, code: int = 2) -> typer.Exit:
    """An error as the last line on stderr; what it quotes of others cannot steer the terminal."""
    typer.secho(f"error: {escaped(text)}", fg=typer.colors.RED, err=True)
    return typer.Exit(code)


def stored_config(folder: Path) -> RunConfig:
    """A run's own configuration. Raises ConfigError for a folder that has none."""
    path = folder / "config.toml"
    if not path.is_file():
        raise ConfigError(f"{folder} is no run folder: it has no config.toml")
    return load_config(path)


@contextmanager
def failing(
    *kinds: type[Exception], code: int = 2, interrupted: str = "", one_line: bool = False
) -> Iterator[None]:
    """A block whose errors of these kinds end the command with `code`, and Ctrl-C with 130, where
    `interrupted` says what becomes of it. one_line: whoever's words are in the error."""
    try:
        yield
    except kinds as error:
        told = failure(error) if isinstance(error, OSError) else str(error)
        raise fail(" ".join(told.split()) if one_line else told, code) from None
    except KeyboardInterrupt:
        if not interrupted:
            raise
        raise fail(interrupted, 130) from None


def described(error: OSError | UnicodeError) -> str:
    """The error with its file, in words for whoever named the file."""
    if isinstance(error, UnicodeEncodeError):
        return f"{error}: set PYTHONUTF8=1 or a UTF-8 locale, or rename what it stands in"
    if isinstance(error, OSError) and error.filename and error.strerror:
        other = f" -> {error.filename2}" if error.filename2 else ""
        return f"{error.filename}{other}: {error.strerror}"
    return str(error)


class Commands(TyperGroup):
    """A group of commands in which what a user can mend is no traceback: files that cannot be read
    or written, libraries that are not installed, and errors of this package's own classes."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; such an error ends it with 2, or 1 where it is a run."""
        _print_everything()
        try:
            return super().invoke(ctx)
        except (OSError, UnicodeError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of the output has gone: not an error to explain
            told = described(error)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(OURS):
                raise  # ours to mend, not the user's
            told = _missing(error)
        except (ValueError, RuntimeError, ArithmeticError) as error:
            if not type(error).__module__.startswith(OURS):
                raise
            told = str(error)
        raise fail(told, 1 if ctx.invoked_subcommand == "run" else 2)


def _missing(error: ModuleNotFoundError) -> str:
    """Which library is missing, and the extra that brings it."""
    if "pip install" in str(error):
        return str(error)
    light = str(error.name).partition(".")[0] in ("scipy", "dp_accounting", "jinja2", "markupsafe")
    extra = "strategies" if light else "simulation"
    return f"{error.name} is not installed: pip install 'privsyn-flower[{extra}]'"


def _print_everything() -> None:
    """No locale may end a command because of a character in a path or a table."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PRINTABLE)


def _printable(error: UnicodeError) -> tuple[bytes, int]:
    """Bytes of a path go out as they came in; a character that a terminal has not, escaped."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    parts = [
        bytes([ord(c) - 0xDC00])
        if "\udc80" <= c <= "\udcff"
        else c.encode("ascii", "backslashreplace")
        for c in text
    ]
    return b"".join(parts), error.end


PRINTABLE = "privsyn-printable"
codecs.register_error(PRINTABLE, _printable)
