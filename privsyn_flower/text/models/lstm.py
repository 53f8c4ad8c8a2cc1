"""The keyboard's language model: a small LSTM over words, as an ordinary Hugging Face model.

Hard et al. 2018 (arXiv 1811.03604), "Federated learning for mobile keyboard prediction", section 3:
embeddings of 96, one layer of 670 cells with coupled input and forget gates (Greff et al. 2017) and
a recurrent projection back to 96 (Sak et al. 2014). With 10,000 words and one matrix for input and
output that makes their 1.4 million parameters. "Prompt public LLMs to synthesize data", section 4,
states 670, 96, 30,000 words and about 6 million parameters: that is two matrices, the default here.

Importing this file makes the model known to transformers' Auto classes. It imports torch, so only
those import it who are about to load such a model (`pretrained.know_model`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import CausalLMOutput

from privsyn_flower.common.arrays import I64
from privsyn_flower.common.files import DataError, build_folder
from privsyn_flower.common.progress import Progress, silent, stop
from privsyn_flower.common.randomness import seeded
from privsyn_flower.common.units import VERSION, spaced
from privsyn_flower.text.models.batches import causal_loss, encode, pad_rows, token_batches
from privsyn_flower.text.models.devices import one_worker, resolve_device

if TYPE_CHECKING:
    from privsyn_flower.config import RunConfig
    from privsyn_flower.text.protocols import PublicText


logger = logging.getLogger("privsyn_flower")

MODEL_TYPE = "privsyn-lstm"
WORDS, HIDDEN, EMBEDDING = 30_000, 670, 96  # Gboard paper, section 4
SPECIAL = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
STEPS = 2000  # of pre-training, unless models.train-steps says otherwise; the paper's: 150K
LEARNING_RATE, ADAM_EPSILON = 1e-3, 1e-9  # of pre-training, section 4.1


class LstmConfig(PreTrainedConfig):  # type: ignore[misc]
    """vocab_size: words, special ones among them. coupled: the input gate is one minus the forget
    gate; else four gates. tie_word_embeddings: one matrix for input and output. trained_steps: of
    Adam on public text. units: version of `common.units` whose words the model reads; 0: before
    there was one, what is between spaces."""

    model_type = MODEL_TYPE

    vocab_size: int = WORDS
    hidden_size: int = HIDDEN
    embedding_size: int = EMBEDDING
    coupled: bool = True
    tie_word_embeddings: bool = False
    trained_steps: int = 0
    units: int = 0


class LstmForCausalLM(PreTrainedModel):  # type: ignore[misc]
    """Embedding, one layer with a recurrent projection, and a linear layer to words.

    Padding must follow the text: what comes before a position is all that it depends on.
    """

    config_class = LstmConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _tied_weights_keys = {"output.weight": "embedding.weight"}  # noqa: RUF012 - as transformers'

    def __init__(self, config: LstmConfig) -> None:
        super().__init__(config)
        words, hidden, width = config.vocab_size, config.hidden_size, config.embedding_size
        gates = 3 if config.coupled else 4
        self.embedding = torch.nn.Embedding(words, width)
        self.input_gates = torch.nn.Linear(width, gates * hidden)
        self.recurrent_gates = torch.nn.Linear(width, gates * hidden, bias=False)
        self.projection = torch.nn.Linear(hidden, width, bias=False)
        self.output = torch.nn.Linear(width, words)
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=self.config.embedding_size**-0.5)
        elif isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        if module is self.input_gates:  # a cell starts by remembering
            with torch.no_grad():
                module.bias[: self.config.hidden_size].fill_(1.0)

    def get_input_embeddings(self) -> torch.nn.Embedding:
        """The matrix that words come in by."""
        return self.embedding

    def get_output_embeddings(self) -> torch.nn.Linear:
        """The layer from hidden states to words."""
        return self.output

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any
    ) -> CausalLMOutput:
        """(n, l) word ids -> logits (n, l, words). The mask is not needed, see the class."""
        from_input = self.input_gates(self.embedding(input_ids))
        state = from_input.new_zeros(len(input_ids), self.config.embedding_size)
        cell = from_input.new_zeros(len(input_ids), self.config.hidden_size)
        states = []
        for gates in from_input.unbind(dim=1):
            cell, opened = self._cell(gates + self.recurrent_gates(state), cell)
            state = self.projection(opened)
            states.append(state)
        return CausalLMOutput(logits=self.output(torch.stack(states, dim=1)))

    def _cell(self, gates: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pre-activations of the gates and the cells before -> the cells, and their output."""
        parts = gates.chunk(3 if self.config.coupled else 4, dim=-1)
        keep, out, new = parts[0].sigmoid(), parts[1].sigmoid(), parts[2].tanh()
        let_in = 1 - keep if self.config.coupled else parts[3].sigmoid()
        cell = keep * cell + let_in * new
        return cell, out * cell.tanh()


AutoConfig.register(MODEL_TYPE, LstmConfig, exist_ok=True)
AutoModelForCausalLM.register(LstmConfig, LstmForCausalLM, exist_ok=True)


def word_tokenizer(
    texts: Iterable[str], words: int, word_list: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A tokenizer of the most frequent lower-case words and punctuation of public texts.

    words: most words of the vocabulary, four special ones included. Equally frequent words are
    taken in alphabetical order. word_list: the words themselves, in their order; no text is then
    counted. A word that is not in the vocabulary becomes <unk>, which a model learns to predict but
    is never right about (`unknown_token`). Raises ValueError for a size below 5.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    if words <= len(SPECIAL):
        raise ValueError(f"words = {words}: a vocabulary needs at least {len(SPECIAL) + 1}")
    normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    splitter = pre_tokenizers.Whitespace()
    if word_list:
        ranked = [normalizer.normalize_str(word) for word in word_list]
        _tell_of_unreachable(ranked, splitter)
    else:
        counts: Counter[str] = Counter()
        for text in texts:
            pieces = splitter.pre_tokenize_str(normalizer.normalize_str(spaced(text)))
            counts.update(word for word, _ in pieces)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
    chosen = list(dict.fromkeys([*SPECIAL.values(), *ranked]))[:words]
    vocabulary = {word: number for number, word in enumerate(chosen)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    start = SPECIAL["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, vocabulary[start])]
    )
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
    made.units = VERSION
    return made


def _tell_of_unreachable(words: Sequence[str], splitter: Any) -> None:
    """Entries that text is cut within ("don't" is three words here) are never met."""
    several = [word for word in words if len(splitter.pre_tokenize_str(word)) > 1]
    if several:
        logger.warning(
            "models.lstm-word-list: %d of %d entries are several words here and never met, such as "
            "%r",
            len(several), len(words), several[0],
        )  # fmt: skip


def make_lstm(
    folder: Path,
    texts: Sequence[str],
    training: WordTraining,
    *,
    words: int = WORDS,
    word_list: Sequence[str] = (),
    hidden: int = HIDDEN,
    embedding: int = EMBEDDING,
    progress: Progress = silent,
) -> Path:
    """Write a word-level LSTM trained on public texts, with its tokenizer, into `folder`.

    words, word_list: as `word_tokenizer` has them; a small corpus has fewer. Raises ValueError when
    steps are asked for and no text has a word.
    """
    tokenizer = word_tokenizer(texts, words, word_list)
    config = LstmConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        embedding_size=embedding,
        units=VERSION,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return train_lstm(folder, config, tokenizer, texts, training, progress)


def train_lstm(
    folder: Path,
    config: LstmConfig,
    tokenizer: Any,
    texts: Sequence[str],
    training: WordTraining,
    progress: Progress = silent,
) -> Path:
    """As `make_lstm`, of this shape and with these words, whatever the texts' own are.

    The steps that it took are `trained_steps` of its config.json.
    """
    with torch.random.fork_rng():
        torch.manual_seed(int(seeded(training.seed, "lstm", "weights").integers(1 << 62)))
        model = LstmForCausalLM(config)
    if training.steps:
        config.trained_steps = train_words(model, tokenizer, texts, training, progress)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def read_word_list(path: Path) -> list[str]:
    """The words of a file, one a line, in its order; empty lines are left out.

    Raises DataError for a file that cannot be read or that has no word.
    """
    key = "models.lstm-word-list"
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{key} = {str(path)!r} cannot be read: {error}") from None
    words = [word for line in lines if (word := line.strip())]
    if not words:
        raise DataError(f"{key} = {str(path)!r} has no word: one a line is wanted")
    return words


def ensure_lstm(federation: PublicText, config: RunConfig, progress: Progress = silent) -> Path:
    """The folder of `models.downstream = "lstm"`: found in the cache, or trained there now.

    Trained on the public pool, its minority included: the mix that a run's filter scores and picks
    from (Gboard paper, section 5), for models.train-steps steps (0: STEPS) or models.train-seconds.
    Its name is the hash of the texts, the word list and the numbers; other processes wait for it.
    Raises ValueError without public text, DataError for a word list that cannot be read.
    """
    from privsyn_flower.config import cache_folder

    models, texts, named = config.models, federation.public(), config.models.lstm_word_list
    listed = read_word_list(Path(named).expanduser()) if named else []
    sizes = {
        "words": models.lstm_words,
        "hidden": models.lstm_hidden,
        "embedding": models.lstm_embedding,
    }
    numbers = (
        models.train_steps or STEPS,
        models.lstm_batch_texts,
        models.lstm_batch_words,
        models.lstm_learning_rate,
        models.lstm_adam_epsilon,
        models.train_seconds,
    )
    training = WordTraining(*numbers, device=models.device)
    told = [*sizes.values(), *numbers, LONGEST, VERSION, listed, texts]
    digest = hashlib.sha256(json.dumps(told).encode())
    target = cache_folder(config) / "models" / f"lstm-{digest.hexdigest()[:24]}"

    def fill(folder: Path) -> None:
        make_lstm(folder, texts, training, word_list=listed, **sizes, progress=progress)

    return build_folder(target, fill)


STAGE = "training the LSTM on public text"  # of progress
LONGEST = 64  # words of a text that are looked at

Words = Sequence[Sequence[int]]  # texts as word ids


@dataclass(frozen=True)
class WordTraining:
    """How long and in what steps.

    steps: of Adam; 0: random weights. batch_texts: texts of a step; 0: as many as batch_words hold.
    batch_words: padded words that go through the model at once, a whole step or a part of one.
    learning_rate, adam_epsilon: of Adam. seconds: no step starts after them. seed: of weights and
    order. device: as `models.device`.
    """

    steps: int
    batch_texts: int = 0
    batch_words: int = 2048
    learning_rate: float = LEARNING_RATE
    adam_epsilon: float = ADAM_EPSILON
    seconds: float = float("inf")
    seed: int = 0
    device: str = "cpu"

    @property
    def readable(self) -> int:
        """Most texts that the steps can read."""
        return self.steps * (self.batch_texts or self.batch_words)


def train_words(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    training: WordTraining,
    progress: Progress = silent,
) -> int:
    """Adam on the mean loss of a next word of public texts, in place; returns the steps taken.

    The model is left on the CPU. Raises ValueError when no text has a word.
    """
    rng = seeded(training.seed, "lstm", "order")
    picked = rng.permutation(len(texts))[: training.readable]
    rows = [row for row in encode(tokenizer, [texts[i] for i in picked], LONGEST) if len(row) > 1]
    if not rows:
        raise ValueError("no public text has a word: an LSTM cannot be trained on it")
    device = resolve_device(training.device)
    model.to(device).train()
    rate, epsilon = training.learning_rate, training.adam_epsilon
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, eps=epsilon)
    end, taken = time.monotonic() + training.seconds, 0
    steps = _steps(rows, training, rng, seeded(training.seed, "lstm", "parts"))
    with one_worker():
        while taken < training.steps and time.monotonic() <= end:
            optimizer.zero_grad()
            add_gradients(model, rows, next(steps), device)
            optimizer.step()
            taken += 1
            if taken < training.steps:
                progress(STAGE, taken, training.steps)
    stop(progress, STAGE, taken, training.steps)
    model.to("cpu").eval()
    return taken


def add_gradients(model: Any, rows: Words, parts: Sequence[I64], device: str) -> None:
    """Add the gradient of the mean loss over all words of a step, part by part."""
    targets = [sum(len(rows[i]) - 1 for i in part) for part in parts]
    for part, own in zip(parts, targets, strict=True):
        ids, mask = pad_rows([rows[i] for i in part], model.config.pad_token_id)
        loss = causal_loss(model, ids.to(device), mask.to(device))
        (loss * (own / sum(targets))).backward()  # type: ignore[no-untyped-call]


def _steps(
    rows: Words, training: WordTraining, rng: np.random.Generator, cuts: np.random.Generator
) -> Iterator[list[I64]]:
    """The rows of every step, in parts of similar length; each row once before one comes again.

    cuts: draws the parts' order, so that the rows of a step do not depend on how it is cut.
    """
    lengths = np.array([len(row) for row in rows])
    while not training.batch_texts:
        yield from ([part] for part in token_batches(lengths, training.batch_words, rng)[::-1])
    waiting: I64 = np.zeros(0, dtype=np.int64)
    while True:
        while len(waiting) < training.batch_texts:
            waiting = np.concatenate([waiting, rng.permutation(len(rows))])
        chosen, waiting = np.split(waiting, [training.batch_texts])
        parts = token_batches(lengths[chosen], training.batch_words, cuts)
        yield [chosen[part] for part in parts]
