"""Users trained on a node against the same local steps in bare PyTorch, and the memory it takes.

    python benchmarks/local_training.py [--users 24] [--texts 8] [--threads 1] [--model FOLDER]
                                       [--width 192]

Both sides tokenise, train one user after another on one model that is reset in place, and take
the change of the parameters: bare PyTorch with transformers alone (for low-rank factors with
PEFT), ours through `user_updates` with the clipping but without the secure encoding. They take
turns, user group by user group. Goal: at least 0.8 of bare PyTorch's users per second for the
embedded language model. The deltas are compared as well.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.client_apps import updates
from privsyn_flower.client_apps.answers import Participants
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.common.randomness import seeded
from privsyn_flower.privacy.encoding.dense import dense_numbers
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.question import Query
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.parameters import pack_parameters
from privsyn_flower.training import LocalTraining, trained_layout
from privsyn_flower.training.low_rank import initial_parameters, trained_patterns

EMBEDDED = Path(updates.__file__).parents[1] / "assets" / "downstream"
GROUP = 8  # users in a row on one side before the other side's turn
RANK = 8
Users = dict[str, list[str]]


def made_up(count: int, texts: int, words: int = 35) -> Users:
    """Users with texts of this many words each, from Python's own documentation."""
    import pydoc_data.topics as topics

    pool = " ".join(topics.topics.values()).split()
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(pool) - words, size=(count, texts))
    return {
        f"user-{number}": [" ".join(pool[first : first + words]) for first in row]
        for number, row in enumerate(starts)
    }


def of_width(folder: Path, width: int, place: Path) -> Path:
    """A causal LM like that in `folder`, untrained, with hidden vectors of `width`, in `place`."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(folder)
    heads = config.hidden_size // config.num_attention_heads
    if width % heads:
        raise SystemExit(f"--width {width} must be a multiple of {heads}, the width of a head")
    config.intermediate_size = config.intermediate_size * width // config.hidden_size
    config.num_attention_heads = config.num_key_value_heads = width // heads
    config.hidden_size = width
    AutoModelForCausalLM.from_config(config).half().save_pretrained(place)
    AutoTokenizer.from_pretrained(folder).save_pretrained(place)
    return place


@contextlib.contextmanager
def chosen(options: argparse.Namespace) -> Iterator[Path]:
    """The folder of the model that --model and --width name."""
    if not options.width:
        yield options.model
        return
    with tempfile.TemporaryDirectory() as name:
        yield of_width(options.model, options.width, Path(name))


def asked(folder: Path, kind: Any, options: LocalTraining) -> tuple[Query, dict[str, Any]]:
    """A round's question about the base itself."""
    parameters = initial_parameters(folder, kind, rank=RANK, factors="up")
    layout = trained_layout(parameters, options.to_options())
    query = Query.update(
        pack_parameters(parameters),
        length=layout.length,
        bound=1e6,
        model=folder_fingerprint(folder),
        rotation=bytes(32),
        options={"clip-norm": 1e6, "indicator": 0.0, **options.to_options()},
    )
    return query, parameters


class Bare:
    """The same local training with transformers, PEFT and a plain loop."""

    def __init__(self, folder: Path, options: LocalTraining, factors: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.options = options
        self.tokenizer = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        named = dict(self.model.named_parameters())
        if set(factors) - set(named):
            named = self._low_rank(factors)
        self.leaves = [named[name] for name in sorted(named)]
        self.start = [leaf.detach().clone() for leaf in self.leaves]

    def _low_rank(self, factors: dict[str, Any]) -> dict[str, Any]:
        """PEFT's LoRA with our fixed inner factors: the outer ones by our names."""
        import torch
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear")
        self.model = get_peft_model(self.model, config)
        found = {}
        for name, value in self.model.named_parameters():
            weight = name.removeprefix("base_model.model.")
            if "lora_A" in name:
                down = weight.replace(".lora_A.default.weight", ".weight.down")
                value.data.copy_(torch.from_numpy(factors[down].astype(np.float32)))
                value.requires_grad_(False)
            elif "lora_B" in name:
                found[weight.replace(".lora_B.default.weight", ".weight.up")] = value
        return found

    def train(self, user: str, texts: list[str]) -> Any:
        import torch

        options = self.options
        rows = self.tokenizer(texts, truncation=True, max_length=options.sequence_length)
        rows = [row for row in rows["input_ids"] if len(row) > 1]
        with torch.no_grad():
            for leaf, start in zip(self.leaves, self.start, strict=True):
                leaf.copy_(start)
        optimizer = torch.optim.SGD(self.leaves, lr=options.learning_rate)
        order = seeded(options.seed, bytes(32).hex(), "order", user).permutation(len(rows))
        for first in range(0, len(rows), options.batch_size):
            batch = [rows[i] for i in order[first : first + options.batch_size]]
            width = max(len(row) for row in batch)
            ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
            mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch])
            labels = ids.masked_fill(mask == 0, -100)[:, 1:]
            logits = self.model(input_ids=ids, attention_mask=mask).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        parts = [
            (leaf.detach().double() - start).reshape(-1)
            for leaf, start in zip(self.leaves, self.start, strict=True)
        ]
        return torch.cat(parts).numpy()


def turns(
    sides: dict[str, Callable[[Users], Any]], users: Users
) -> tuple[dict[str, list[float]], float]:
    """Wall and CPU seconds of each side over all users, in turns; and how far the sums differ."""
    names, spent, furthest = list(users), {side: [0.0, 0.0] for side in sides}, 0.0
    for first in range(0, len(names), GROUP):
        group = {name: users[name] for name in names[first : first + GROUP]}
        sums = []
        for side, train in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            sums.append(train(group))
            spent[side][0] += time.perf_counter() - wall
            spent[side][1] += time.process_time() - cpu
        furthest = max(furthest, float(np.abs(sums[0] - sums[1]).max()))
    return spent, furthest


def tensor_bytes() -> int:
    """Bytes of all tensors that are alive, each storage once."""
    import torch

    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor):
            for tensor in (thing, thing.grad) if thing.is_leaf else (thing,):
                if tensor is not None:
                    found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(found.values())


def speed(folder: Path, kind: Any, users: Users) -> None:
    """Prints users per second on both sides, and their ratio."""
    trained = trained_patterns(folder, kind, factors="up")
    options = LocalTraining(
        "sgd",
        0.1,
        0.0,
        0.0,
        epochs=1,
        batch_size=4,
        max_steps=100,
        sequence_length=64,
        trained=trained,
    )
    query, parameters = asked(folder, kind, options)
    plan = dense_numbers(query.bound, query.length, 0.0, 1, 1)
    node = Node(
        Hello(1, 0, deployed=False), Path(), "", "cpu", None, None, dict, downstream=lambda: folder
    )
    before = tensor_bytes()
    total, nothing = np.zeros(query.length), np.zeros(1, dtype=np.int64)

    def summed(vector: Any, _plan: Any, _seed: bytes) -> Any:
        np.add(total, vector, out=total)
        return nothing

    updates.encode_dense = summed

    def ours(group: Users) -> Any:
        total[:] = 0
        everybody = np.ones(len(group), dtype=bool)
        updates.user_updates(query, group, Participants(everybody, everybody), plan, node)
        return total

    copies: list[float] = []
    real = updates._deltas

    def watched(*args: Any) -> Any:
        for delta in real(*args):
            if not copies:
                copies.append((tensor_bytes() - before) / weights)
            yield delta

    weights = sum(4 * array.size for array in initial_parameters(folder, "full").values())
    first = dict(list(users.items())[:2])
    updates._deltas = watched
    ours(first)  # loads the model, rehearses, and is looked at
    updates._deltas = real
    bare = Bare(folder, options, parameters)
    sides: dict[str, Callable[[Users], Any]] = {
        "bare": lambda group: sum(bare.train(user, texts) for user, texts in group.items()),
        "ours": ours,
    }
    turns(sides, first)
    spent, furthest = turns(sides, users)
    rates = {side: [len(users) / seconds for seconds in both] for side, both in spent.items()}
    print(
        f"{kind}: d = {query.length}, model {weights / 1e6:.1f} MB; users/s bare "
        f"{rates['bare'][0]:.2f}, ours {rates['ours'][0]:.2f}; ratio wall "
        f"{rates['ours'][0] / rates['bare'][0]:.2f}, CPU "
        f"{rates['ours'][1] / rates['bare'][1]:.2f} (goal: at least 0.8); tensors alive after a "
        f"user {copies[0]:.2f} x the model; sums differ by {furthest:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: its own choice")
    parser.add_argument("--model", type=Path, default=EMBEDDED, help="a causal LM's folder")
    parser.add_argument("--width", type=int, default=0, help="the same with this hidden size")
    options = parser.parse_args()
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    users = made_up(options.users, options.texts)
    with chosen(options) as model:
        for kind in ("full", "lora"):
            speed(model, kind, users)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak resident memory of the process {peak:.0f} MB, both sides and torch included")


if __name__ == "__main__":
    main()
