"""The run configuration as text: TOML files, `--set` overrides, and TOML written back."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from privsyn_flower.common.files import whole_path
from privsyn_flower.config.schema import RunConfig, cache_folder, flat_defaults
from privsyn_flower.config.section import ConfigError, Scalar, config_errors, flatten

# What may stand without a benchmark in keys that can choose by private text.
NOT_BY_TEXT: Mapping[str, tuple[Scalar, ...]] = {
    "data.near-duplicates": ("own", "keep"),
    "data.partition": ("natural", "uniform"),
    "data.min-samples-per-user": (1,),
}


def load_config(path: Path | None = None, overrides: Mapping[str, Scalar] = {}) -> RunConfig:
    """A TOML file with `--set` overrides on top -> configuration; ConfigError if wrong."""
    return RunConfig.from_flat({**read_flat(path), **overrides})


def read_flat(path: Path | None) -> dict[str, Scalar]:
    """The keys of a TOML file, dotted; none without one. Raises ConfigError."""
    return {} if path is None else flatten(read_toml(path))


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises ConfigError that names it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 (byte {error.start + 1}): save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def without_benchmark(path: Path | None, overrides: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """What `--set benchmark=false` takes along: keys by which the file's benchmark chooses by
    private text, at their defaults; not those that are overridden themselves."""
    values = read_flat(path) if overrides.get("benchmark") is False else {}
    allowed = {**NOT_BY_TEXT}
    for name, own in RunConfig().tables.items():
        allowed |= {
            f"{name.replace('_', '-')}.{key}": some for key, some in own.without_benchmark.items()
        }
    if not values.get("benchmark"):
        return {}
    return {
        key: default
        for key, default in flat_defaults().items()
        if key in values.keys() - overrides.keys()
        and values[key] not in allowed.get(key, (values[key],))
    }


def absolute_paths(config: RunConfig, folder: Path) -> RunConfig:
    """Every path absolute: Flower's processes have another working directory."""

    def absolute(path: str) -> str:
        return str(Path(path).expanduser().absolute()) if path else ""

    def model(name: str) -> str:
        return absolute(name) if name and Path(name).expanduser().is_dir() else name

    def place(path: str) -> str:
        if not path.startswith("hub:"):
            return absolute(path)
        bare = path.removeprefix("hub:")
        name = re.split("[@#]", bare, maxsplit=1)[0]  # what follows: its configuration and split
        here = bool(name) and Path(name).expanduser().is_dir()
        return f"hub:{absolute(name)}{bare[len(name) :]}" if here else path

    source = config.data.source
    data = config.data.model_copy(
        update={
            "source": place(source) if source.startswith("hub:") else source,
            "path": place(config.data.path),
            "public_path": place(config.data.public_path),
            "public_emails": absolute(config.data.public_emails),
        }
    )
    models = config.models.model_copy(
        update={
            **{name: model(getattr(config.models, name)) for name in config.models.kinds},
            "lstm_word_list": absolute(config.models.lstm_word_list),
        }
    )
    generation = config.generation.model_copy(
        update={"vllm_python": absolute(config.generation.vllm_python)}
    )
    return config.model_copy(
        update={
            "run_folder": str(folder),
            "generation": generation,
            "cache": absolute(str(cache_folder(config))),
            "assets": absolute(config.assets),
            "ledger": absolute(config.ledger),
            "data": data,
            "models": models,
            **{name: own.relocated(absolute, model) for name, own in config.tables.items()},
        }
    )


def check_paths(config: RunConfig) -> None:
    """Raises ConfigError for a relative path, in a run that no `privsyn run` made absolute."""
    whole = absolute_paths(config, Path(config.run_folder).absolute()).flat()
    for key, value in config.flat().items():
        if value and whole[key] != value:
            with config_errors():
                whole_path(str(value), key)


def relocated(values: Mapping[str, Scalar], folder: Path) -> dict[str, Scalar]:
    """A run's flat configuration for where its folder lies now; paths inside follow it."""
    old = str(values.get("run-folder", ""))

    def moved(value: Scalar) -> Scalar:
        inside = bool(old) and isinstance(value, str) and value.startswith(f"{old}/")
        return f"{folder}{str(value)[len(old) :]}" if inside else value

    return {key: moved(value) for key, value in values.items()} | {"run-folder": str(folder)}


def differences(now: Mapping[str, Scalar], stored: Mapping[str, Scalar]) -> list[str]:
    """`changed` in words: "epsilon = 1.29 was 7.58", one for each key."""
    return [f"{key} = {new!r} was {old!r}" for key, (new, old) in changed(now, stored).items()]


def changed(
    now: Mapping[str, Scalar], stored: Mapping[str, Scalar]
) -> dict[str, tuple[Scalar | None, Scalar | None]]:
    """What two flat configurations differ in: key -> what it is now, and what it was.

    A key that `stored` lacks is newer than it. Its default is what was done before there was a
    key, so that counts. What a key that is no more did is not known: it differs whatever it was.
    """
    defaults = flat_defaults()
    then = {key: stored.get(key, defaults.get(key)) for key in sorted({*now, *stored})}
    return {key: (now.get(key), value) for key, value in then.items() if now.get(key) != value}


def parse_override(text: str, defaults: Mapping[str, Scalar] | None = None) -> tuple[str, Scalar]:
    """`key=value` of the command line; the value is TOML, a bare word is a string.

    defaults: of the keys of another file than a run's.
    """
    key, sign, raw = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"--set {text!r}: expected key=value")
    known = flat_defaults() if defaults is None else defaults
    parts = re.split(r"[,;\s]\s*(?=[\w.-]+\s*=)", raw)
    if raw[:1] not in ("'", '"') and any(p.partition("=")[0].strip() in known for p in parts[1:]):
        each = " ".join(f"--set {one}" for one in (f"{key}={parts[0]}", *parts[1:]))
        raise ConfigError(f"--set {text!r}: name one key in each: {each}")
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw
    if isinstance(known.get(key), str):
        value = raw.strip("'\"")
    if isinstance(known.get(key), bool) and raw.lower() in ("true", "false"):  # as Python spells it
        value = raw.lower() == "true"
    if not isinstance(value, bool | int | float | str):
        raise ConfigError(f"--set {text!r}: only booleans, numbers and strings are allowed")
    return key, value


def to_toml(config: RunConfig, *, comments: bool = False, prefix: str = "") -> str:
    """The configuration as TOML tables under `prefix` (for example "tool.flwr.app.config")."""

    def line(section: BaseModel, name: str) -> str:
        field = type(section).model_fields[name]
        text = f"{name.replace('_', '-')} = {toml_value(getattr(section, name))}"
        return f"{text}  # {field.description}" if comments and field.description else text

    def names(section: BaseModel, nested: bool) -> list[str]:
        fields = type(section).model_fields
        return [n for n in fields if isinstance(getattr(section, n), BaseModel) is nested]

    blocks = [([f"[{prefix}]"] if prefix else []) + [line(config, n) for n in names(config, False)]]
    for name in names(config, True):
        section = getattr(config, name)
        title = name.replace("_", "-")
        header = f"[{prefix}.{title}]" if prefix else f"[{title}]"
        blocks.append([header] + [line(section, n) for n in names(section, False)])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def toml_value(value: Scalar) -> str:
    """One TOML scalar."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        # TOML has no control characters in a string, and an instruction may hold newlines.
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in escaped) + '"'
    return repr(value)
