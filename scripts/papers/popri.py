"""POPri and its baselines (Hou et al., ICML 2025): sections 3 to 5, Tables 1, 3, 4, App. A to F."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.papers.layers import TRUSTED

POPRI = """
method = "popri"
spare-rounds = 0  # the paper knows no failed rounds
round-timeout = 7200.0  # the first round embeds every private sample
benchmark = true  # the paper picks checkpoints by private validation text: outside epsilon
[models]
embedder = "minilm"  # section 5: all-MiniLM-L6-v2
generator = "meta-llama/Meta-Llama-3-8B"  # section 5
[popri]
prompts = 1800  # App. B.1: K
responses = 10  # App. B.1: J
score-bound = 1.0  # section 3.1
rejected-rank = 5  # App. B.1, E.3
training = "dpo"
beta = 0.01  # the authors' configuration
learning-rate = 8e-7  # the authors' configuration; App. B.1: a cosine from 8e-7 to 3e-7
schedule = "constant"  # the authors' configuration: start and end rate are the same
warmup-steps = 10  # the authors' code, over the whole run: in the first round
epochs = 2  # App. B.1
batch-size = 24  # App. B.1
lora-rank = 4  # section 3.1, App. B.1
lora-alpha = 8.0  # section 3.1, App. B.1
checkpoint = "private"  # App. B.1: the epoch of lowest FID to the private validation text
select-samples = 1800  # the authors' code: one text to each of a round's 1,800 prompts
[generation]
backend = "vllm"  # the authors' code
[expand]
temperature = 1.0  # the authors' configuration
top-p = 1.0  # the authors' configuration
"""

FEDERATED = """
# POPri on $title at epsilon $epsilon (Hou et al., ICML 2025). Run: privsyn run $file
epsilon = $epsilon.0  # section 5, Table 3
delta = 3e-6  # section 5, App. B.1
noise-multiplier = $sigma_1  # Table 3, by Opacus' RDP accountant (App. D.1); exactly it costs $exact_1, and $enough would do
rounds = 20  # App. B.1: T
min-surviving-weight = 1.0  # the paper knows no dropouts: all noise shares are needed
nodes = 8  # simulated SuperNodes that host the users; not in the paper
[models]
downstream = "distilbert/distilgpt2"  # section 5
[popri]
examples = 3  # section 3.1
score = "standardised"  # the authors' code; "mean-cosine" is Algorithm 4 to the letter
score-bound = 1.0  # section 3.1, Algorithm 4
label-smoothing = 0.0  # the authors' configuration; App. E.2 tries more
micro-batch-size = 4  # the authors' configuration: 4 pairs, 6 accumulation steps
select = "private"  # section 5: the checkpoint of the best validation; Algorithm 1, line 30, has the last
[expand]
samples = 1000000  # App. B.1
max-tokens = 85  # the authors' configuration
[evaluation]
sequence-length = 64  # App. B.1
batch-size = 160  # App. B.1
epochs = 80  # App. B.1: 500,000 steps on 1,000,000 samples
learning-rates = "2e-4"  # App. B.1
task = "next-token"
start = "public"  # the authors' code goes on from a DistilGPT2 that was tuned on c4
public-epochs = 20  # not in the paper; PrE-Text's
public-batch-size = 256  # not in the paper; PrE-Text's
controls = "random-public"  # Table 1 has none; this one is the start of the others, and costs nothing
"""

DISTILGPT2 = """
[evaluation]
special-tokens = "bos-eos"  # the authors' code: [bos] text [eos], cut to 64
schedule = "constant"  # the authors' code
warm-up = 0.0  # the authors' code
gradient-clip = 0.0  # the authors' code
precision = "bfloat16"  # the authors' code
checkpoint = "development"  # section 5: the checkpoint of the best validation performance
"""

HUB = """
[data]
public-path = "hub:allenai/c4@en#train:50000"  # App. B.1: the sample set is a subset of c4
public-text-column = "text"
date-from = "2023-04-01"  # section 4: published after Llama 3's knowledge cutoff
date-to = "2024-08-31"  # section 4
partition = "date"  # section 4: sorted by date; test and validation are the newest
chunk = true  # section 4: samples are successive spans of 64 tokens
sample-words = 48  # words, where App. F has 64 tokens: an approximation, see docs/methods.md
near-duplicates = "keep"  # the paper removes none; "remove" gives cleaner test text, fewer users
public-pool = 87000  # not in the paper; PrE-Text's
public-validation = 512  # not in the paper
"""

BIORXIV = """
# $needed users in all. Section 4 counts 57k abstracts, App. F 72k: with fewer than $needed in the set
# the run stops and says how many there are; then lower data.users.
# Columns as the collectors' code writes them (bioRxiv's API); a renamed one is an error with its key.
[data]
source = "hub:hazylavender/biorxiv-abstract"  # section 4
user-column = ""  # section 4: every abstract is a client
text-column = "abstract"
date-column = "date"
users = 72000  # App. F, Table 3; Table 4's row of training data
held-out-users = 240  # Table 4: 1,584 test samples, 6.6 a client
development-users = 303  # Table 4: 2,000 validation samples, 6.6 a client
samples-per-user = 512  # the paper has no cap, and no abstract comes near this one
"""

CONGRESS = """
# $needed users in all. Section 4 and App. F count 134k speeches: with fewer than $needed in the set the
# run stops and says how many there are; then lower data.users.
# Columns as the data set's card shows them; a renamed one is an error with its key.
[data]
source = "hub:hazylavender/CongressionalDataset"  # section 4
user-column = ""  # section 4: every speech is a client
text-column = "data"
date-column = "date_str"
users = 133000  # Table 3; Table 4's row of training data
held-out-users = 309  # Table 4: 1,547 test samples, 5.0 a client
development-users = 840  # Table 4: 4,200 validation samples, 5.0 a client
samples-per-user = 512  # the paper has no cap, and no speech comes near this one
"""

FIGURE_3 = """
# Figure 3 does not name its data set. bioRxiv is read from Table 2, of 1,000 clients a round too.
rounds = 50  # App. C.1, for Figure 3: T
[data]
users = 10000  # section 5.2, Table 3
"""

ALL = """
# Full participation: 10,000 of 10,000 clients a round (section 5.2, Figure 3, Table 3).
"""

SOME = """
# Partial participation: $clients of 10,000 clients a round (section 5.2, Figure 3, Table 3).
"""

SAMPLED = """
# The paper draws a fixed number of clients and accounts Poisson sampling. Here each node samples its
# own users (Poisson), as the accounting describes, and a round has about $clients clients.
sampler = "poisson"  # by the nodes, unseen by the server; they work either way
sampling-rate = $rate  # Table 3: $clients of 10,000 clients a round
"""

BASELINE = """
# Learning rate and bound are the paper's grid, which does not say which of them won: the middle ones
# stand here, the others in configs/grids/popri.toml.
epsilon = $epsilon.0  # section 5, Table 3
delta = 3e-6  # App. C.1
rounds = 20  # App. C.1, for Table 1: T
spare-rounds = 0  # the paper knows no failed rounds
min-surviving-weight = 1.0  # the paper knows no dropouts: every user counts
nodes = 8  # simulated SuperNodes that host the users; not in the paper
round-timeout = 14400.0  # a round trains on every user's samples; not in the paper
benchmark = true  # accuracy on held-out users, Table 1: outside epsilon
[models]
downstream = "distilbert/distilgpt2"  # App. C.1: DistilGPT2
[training]
parameters = "full"  # App. C.1: fully fine-tuned
optimizer = "sgd"  # McMahan et al. 2017b, whom App. C.1 follows
learning-rate = 0.01  # App. C.1 prints [0.001, 0.1, 0.1], read here as 0.001, 0.01 and 0.1
momentum = 0.0  # not in the paper
epochs = 1  # App. C.1: various numbers, unstated
batch-size = 2  # App. C.1
clip-norm = 0.1  # App. C.1: of 0.01, 0.1 and 1.0
server-optimizer = "fedavg"  # App. C.1
server-learning-rate = 1.0  # App. C.1: plain averages
public-steps = 0  # App. C.1 names no training on public text before
[evaluation]
sequence-length = 64  # App. C.1
batch-size = 160  # App. B.1
epochs = 80  # App. B.1; of (c), the private text itself
learning-rates = "2e-4"  # App. B.1
"""

FEDAVG = """
# DP-FedAvg on $title at epsilon $epsilon: the on-device baseline of POPri (Hou et al., ICML 2025,
# App. C.1). Run: privsyn run $file
method = "dp-fedavg"
noise-multiplier = $sigma_1  # Table 3, by Opacus' RDP accountant (App. D.1); exactly it costs $exact_1, and $enough would do
[training]
noise = "nodes"  # App. C.1: Gaussian noise and secure aggregation
"""

FTRL = """
# DP-FTRL-TreeRestart on $title at epsilon $epsilon: the on-device baseline of POPri (Hou et al., ICML 2025,
# App. C.2). Run: privsyn run $file
noise-multiplier = $sigma_2  # App. C.2, Table 3: sigma_2, of one tree a round; by Renyi DP (App. D.1), exactly it costs $exact_2
[ftrl]
mechanism = "tree-restart"  # Table 3's sigma_2 keeps its epsilon with a tree an epoch, and not with one tree
restart-every = 1  # an epoch: all clients in every round
completion = false  # not in the paper; sigma_2 fits trees that are not completed
min-separation = 1  # full participation
"""

TURNS = """
# A user answers every $epoch rounds, in turn: an epoch is $epoch rounds, as in Kairouz et al. 2021.
noise-multiplier = $sigma_2  # Table 3: sigma_2, of one tree an epoch; by Renyi DP (App. D.1), exactly it costs $exact_2
[ftrl]
restart-every = $epoch  # an epoch: 10,000 clients, $clients a round
min-separation = $epoch  # clients take turns, each once an epoch
"""

# Table 3's multipliers: sigma_1 of POPri and DP-FedAvg, sigma_2 of DP-FTRL; what they cost exactly,
# and what sigma_1 would do.
COLUMNS = ("epsilon", "sigma_1", "exact_1", "enough", "sigma_2", "exact_2")
FEDERATED_RUNS = {
    "biorxiv-eps1": ("1", "19.3", "0.92", "17.87", "19.5", "0.909"),
    "biorxiv-eps7": ("7", "3.35", "6.5", "3.146", "3.35", "6.5"),
    "congress-eps1": ("1", "19.3", "0.92", "17.87", "19.5", "0.909"),
    "congress-eps7": ("7", "3.35", "6.5", "3.146", "3.35", "6.5"),
    "partial-1000": ("1", "3.4", "0.903", "3.13", "19.5", "0.909"),
    "partial-5000": ("1", "15.5", "0.913", "14.27", "30.8", "0.91"),
    "partial-10000": ("1", "30.6", "0.917", "28.25", "30.8", "0.91"),
}
DATA = {
    "biorxiv": ([HUB, BIORXIV], {"title": "bioRxiv", "needed": "72,543"}),
    "congress": (
        [HUB, CONGRESS],
        {"title": "Congressional Speeches", "needed": "134,149"},
    ),
    "partial": (
        [HUB, BIORXIV, FIGURE_3],
        {"title": "bioRxiv", "needed": "10,543"},
    ),
}
PARTIAL = {  # clients a round, their share, and the rounds of an epoch
    "partial-1000": {"clients": "1,000", "rate": "0.1", "epoch": "10"},
    "partial-5000": {"clients": "5,000", "rate": "0.5", "epoch": "2"},
}

# POPri with a server that holds the data (App. A, Algorithms 2 and 3), beside Aug-PE's results.

CENTRAL = """
min-surviving-weight = 1.0  # one node: it answers or there is no round
nodes = 1
[data]
source = "files"
text-column = "text"
near-duplicates = "keep"  # the paper removes none, and needs every row
sample-words = 384  # words, where section 5 has 512 tokens: an approximation, see docs/methods.md
[popri]
score = "standardised"  # the authors' code; "mean-cosine" is Algorithm 5's cosine
[expand]
max-tokens = 512  # section 5
[evaluation]
batch-size = 32  # App. B.1
epochs = 10  # App. B.1: 625 steps on 2,000 samples
schedule = "linear"  # Aug-PE's scripts: the library's default
warm-up = 0.0  # Aug-PE's scripts: the library's default
gradient-clip = 1.0  # Aug-PE's scripts: the library's default
controls = ""  # Table 1: against the model as it is (or the largest class), and the private text
checkpoint = "development"  # section 5: the checkpoint of the best validation performance
"""

PUBMED = """
# POPri on PubMed at epsilon $epsilon, central (Hou et al., ICML 2025). Run: privsyn run $file
# Algorithm 2: one sample per user, and a server that holds the data and is trusted with it.
# The files are not on a hub: docs/methods.md says how to make them.
epsilon = $epsilon.0  # App. B.1
delta = 2.72e-6  # App. B.1: 1 / (N log N) of N = 75,316 with the decimal logarithm
noise-multiplier = $noise  # App. B.1, by Opacus' RDP accountant (App. D.1); exactly it costs $exact, and $enough would do
rounds = 10  # App. B.1: T
aggregation = "plain"  # App. A, Algorithm 2: the server holds the data
[data]
path = "data/popri/pubmed.jsonl"  # Aug-PE's train, dev and test files
public-path = "data/popri/pubmed-public.jsonl"  # App. B.1: abstracts by Llama-3-8B-Instruct
user-column = ""  # App. D.2.2: one abstract per client
users = 75316  # Table 4
held-out-users = 4453  # Table 4
development-users = 14423  # Table 4: validation
samples-per-user = 1  # Table 4
public-pool = 2000  # App. B.1
public-validation = 512  # not in the paper
[models]
downstream = "prajjwal1/bert-small"  # section 5, App. B.1: BERT-small, as a causal LM
[popri]
examples = 2  # App. B.2
micro-batch-size = 1  # three abstracts and a prompt of two: long sequences
select = "private"  # section 5: the checkpoint of the best validation; Algorithm 2, line 22, has the last
[expand]
samples = 2000  # App. B.1
[evaluation]
sequence-length = 512  # App. B.1
micro-batch-size = 8  # of 512 tokens
learning-rates = "3e-4"  # App. B.1
weight-decay = 0.01  # App. B.1
task = "next-token"
"""

OPENREVIEW = r"""
# POPri on OpenReview at epsilon $epsilon, central and class-conditional (Hou et al., ICML 2025).
# Run: privsyn run $file
# Algorithm 3: a review is written for a class, and only reviews of that class score it.
# The files are not on a hub: docs/methods.md says how to make them.
epsilon = $epsilon.0  # $source
delta = 1.31e-5  # section 5: below 1 / (N log N), N = 8,396, natural logarithm
noise-multiplier = $noise  # not in the paper: the smallest for this epsilon and delta
rounds = 10  # App. B.1 for PubMed, and Aug-PE for both: T
aggregation = "plain"  # App. A, Algorithm 3: the server holds the data
[models]
embedder = "sentence-transformers/sentence-t5-xl"  # section 5
generator = "meta-llama/Llama-2-7b-chat-hf"  # section 5
[popri]
prompts = 9000  # Algorithm 3: K prompts for each of 5 classes; App. B.1: K = 1800
examples = 0  # App. B.2: the model is asked directly for a review
instruction = "[INST] You are reviewing a paper for a machine learning conference, and your recommendation is \"{label}\". Write a long and detailed review: sum up the paper, go through its strengths and weaknesses one by one, and end with your overall judgement. [/INST]"  # own words; the task is Aug-PE's
score-bound = 1.0  # section 3.1; one joint clip over the classes
micro-batch-size = 2
select = "private"  # section 5: the checkpoint of the best validation; Algorithm 3, line 24, has the last
[expand]
samples = 2000  # Table 1
"""

REVIEWS = """
[data]
path = "data/popri/openreview.jsonl"  # Aug-PE's train, val and test files
public-path = ""  # App. B.2: the instruction alone
user-column = ""  # App. D.2.2: one review per client
label-column = "label"  # the recommendation, as docs/methods.md writes it
users = 8396  # Aug-PE: training reviews
held-out-users = 2798  # Aug-PE: test reviews
development-users = 2798  # Aug-PE: validation reviews
samples-per-user = 1  # App. D.2.2
[models]
downstream = "FacebookAI/roberta-base"  # section 5
[popri]
labels = "1: strong reject, 3: reject, 5: marginally below the acceptance threshold, 6: marginally above the acceptance threshold, 8: accept"  # Aug-PE's data
[evaluation]
sequence-length = 512  # section 5, Aug-PE's script
batch-size = 32  # Aug-PE's script
epochs = 10  # Aug-PE's script
micro-batch-size = 8  # of 512 tokens
weight-decay = 0.0  # Aug-PE's script: the library's default
learning-rates = "3e-5"  # Aug-PE's script
task = "classification"  # section 5
"""

# Table 1's bounds: no model of the users' text (epsilon = 0), and one of all of it (infinity).

BOUNDS = """
method = "public-only"
nodes = 8  # simulated SuperNodes that host the users; not in the paper
benchmark = true  # Table 1's bounds are figures of the benchmark: outside epsilon
[models]
embedder = "minilm"  # of the benchmark's distances
[evaluation]
controls = ""  # the result is the public text itself
"""

FEDERATED_BOUNDS = """
# The bounds of $title in Table 1 (Hou et al., ICML 2025, section 5): accuracy of "pretrained" is
# epsilon = 0, of "private" epsilon = infinity; "synthetic" is public text alone, which the paper has not.
# Run: privsyn run $file
[models]
downstream = "distilbert/distilgpt2"  # section 5
[evaluation]
sequence-length = 64  # App. B.1
batch-size = 160  # App. B.1
epochs = 80  # App. B.1
learning-rates = "2e-4"  # App. B.1
start = "public"  # as the other rows
public-epochs = 20  # as the other rows
public-batch-size = 256  # as the other rows
"""

REVIEW_BOUNDS = """
# The bounds of OpenReview in Table 1 (Hou et al., ICML 2025, section 5): accuracy of "majority" is
# epsilon = 0, of "private" epsilon = infinity. There is no public text. Run: privsyn run $file
# The files are not on a hub: docs/methods.md says how to make them.
[data]
source = "files"
text-column = "text"
near-duplicates = "keep"  # the paper removes none, and needs every row
sample-words = 384  # section 5: 512 tokens, about 384 words
public-validation = 0
"""

CENTRAL_RUNS = {  # PubMed's noise is App. B.1's, with what it costs exactly, and what would do
    "pubmed-eps1": ([PUBMED], {"noise": "13.7", "exact": "0.921", "enough": "12.7"}),
    "pubmed-eps4": ([PUBMED], {"noise": "3.87", "exact": "3.712", "enough": "3.624"}),
    "openreview-eps1": ([REVIEWS, OPENREVIEW], {"noise": "11.61", "source": "Table 1"}),
    "openreview-eps4": (
        [REVIEWS, OPENREVIEW],
        {"noise": "3.376", "source": "not in the paper for this data set; Aug-PE's largest budget"},
    ),
}


def rows() -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, layers and numbers of each file."""
    for run, numbers in FEDERATED_RUNS.items():
        data, named = DATA[run.partition("-")[0]]
        own = named | dict(zip(COLUMNS, numbers, strict=True)) | PARTIAL.get(run, {})
        part = [SOME] if run in PARTIAL else [ALL] if run == "partial-10000" else []
        sampling, turns = ([SAMPLED], [TURNS]) if run in PARTIAL else ([], [])
        yield f"popri-{run}", [POPRI, FEDERATED, DISTILGPT2, *part, *sampling, *data], own
        training = [BASELINE, DISTILGPT2, *part, *data]
        yield f"dp-fedavg-popri-{run}", [FEDAVG, *training, *sampling], own
        yield f"dp-ftrl-popri-{run}", [FTRL, TRUSTED, *training, *turns], own
    for run, (layers, noise) in CENTRAL_RUNS.items():
        epsilon = {"epsilon": run.rpartition("eps")[2]}
        yield f"popri-{run}", [POPRI, CENTRAL, *layers], {**noise, **epsilon}
    for name in ("biorxiv", "congress"):
        data, named = DATA[name]
        yield f"public-only-popri-{name}", [BOUNDS, FEDERATED_BOUNDS, DISTILGPT2, *data], named
    yield "public-only-popri-openreview", [BOUNDS, REVIEW_BOUNDS, REVIEWS], {}
