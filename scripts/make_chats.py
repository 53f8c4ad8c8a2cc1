"""The public chat messages of the package: what a model wrote, joined and packed (seconds).

    privsyn public chat configs/chats-public.toml
    python scripts/make_chats.py chats-public

Messages of one list that are shorter than `data.min-words` are joined with the next ones, as a
person's messages of one conversation are. Beside the file lies how it was made, with its sha256.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

from privsyn_flower.app.public.journal import lines_of, read_state
from privsyn_flower.config import DataConfig
from privsyn_flower.data.groups import join_short
from privsyn_flower.data.messages import POOL, PROVENANCE

STAGE = "chat"
COMMANDS = [
    "privsyn public chat configs/chats-public.toml",
    "python scripts/make_chats.py chats-public",
]


def texts_of(folder: Path) -> list[dict[str, str]]:
    """{"text", "topic"} of each text, without repetitions, in the order of the lists."""
    lines = sorted((line for _, line in lines_of(folder, STAGE)), key=lambda line: line["draw"])
    found: dict[str, dict[str, str]] = {}
    for _, own in itertools.groupby(lines, key=lambda line: line["draw"]):
        messages = list(own)
        for text in join_short([line["text"] for line in messages], DataConfig().min_words):
            found.setdefault(text, {"text": text, "topic": messages[0]["topic"]})
    return list(found.values())


def provenance(folder: Path, texts: int, packed: bytes) -> dict[str, Any]:
    """How the file was made: what wrote it, from what, how much, and what was left out."""
    state = read_state(folder, STAGE)
    if state is None:
        raise SystemExit(f"{folder} has no {STAGE}.jsonl: run {COMMANDS[0]}")
    return {
        "commands": COMMANDS,
        "counts": state["counts"],
        "licence": "Apache-2.0, as the model's",
        "made": "by a public language model from prompts that the authors wrote; no private text",
        "messages": state["lines"],
        "model": "SmolLM2-135M-Instruct",
        "settings": state["settings"],
        "sha256": hashlib.sha256(packed).hexdigest(),
        "texts": texts,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path, help="of `privsyn public`")
    folder = arguments.parse_args().folder
    texts = texts_of(folder)
    lines = "".join(f"{json.dumps(text)}\n" for text in texts)
    packed = gzip.compress(lines.encode(), 9, mtime=0)
    POOL.parent.mkdir(exist_ok=True)
    POOL.write_bytes(packed)
    told = json.dumps(provenance(folder, len(texts), packed), indent=1, sort_keys=True)
    PROVENANCE.write_text(told + "\n", encoding="utf-8")
    print(f"{POOL}: {len(texts):,} texts, {len(packed):,} bytes")


if __name__ == "__main__":
    main()
