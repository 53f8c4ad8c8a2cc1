"""PrE-Text and its baselines (Hou et al., ICML 2024): section 4, Tables 2 and 3, App. C and D."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.papers.layers import TRUSTED

BUDGET = """
epsilon = $epsilon  # section 4, Tables 2 and 3
delta = 3e-6  # section 4, Tables 2 and 3
spare-rounds = 0  # the paper knows no failed rounds
"""

DATA = """
# The paper's data is not on a hub: docs/methods.md says how to cut it from c4-en into these files.
nodes = 8  # simulated SuperNodes that host the users; not in the paper
[data]
source = "files"
path = "data/pretext/$set.jsonl"
public-path = "data/pretext/c4-public.jsonl"
users = 1250  # section 4, App. C
samples-per-user = 8  # App. C: clients of 8 samples
partition = "uniform"  # App. C: split uniformly at random
held-out-users = 125  # App. C: 1,000 held-out samples, here as 125 users of 8
public-pool = 87000  # App. D.2 (1): roughly 87k samples of c4-en
[models]
downstream = "distilbert/distilgpt2"  # section 4: DistilGPT2
[evaluation]
sequence-length = 64  # the authors' code
special-tokens = "bos-eos"  # the authors' code: [bos] text [eos], cut to 64
learning-rates = "2e-4"  # App. D.2 (1)
schedule = "constant"  # the authors' code
warm-up = 0.0  # the authors' code
gradient-clip = 0.0  # the authors' code
micro-batch-size = 256  # the authors' code
"""

CODE_DATA = """
[data]
samples-per-user = 128  # App. C: CODE is capped to 128 comments a user
partition = "natural"  # App. C: CODE is partitioned by its users
held-out-users = 100  # App. C: the next 100 users
"""

PRETEXT = """
# PrE-Text on $SET at epsilon $epsilon (Hou et al., ICML 2024). Run: privsyn run $file
method = "pretext"
noise-multiplier = $noise  # App. D.1: sigma / sensitivity, by Opacus' RDP accountant; exactly it costs $exact, and $enough would do
rounds = 11  # App. D.1: T
min-surviving-weight = 1.0  # the paper knows no dropouts: all noise shares are needed
benchmark = true  # next-token accuracy on held-out users, Table 2: outside epsilon
[data]
development-users = 0
sample-words = 48  # words, where the authors cut at 64 tokens: an approximation, see docs/methods.md
[models]
embedder = "minilm"  # App. D.2 (5): all-MiniLM-L6-v2
infiller = "FacebookAI/roberta-large"  # App. D.2 (5): RoBERTa-large
generator = "meta-llama/Llama-2-7b-hf"  # App. D.2 (5): LLaMA-2-7B
[pretext]
population = $population  # App. D.2 (5): N_syn
lookahead = 4  # the authors' code: K
clip = "worst-case"  # App. D.1: sensitivity is the largest number of samples
vote-bound = 8.0  # App. D.2 (5): limits the sensitivity to 8
threshold = $threshold  # App. D.2 (5): H = $terms
threshold-unit = "votes"
variation = "mask-fill"
mask-fraction = 0.3  # App. D.2 (5): MASK%
mask-steps = 2  # App. D.2 (5): W_steps
mask-passes = 0  # the authors' code: the masks of a step are filled one after another
temperature = 1.0  # App. D.2 (5)
top-p = 1.0  # App. D.2 (5)
max-tokens = 64  # the authors' code
[generation]
backend = "vllm"  # App. D.2 (5): two million completions
[expand]
samples = 2000000  # App. D.2 (5)
include-seeds = false  # the text is what the generator wrote
seeds-per-prompt = 3  # section 3 (6)
temperature = 1.0  # App. D.2 (5)
top-p = 1.0  # App. D.2 (5)
max-tokens = 85  # the authors' code
[evaluation]
batch-size = 65536  # App. D.2 (1): for expanded sets
epochs = 20  # App. D.2 (1)
"""

FROM_C4 = """
[evaluation]
start = "public"  # section 4.1: first on the samples of c4-en, as c4-only
public-epochs = 20  # App. D.2 (1)
public-batch-size = 256  # App. D.2 (1): of c4-only
controls = "random-public"  # c4-only: it is the start of the others, and costs nothing
checkpoint = "last"  # the authors' code reports the best epoch on the test samples themselves
"""

LLAMA = """
# The large model of section 4.2, in place of DistilGPT2: Tables 4 and 5. No row of it is tuned on c4.
[models]
downstream = "meta-llama/Llama-2-7b-hf"  # section 4.2: LLaMA-2-7B
[expand]
samples = 50000  # section 4.2
[evaluation]
controls = ""  # section 4.2: against the model as it is, and the private text
sequence-length = 64  # the authors' code: cutoff_len
special-tokens = "tokenizer"  # the authors' code adds none of its own here; Llama's tokenizer writes BOS
epochs = 1  # section 4.2
batch-size = 512  # section 4.2; the authors' code: 8 x 16 accumulated x GPUs, so 4 of them
micro-batch-size = 8  # the authors' code
learning-rates = "2e-4"  # section 4.2
adapter-rank = 4  # section 4.2, the authors' code
adapter-alpha = 8.0  # section 4.2, the authors' code
precision = "bfloat16"  # not in the paper
"""

CODE_VOTES = """
[data]
samples-per-user = 16  # App. D.2 (5): for PrE-Text CODE is clipped to 16 samples a user
held-out-samples = 128  # App. C: the cap of CODE; its test set is that of the other rows
[pretext]
vote-bound = 16.0  # App. D.2 (5): limits the sensitivity to 16
threshold = $doubled  # App. D.2 (5): H = $terms, doubled for CODE
"""

BASELINE = """
# Learning rate and bound are the paper's grid, which does not say which of them won: the middle ones
# stand here, the others in configs/grids/pretext.toml.
rounds = 100  # App. D.2 (3): of 10, 20 and 100, more always helped
min-surviving-weight = 1.0  # the paper knows no dropouts: every user counts
round-timeout = 7200.0  # a round trains on every user's samples; not in the paper
benchmark = true  # next-token accuracy on held-out users, Table 2: outside epsilon
[data]
development-users = 125  # the grid's; the paper tunes on its evaluation set
sample-words = 48  # words, where the authors cut at 64 tokens: an approximation, see docs/methods.md
[training]
parameters = "full"  # section 5, Table 6: all 82M parameters travel
optimizer = "sgd"  # McMahan et al. 2017b, whom the paper follows
learning-rate = 0.01  # App. D.2 (3): of 0.1, 0.01 and 0.001
momentum = 0.0  # not in the paper: its momentum is the server's
epochs = 1  # not in the paper
batch-size = 4  # App. D.2 (3)
clip-norm = 0.1  # App. D.2 (3): of 1.0, 0.1, 0.01 and 0.001
server-optimizer = "fedavgm"  # App. D.2 (3): server momentum
server-learning-rate = 1.0  # not in the paper
server-momentum = 0.9  # App. D.2 (3)
public-steps = 6797  # App. D.2 (3): the model of c4-only, 20 epochs of 87k samples
[evaluation]
batch-size = 256  # App. D.2 (1): of c4-only
batch-of = "texts"  # so that training.public-steps are 20 epochs of 87k samples
epochs = 20  # of (c), not in the paper: as c4-only
start = "public"  # App. D.2 (2): the bound starts from c4-only, too
"""

FEDAVG = """
# DP-FedAvg on $SET at epsilon $epsilon: the on-device baseline of PrE-Text (Hou et al.,
# ICML 2024, App. D.2 (3)). Run: privsyn run $file
method = "dp-fedavg"
noise-multiplier = 0.0  # not in the paper for 100 rounds: the smallest that keeps epsilon
[training]
noise = "nodes"  # the paper: of the server, with secure aggregation; the sum is the same
"""

FTRL = """
# DP-FTRL-TreeRestart on $SET at epsilon $epsilon: the on-device baseline of PrE-Text (Hou et al.,
# ICML 2024, App. D.2 (3)). Run: privsyn run $file
noise-multiplier = 0.0  # not in the paper for 100 rounds, nor its accounting: the smallest that keeps epsilon
[ftrl]
mechanism = "tree-restart"  # App. D.2 (3): DP-FTRL-TreeRestart, for full participation
restart-every = 1  # not in the paper; a tree an epoch, and an epoch is one round: independent noise
completion = false  # not in the paper; a tree of one round is complete
min-separation = 1  # App. D.2 (3): full participation in each round
"""

# Rows that ask nobody: the paper's bounds from below and above, and paraphrases.

NO_QUERIES = """
benchmark = true  # next-token accuracy on held-out users, Tables 2 and 3: outside epsilon
[data]
development-users = 0
sample-words = 48  # 64 tokens, about 48 words
[models]
embedder = "minilm"  # of the benchmark's distances
"""

PUBLIC_ONLY = """
# c4-only on $SET: DistilGPT2 tuned on the public text alone, epsilon 0 (Hou et al., ICML 2024,
# App. D.2 (1)). Run: privsyn run $file
method = "public-only"
[evaluation]
batch-size = 256  # App. D.2 (1): of c4-only
epochs = 20  # App. D.2 (1)
controls = ""  # the result is the public text itself
"""

EXPANDED = """
[models]
generator = "meta-llama/Llama-2-7b-hf"  # App. D.2 (5): LLaMA-2-7B
[expand]
samples = 2000000  # App. D.2 (1), (2)
include-seeds = false  # the text is what the generator wrote
seeds-per-prompt = 3  # section 3 (6)
temperature = 1.0  # App. D.2 (5)
top-p = 1.0  # App. D.2 (5)
max-tokens = 85  # the authors' code
[evaluation]
batch-size = 65536  # App. D.2 (1), (2)
epochs = 20  # App. D.2 (1), (2)
"""

EXPAND_ONLY = """
# Expand-only on $SET: Expand on the public text, epsilon 0 (Hou et al., ICML 2024, App. D.2 (1)).
# Run: privsyn run $file
method = "expand-only"
"""

EXPAND_PRIVATE = """
# Expand-private on $SET: Expand on the private text itself (Hou et al., ICML 2024, App. D.2 (2)).
# NO PRIVACY: epsilon is infinite, an upper bound for comparison. Run: privsyn run $file
method = "expand-private"
"""

DP_PROMPT = """
# DP-Prompt on $SET at epsilon $epsilon: LOCAL privacy, each user's texts paraphrased (Utpala et al.,
# 2023; Hou et al., ICML 2024, App. D.2 (4)). Simulated. Run: privsyn run $file
# The paper does not say which tokens and texts its epsilon is of. Here it is of all 64 tokens of all of a
# user's texts, and the temperature that follows makes the tokens all but random.
method = "dp-prompt"
epsilon = $epsilon  # section 4, Tables 2 and 3; here without a delta
[models]
generator = "google/flan-t5-xl"  # App. D.2 (4): flan-t5-3b
[dp-prompt]
max-tokens = 64  # not in the paper: its sequences
logit-low = 0.0  # App. D.2 (4): the bottom logit; both 0: measured on public text
logit-high = 0.0  # App. D.2 (4): the top logit
[evaluation]
batch-size = 256  # App. D.2 (4)
epochs = 20  # App. D.2 (4)
"""

SETS = ("jobs", "forums", "microblog", "code")
# App. D.1 and D.2 (5); exact: what the noise costs exactly; enough: the noise that would do;
# doubled: the threshold of CODE; terms: how the paper writes it.
COLUMNS = ("noise", "exact", "enough", "population", "threshold", "doubled", "terms")
EPSILONS = {
    "1.29": ("11.3", "1.189", "10.49", "1024", "102.8631", "205.7262", "5.9 x 8 x 1.541 x sqrt(2)"),
    "7.58": ("2.31", "7.08", "2.181", "2048", "17.4344", "34.8688", "8 x 1.541 x sqrt(2)"),
}


def rows() -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, layers and numbers of each file."""
    for name in SETS:
        data, votes = ([CODE_DATA], [CODE_VOTES]) if name == "code" else ([], [])
        training = [BASELINE, BUDGET, DATA, *data]
        named = {"set": name, "SET": name.upper()}
        unasked = [DATA, *data, NO_QUERIES]
        yield f"public-only-pretext-{name}", [PUBLIC_ONLY, *unasked], named
        yield f"expand-only-pretext-{name}", [EXPAND_ONLY, *unasked, EXPANDED, FROM_C4], named
        yield f"expand-private-pretext-{name}", [EXPAND_PRIVATE, *unasked, EXPANDED, FROM_C4], named
        large = [EXPAND_PRIVATE, *unasked, EXPANDED, LLAMA]
        yield f"expand-private-pretext-llama2-{name}", large, named
        for epsilon, numbers in EPSILONS.items():
            run = f"pretext-{name}-eps{epsilon}"
            own = {"epsilon": epsilon, **named}
            own |= zip(COLUMNS, numbers, strict=True)
            yield run, [PRETEXT, BUDGET, DATA, *data, *votes, FROM_C4], own
            yield (
                f"pretext-llama2-{name}-eps{epsilon}",
                [PRETEXT, BUDGET, DATA, *data, *votes, LLAMA],
                own,
            )
            yield f"dp-fedavg-{run}", [FEDAVG, *training], own
            yield f"dp-ftrl-{run}", [FTRL, TRUSTED, *training], own
            yield f"dp-prompt-{run}", [DP_PROMPT, *unasked, FROM_C4], own
