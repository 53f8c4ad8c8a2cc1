"""Gboard's next-word models (Wu et al. 2024): section 4, Algorithm 1, App. B and C."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.papers.layers import TRUSTED

TITLE = """
# Gboard's next-word model for $country by DP-FTRL (Wu et al. 2024, "Prompt Public Large
# Language Models to Synthesize Data for Private On-device Applications", section 4, Algorithm 1, App. C).
# Run: privsyn run $file
"""

GBOARD = """
# The paper states neither clients a round, minimum separation, noise, bound, learning rates nor local
# epochs. Where it says nothing, the values are ours, and say so.
epsilon = $epsilon  # App. C.3 (3c), by PLD
delta = 1e-10  # App. C.3 (3c)
noise-multiplier = 7.0  # unknown; with $most answers a user it is $square / (2 x 7^2) = $rho-zCDP, App. C.3's $stated
rounds = 1200  # App. C.3 (3c)
spare-rounds = 0  # an attempt that fails gives nothing away
min-surviving-weight = 0.85  # unknown
nodes = 8  # simulated SuperNodes that host the users
round-timeout = 7200.0
benchmark = true  # accuracy on held-out users, Figure 4: outside epsilon
[data]
source = "files"
path = "data/gboard/$set.jsonl"  # nobody has the paper's: any file of messages by user
public-path = "data/gboard/public.jsonl"  # section 3.4: filtered C4 and chats written by a model
users = $users  # the paper estimates $devices devices; with this separation 50 answer in each round
held-out-users = 500  # section 4.2 has a hold-out set of devices, of unknown size
development-users = 500
samples-per-user = 64  # unknown
sample-words = 48  # unknown
near-duplicates = "keep"
public-pool = 87000  # unknown
[models]
downstream = "lstm"  # section 4: 670 hidden units, embeddings of 96, 30K words, about 6M parameters
train-steps = 150000  # section 4.1
train-seconds = 1e6
lstm-words = 30000  # section 4
lstm-hidden = 670  # section 4
lstm-embedding = 96  # section 4
lstm-learning-rate = 1e-3  # section 4.1, of App. C.1's 1e-4, 1e-3 and 1e-2
lstm-adam-epsilon = 1e-9  # section 4.1, of App. C.1's 1e-7, 1e-8 and 1e-9
lstm-batch-texts = 20000  # section 4.1: batches of 20K, read as examples
[training]
parameters = "full"  # section 4.2
optimizer = "sgd"  # App. B: typically SGD
learning-rate = 0.5  # unknown
epochs = 1  # unknown
batch-size = 16  # unknown
clip-norm = 10.0  # unknown
server-optimizer = "fedavgm"  # Algorithm 1
server-learning-rate = 1.0  # unknown
server-momentum = 0.9  # Algorithm 1
noise = "aggregator"  # App. C.3 (1): central DP, the service provider is trusted
public-steps = 0  # section 4.1 is models.train-steps
[ftrl]
mechanism = "tree"  # App. B: the tree aggregation of Kairouz et al. 2021
min-separation = $apart  # unknown; zero-out adjacency and a timer on the device: App. C.3 (2d), (3b)
max-participations = $most  # unknown; as many as fit
[evaluation]
sequence-length = 32  # unknown
steps = 2000  # of (c), not in the paper
batch-size = 256
learning-rates = "1e-3"  # section 4.1
"""

PROXIMITY = """
# With the filter of section 5: the trained model picks from its own public text, and LSTMs trained anew
# on what is left, on as much of it at random and on all are compared on held-out users: Table $table.
[proximity]
filter = true
most-unknown = 0.6  # section 5
least-score = -5.0  # section 5
gain = true  # section 5: at least the score before the training
"""

MEASURED = """
# Four pre-trained models measured on users' text before any training on it, $country (Wu et al. 2024,
# "Prompt Public Large Language Models to Synthesize Data for Private On-device Applications", Table 3).
# The paper's metrics have no noise; here they are one release with the smallest noise that keeps epsilon.
# Nobody has the models: each is the LSTM of dp-ftrl-gboard-$set.toml, of public text of its own.
# Run: privsyn run $file
method = "evaluation"
epsilon = 1.0  # not in the paper
delta = 1e-10  # of the trainings, App. C.3 (3c)
noise-multiplier = 0.0  # not in the paper: the smallest that keeps epsilon
min-surviving-weight = 0.85  # unknown
nodes = 8  # simulated SuperNodes that host the users
[data]
source = "files"
path = "data/gboard/$set.jsonl"  # nobody has the paper's: any file of messages by user
users = 100000  # Table 3: more than 100K devices in each of three evaluations
samples-per-user = 64  # unknown
near-duplicates = "keep"
[models]
downstream = "models/gboard/c4"  # the base of the others
[measure]
models = "c4=downstream, llm-filter-c4=models/gboard/filter-c4, llm-syn-chat=models/gboard/syn-chat, llm-mix=models/gboard/mix"
[evaluation]
sequence-length = 32  # unknown
"""

# square: of the sensitivity of a tree to `most` answers; rho: square / (2 x 7^2)
COLUMNS = "country epsilon devices users apart most square rho stated".split()
RUNS = {
    "en-us": ("en-US", "6.55", "13M", "17600", "352", "4", "49", "0.500", "0.5"),
    "en-in": ("en-IN", "5.95", "8M", "20000", "400", "3", "41", "0.418", "0.42"),
}


def rows() -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, layers and numbers of each file."""
    for name, numbers in RUNS.items():
        own = {"set": name, **dict(zip(COLUMNS, numbers, strict=True))}
        own["table"] = {"en-us": "4", "en-in": "7"}[name]
        layers = [TITLE, TRUSTED, GBOARD]
        yield f"dp-ftrl-gboard-{name}", layers, own
        yield f"dp-ftrl-gboard-proximity-{name}", [*layers, PROXIMITY], own
        yield f"evaluation-gboard-{name}", [MEASURED], own
