"""What several tests share about page."""

from __future__ import annotations

import json
from pathlib import Path

from tests.app.report.pages import HOSTILE, QUALITY, benchmark, run_folder


def hostile_folder(folder: Path) -> Path:
    """A run in which every text of others is hostile."""
    values = dict(enumerate(HOSTILE))
    texts = [{"text": text, "topic": n, "keywords": [text, text]} for n, text in values.items()]
    bad = benchmark()
    for key in ("accuracy", "loss", "training_texts", "methods"):
        bad[key] = dict.fromkeys(HOSTILE, 0.2) if key != "methods" else {"a": HOSTILE[0]}
    bad["accuracy_difference"] = {f"synthetic-{text}": [0.1, 0.0, 0.2] for text in HOSTILE}
    bad["frechet"] = {text: {text: 0.5} for text in HOSTILE}
    bad["verdict"] = list(HOSTILE)
    bad["closeness"] = {text: {"frechet": [0.5, 0.4, 0.6], "mauve": text} for text in HOSTILE}
    clean = [text for text in HOSTILE if "\ud800" not in text]
    found = run_folder(
        folder,
        config={"models.generator": clean[0], "population-name": "x"},
    )
    plain = json.loads((found / "summary.json").read_text())
    plain |= {
        "dataset": f"files:{HOSTILE[1]}", "privacy": " ".join(HOSTILE), "benchmark": bad,
        "privacy_short": HOSTILE[0], "version": HOSTILE[1], "ended_early": HOSTILE[2],
        "stage_seconds": dict.fromkeys(HOSTILE, 1.0), "unit": HOSTILE[3],
        "verdict": {"sentences": list(HOSTILE), "excess": 1.0, "signal": HOSTILE[5]},
        "quality": QUALITY | {
            "sentences": list(HOSTILE), "word_list": HOSTILE[1],
            "writer": {"model": HOSTILE[0], "parameters": HOSTILE[0]},
            "synthetic": QUALITY["synthetic"] | {"repetitive": HOSTILE[4], "words": list(HOSTILE)},
        },
        "voted": {
            "best": [{"text": text, "votes": text, "round": text} for text in HOSTILE],
            "shares": [{"round": n, "shares": dict.fromkeys(HOSTILE, 0.1)} for n in range(3)],
        },
        "side_by_side": {name: list(HOSTILE) for name in ("public", "seeds", "synthetic")},
        "topics": {"largest": [{"keywords": [HOSTILE[0]], "share": 0.5}]},
    }  # fmt: skip
    (found / "summary.json").write_text(json.dumps(plain), encoding="utf-8")
    lines = "".join(f"{json.dumps(row)}\n" for row in texts)
    (found / "synthetic.jsonl").write_text(lines, encoding="utf-8")
    log = "".join(f"a b WARNING {text}\n" for text in clean)
    (found / "run.log").write_text(log, encoding="utf-8")
    (found / "error.txt").write_text(HOSTILE[0], encoding="utf-8")
    events = [{"t": 1.0, "stage": text, "done": 1, "total": 2, "note": text} for text in HOSTILE]
    (found / "progress.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in events), "utf-8")
    return found
