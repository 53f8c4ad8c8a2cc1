"""Whether this node's embedder is the question's, and works here: before a text is opened.

Models fail for many reasons: files that are damaged or of another runtime, a library that is
missing, memory that does not suffice. A failure that is met while users' texts are embedded ends
in zeros plus noise, round after round; so a device tries its embedder on a public text first, and
refuses by a code that is about the device alone.
"""

from __future__ import annotations

import contextlib
import json
import sys

import numpy as np

from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.common.files import private_folder, write_atomic
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError

TRIED = "embedder-tried.json"  # in the node's folder: what was tried, when it worked
PROBE = "A public text, to see whether the model runs."
LIBRARIES = 64 << 20  # bytes that loading a model's libraries takes at least, beside its weights


def check_embedder(query: Query, node: Node) -> None:
    """Refuse a question about another embedder than this node's, or one that does not work."""
    # Three of the five stages of a secure sum look at no text: they load nothing that does.
    from privsyn_flower.text.embedders import can_import, embedder_fingerprint, embedder_libraries
    from privsyn_flower.text.fingerprints import DIGESTS_FILE, persistent_digests

    try:
        with persistent_digests(node.cache / DIGESTS_FILE):
            fingerprint = embedder_fingerprint(node.embedder)
            libraries = embedder_libraries(node.embedder)
        if missing := [name for name in libraries if not can_import(name)]:
            raise ImportError(f"{' and '.join(missing)} not installed: {_way(missing)}")
        if fingerprint == query.model and libraries and node.policy is not None:
            if not all(name in sys.modules for name in libraries):  # else their room is taken
                _require_room(node)
            _try_once(node, fingerprint, libraries)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except MemoryError as error:
        raise WireError(Refusal.MEMORY, f"embedder {node.embedder!r}: {error}") from error
    except BaseException as error:  # a tokenizer's panic in Rust is no Exception
        raise WireError(
            Refusal.MODEL, f"embedder {node.embedder!r} is not available: {error}"
        ) from error
    if fingerprint != query.model:
        raise WireError(
            Refusal.EMBEDDER, f"the query is about {query.model}, this node has {fingerprint}"
        )


def check_dimension(what: str, width: int, node: Node) -> None:
    """Refuse rows that no text's row can be compared with: all users would be zeros."""
    from privsyn_flower.text.embedders import known_dimension

    dimension = known_dimension(node.embedder)
    if dimension not in (None, width):
        raise WireError(
            Refusal.MALFORMED, f"{what} of {width} dimensions, this embedder's have {dimension}"
        )


def _require_room(node: Node) -> None:
    """Raise MemoryError unless this process can still take what libraries and weights need.

    Native libraries may end the whole process when a small allocation fails; one large one that
    fails first is an error, and a code. What is taken is never touched and given back at once, so
    this costs nothing. It sees limits on a process's address space, not pages that run out later.
    """
    from privsyn_flower.text.embedders import model_folder

    files = [path for path in model_folder(node.embedder).iterdir() if path.is_file()]
    weights = max((path.stat().st_size for path in files), default=0)
    np.empty(LIBRARIES + weights, dtype=np.uint8)


def _try_once(node: Node, fingerprint: str, libraries: tuple[str, ...]) -> None:
    """Embed a public text, unless these files worked on this node before, in this runtime.

    A process is started for every message: whoever has its users' rows loads no model again.
    """
    from privsyn_flower.text.embedders import MINILM, model_folder, shipped
    from privsyn_flower.text.fingerprints import FACTS, file_digest

    used = (model_folder(node.embedder), shipped(MINILM))  # its own, or the shipped graph's
    facts = [folder / FACTS for folder in used if folder and (folder / FACTS).is_file()]
    digest = [file_digest(path) for path in facts]
    versions = [_version(name) for name in libraries]
    trial = json.dumps([fingerprint, digest, node.device, libraries, versions])
    path = node.cache / TRIED
    with contextlib.suppress(OSError, ValueError):
        if path.read_text("utf-8") == trial:
            return
    _probe(node)
    with contextlib.suppress(OSError):  # tried again for the next message
        private_folder(node.cache)
        write_atomic(path, trial.encode())


def _probe(node: Node) -> None:
    """Embed a public text; rows that are not finite are an error of the embedder's."""
    from privsyn_flower.text.embedders import load_embedder

    load_embedder(node.embedder, node.device, progress=False).embed([PROBE])


def _version(library: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:  # installed under another name, as onnxruntime-gpu is
        return ""


def _way(missing: list[str]) -> str:
    if "onnxruntime" in missing or "tokenizers" in missing:
        return "pip install 'privsyn-flower[edge]'"
    return "install them, or take the folder that `privsyn embedder export` makes of this embedder"
