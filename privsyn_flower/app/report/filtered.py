"""What a training's model kept of the public text, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privsyn_flower.app.report.evaluations import interval, table

ALL, FILTERED = "pretrained", "scratch_filtered"  # of METHODS


def filter_table(summary: Mapping[str, Any], epsilon: str) -> str:
    """The texts that are left, and the benchmark's new LSTMs of them where there are any."""
    found = summary["proximity"]
    told = f"{found['kept']:,} of {found['of']:,} texts are kept"
    if share := found.get("minority_share"):
        told += f"; the minority's share was {share['before']:.1%} and is {share['after']:.1%}"
    blocks = [
        f"**Public text that the trained model keeps: {summary['method']}, epsilon {epsilon}**",
        f"{told}. It carries the epsilon of the training.",
    ]
    benchmark = summary.get("benchmark", {})
    if "proximity" in benchmark:
        blocks += [_models(benchmark), _differences(benchmark)]
    return "\n\n".join(blocks)


def _models(benchmark: Mapping[str, Any]) -> str:
    own = benchmark["proximity"]
    shares = own.get("minority_share", {})
    rows = [["LSTM; not covered by epsilon", "texts", "minority", "accuracy", "loss"]]
    rows += [["---", *["---:"] * 4]]
    rows += [
        [
            "of all public text" if name == ALL else str(benchmark["methods"][name]),
            f"{own['texts'][name]:,}",
            f"{shares[name]:.1%}" if name in shares else "-",
            f"{benchmark['accuracy'][name]:.4f}",
            f"{benchmark['loss'][name]:.3f}",
        ]
        for name in benchmark["accuracy"]
        if name in own["texts"]
    ]
    return "\n".join(table(rows))


def _differences(benchmark: Mapping[str, Any]) -> str:
    """How much better the LSTM of the kept text is than each of the others."""
    rows = [["(s) minus", "accuracy", "loss"], ["---", "---:", "---:"]]
    for pair, gained in benchmark["accuracy_difference"].items():
        one, _, other = pair.partition("-")
        if one == FILTERED:
            name = "all public text" if other == ALL else str(benchmark["methods"][other])
            saved = benchmark["loss_difference"][pair]
            rows.append([name, *(interval(*found, sign=True) for found in (gained, saved))])
    return "\n".join(table(rows))
