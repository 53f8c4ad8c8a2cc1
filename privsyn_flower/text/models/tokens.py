"""Whether two models read text alike: as the same tokens, by the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from privsyn_flower.text.models.pretrained import load_tokenizer

OWN = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model")
READING = ("added_tokens", "normalizer", "pre_tokenizer", "model")  # what makes ids of a text


def same_tokens(folder: Path, base: Path) -> bool:
    """Whether the models in two folders have the same tokenizer; an adapter without one has its
    base's. Raises ModelUnavailableError."""
    if folder == base or not any((folder / name).is_file() for name in OWN):
        return True
    own, other = (load_tokenizer(path, "models.downstream") for path in (folder, base))
    return bool(_reading(own) == _reading(other))


def _reading(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.get_vocab()
    told = json.loads(backend.to_str())
    return {key: told.get(key) for key in READING}
