"""POPri killed while it trains, and resumed by a real `flwr run` to the same bits.

DP-RFT, whose messages are of the same kinds, in this process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.cli.ending import NOT_USABLE
from privsyn_flower.config import load_config
from privsyn_flower.runs import RunFolder, read_jsonl
from tests.end_to_end.conftest import left_running, privsyn
from tests.rigs.run import check_nothing_private, finish, private_texts, wait_for
from tests.server_apps import in_process
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # pytest finds the fixture by name

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

ROUNDS, EPOCHS = 2, 8
POPRI = """
method = "popri"
stage-timeout = 300.0
{mini}
[popri]
prompts = 6
responses = 3
examples = 1
rejected-rank = 3
beta = 0.1
learning-rate = 1e-3
epochs = {epochs}
batch-size = 6
lora-rank = 2
"""


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Sums of floats depend on the number of threads, and bits are compared here."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def config(mini: Path, causal_folder: Path) -> Path:
    """The miniature federation, asked by POPri with a random Llama."""
    text = (mini / "mini.toml").read_text()
    text = text.replace(
        'embedder = "ngram-64"', f'embedder = "ngram-64"\ngenerator = "{causal_folder}"'
    )
    text = text.replace("samples = 0", "samples = 12\nmin-words = 1\nmax-tokens = 16")
    path = mini / "popri.toml"
    path.write_text(POPRI.format(mini=text, epochs=EPOCHS))
    return path


def content_bytes(message: Any) -> bytes:
    """Every byte of a reply's records: arrays, strings, names."""
    if message.has_error():
        return str(message.error).encode()
    parts = []
    for name, record in message.content.items():
        parts.append(name.encode())
        for key, value in record.items():
            parts += [key.encode(), value.data if hasattr(value, "data") else str(value).encode()]
            parts += [one for one in [value] if isinstance(one, bytes)]
    return b"\0".join(parts)


def test_killed_while_training_and_resumed(
    mini: Path, config: Path, one_thread: None, loopback: Any
) -> None:
    folder = mini / "popri-killed"
    process = in_process.alone(config, folder)
    training = folder / "popri" / "round-0001"
    wait_for(training / "epoch-2", process)
    process.kill()
    finish(process)
    assert not (training / "finished.json").exists(), "the training was over before the kill"
    responses = (folder / "popri" / "round-0001.json").stat()

    code, out, err = finish(privsyn("run", "--resume", folder, cwd=mini))
    assert code == NOT_USABLE, "\n".join(err)  # its generator has learned next to nothing
    assert out[-1] == str(folder)
    assert left_running(str(folder)) == []

    assert (training / "finished.json").exists()

    # Nothing was generated or asked again.
    again = (folder / "popri" / "round-0001.json").stat()
    assert again.st_mtime_ns == responses.st_mtime_ns
    ledger = read_jsonl(folder / "ledger.jsonl")
    assert [row["kind"] for row in ledger].count("reserve") == ROUNDS
    assert [row["kind"] for row in ledger].count("commit") == ROUNDS

    whole = mini / "popri-whole"
    _, grid = in_process.run(load_config(config), loopback, whole)
    for rnd in range(1, ROUNDS + 1):
        one, two = RunFolder(folder).load_release(rnd), RunFolder(whole).load_release(rnd)
        assert one is not None and np.array_equal(one, two)
    adapter = (
        Path("popri") / f"round-{ROUNDS:04d}" / f"epoch-{EPOCHS}" / "adapter_model.safetensors"
    )
    assert (folder / adapter).read_bytes() == (whole / adapter).read_bytes()
    assert (folder / "synthetic.jsonl").read_bytes() == (whole / "synthetic.jsonl").read_bytes()
    check_folder(folder, mini)
    seen = b"\0".join(map(content_bytes, grid.received))
    assert len(seen) > 10_000
    assert not any(text in seen for text in private_texts(mini))


def test_votes_are_rewards_of_what_was_written(
    mini: Path, config: Path, one_thread: None, loopback: Any
) -> None:
    """DP-RFT: a round of it, by the same nodes and questions, in this process."""
    path, folder = mini / "dp-rft.toml", mini / "dp-rft"
    path.write_text(config.read_text().replace('method = "popri"', 'method = "dp-rft"'))
    changes = {"rounds": 1, "popri.epochs": 1, "dp-rft.threshold": 0.0}
    summary, _ = in_process.run(load_config(path, changes), loopback, folder)
    assert (summary["method"], summary["rounds"]) == ("dp-rft", 1)
    assert summary["unusable"]  # a random Llama has learned next to nothing
    (row,) = read_jsonl(folder / "metrics.jsonl")
    assert 0 < row["candidates_alive"] <= row["responses_asked"] and row["prompts_taught"] > 0
    assert row["training_clipped"] == 0.0 and row["training_kl"] == pytest.approx(0.0, abs=1e-6)
    assert (folder / "popri" / "round-0001" / "epoch-1" / "adapter_model.safetensors").is_file()
    check_nothing_private(folder, mini)


def check_folder(folder: Path, mini: Path) -> None:
    """The summary, adapters and no other weights, no checkpoint left, and no private text."""
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["method"], summary["rounds"]) == ("popri", ROUNDS)
    assert 0 < summary["epsilon_ledger"] <= summary["epsilon"] <= 50.0
    assert summary["synthetic_samples"] == len(read_jsonl(folder / "synthetic.jsonl")) == 12
    assert "benchmark" not in summary
    metrics = read_jsonl(folder / "metrics.jsonl")
    assert [row["round"] for row in metrics] == list(range(1, ROUNDS + 1))
    for row in metrics:
        assert row["pairs"] > 0
        assert {"training_loss", "training_kl", "training_reward_accuracy"} <= set(row)
    weights = [path for path in folder.rglob("*") if path.suffix in {".safetensors", ".bin", ".pt"}]
    assert len(weights) == ROUNDS * EPOCHS
    assert {path.name for path in weights} == {"adapter_model.safetensors"}
    check_nothing_private(folder, mini)
