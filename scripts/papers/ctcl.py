"""CTCL and the DP training of its downstream models (Tan et al. 2025, arXiv 2503.12347):
section 4, Tables 3 to 5 and 8, App. C (data) and E (noise)."""

from __future__ import annotations

import math
from collections.abc import Iterator

STEPS, BATCH = 2000, 4096  # section 4.1

# What both have: one record a user, one node, and the paper's DP-Adam.
CENTRAL = """
# Central, as the paper's: one node holds all records and is trusted with them; the unit is a record.
# It really samples. The paper's batches are fixed passes over shuffled records, accounted
# as if they had been drawn: docs/privacy.md says what that costs.
# The files are not on a hub: {"text": ...} on each line, with a "label" where there are classes.
epsilon = $epsilon.0  # section 4
delta = $delta  # App. E: 1 / (N ln N), N = $records
rounds = 2000  # section 4.1: steps
spare-rounds = 0  # the paper knows no failed rounds
aggregation = "plain"  # the server is in the node's house
sampler = "poisson"
sampling-rate = $rate  # section 4.1: 4,096 of $records on average
min-surviving-weight = 1.0  # one node: it answers or there is no round
nodes = 1
round-timeout = 14400.0
benchmark = true  # figures on held-out records: outside epsilon
[data]
source = "files"
text-column = "text"
user-column = ""  # App. C: a record is the unit
samples-per-user = 1
near-duplicates = "keep"  # the paper removes none, and needs every row
sample-words = 384  # words, where section 4.1 has 512 tokens: an approximation
public-validation = 512  # not in the paper
[training]
optimizer = "sgd"
learning-rate = 1.0  # one plain step: a record's update is its gradient
momentum = 0.0
epochs = 1
batch-size = 1
clip-norm = 1.0  # section 4.1
server-optimizer = "adamw"  # section 4.1: DP-Adam
server-learning-rate = 4e-4  # the released script, of section 4.1's grid {1, 4} x {1e-3, 1e-4, 1e-5}
server-schedule = "linear"  # section 4.1
server-warm-up-rounds = 100  # section 4.1
server-weight-decay = 0.1  # section 4.1
noise = "nodes"
[evaluation]
sequence-length = 512  # section 4.1
steps = 6000  # section 4.1
batch-size = 64  # section 4.1
batch-of = "texts"  # the released script: 64 texts a step, so 6,000 steps read the 400,000 once
micro-batch-size = 8  # of 512 tokens
schedule = "linear"  # section 4.1
warm-up = 0.0  # the released code
weight-decay = 0.01  # the released code
"""

CTCL = """
# CTCL on $title at epsilon $epsilon (Tan et al. 2025, arXiv 2503.12347). Run: privsyn run $file
# The paper's generator is an encoder-decoder (BART-base, 140M), pretrained on 430 million described
# documents. GPT-2 stands here, with no pretraining on conditions: BART is trained, too, but slower;
# the folder of another one, or of one that was pretrained on pairs: --set models.conditional=FOLDER
# The baselines of Tables 3 to 5 and 8: configs/grids/ctcl.toml.
method = "ctcl"
noise-multiplier = 0.0  # the smallest that keeps epsilon; App. E: $ours
[data]
public-path = "hub:wikimedia/wikipedia@20231101.en#train:100000"  # section 3.2: Wikipedia of November 2023, all 6 million pages
public-text-column = "text"
public-pool = 99000  # not in the paper: of those pages
[models]
embedder = "minilm"  # section 3.2: all-MiniLM-L6-v2
conditional = "openai-community/gpt2"  # the paper: its own, of BART-base
[ctcl]
topics = "train"
topic-count = 1300  # section 3.2: so many were found
clustering = "k-means"  # section 3.2: HDBSCAN, which finds fewer in fewer pages
topic-words = 10  # section 3.2
histogram-multiplier = 10.0  # App. E
topic-threshold = 0.0  # section 3.4: none
max-source = 128  # the released script
repetition-penalty = 1.5  # the released script
filter = true  # the released script
[training]
parameters = "lora"  # not the paper's, which trains all: a node rounds each record's whole update
lora-rank = 8
[expand]
samples = 400000  # section 4.1
temperature = 1.0  # the released script
top-p = 0.95  # section 4.1
max-tokens = 512  # section 4.1
"""

DOWNSTREAM = """
# DP training of the downstream model on $title at epsilon $epsilon, without synthetic text: "Downstream
# DPFT" of CTCL's tables (Tan et al. 2025, arXiv 2503.12347, section 4).
# Run: privsyn run $file
method = "dp-fedavg"
noise-multiplier = 0.0  # the smallest that keeps epsilon; App. E, without a histogram: $plain
[training]
parameters = "full"
public-steps = 0  # the paper starts from the pretrained weights
[evaluation]
learning-rates = "3e-4"  # section 4.1, of the fine-tuning without privacy
[data]
public-path = "hub:wikimedia/wikipedia@20231101.en#train:10000"  # for comparison alone
public-text-column = "text"
public-pool = 9000  # not in the paper
"""

WORDS = """
[models]
downstream = "prajjwal1/bert-small"  # section 4.1, as a causal LM; the other one is bert-mini
[evaluation]
task = "next-token"
learning-rates = "3e-4"  # section 4.1
"""

CLASSES = """
[data]
label-column = "label"  # $label
[models]
downstream = "FacebookAI/roberta-base"  # section 4.1
[evaluation]
task = "classification"
learning-rates = "3e-5"  # section 4.1
"""

CLASS_LIST = """
[ctcl]
labels = "$classes"  # not in the paper: how a class enters the generation is not said
"""

CLASSIFIER = """
# The classifier has a new head, which travels with all of its weights; no public text is read.
[data]
public-path = ""
public-validation = 0
[training]
task = "classification"
labels = "$classes"
[evaluation]
controls = "noise"  # public text has no classes
"""

FILES = """
[data]
path = "data/$folder/$name.jsonl"  # $source
users = $users  # App. C
held-out-users = $test  # App. C
development-users = $valid  # App. C: validation
[ctcl]
document-type = "$kind"  # $from
"""

REVIEW_CLASSES = "1: strong reject, 3: reject, 5: marginally below the acceptance threshold, 6: marginally above the acceptance threshold, 8: accept"

DATA = {  # App. C: training, validation and test records
    "pubmed": {
        "title": "PubMed", "users": "75316", "valid": "14423", "test": "4453",
        "folder": "popri", "source": "Aug-PE's train, dev and test files: docs/methods.md",
        "kind": "medical paper abstract", "from": "the released script",
    },
    "arena": {
        "title": "Chatbot Arena instructions", "users": "180000", "valid": "5000", "test": "3819",
        "folder": "ctcl", "source": "Zheng et al. 2023: the users' prompts; the split is unpublished",
        "kind": "instruction", "from": "not in the paper",
    },
    "msc": {
        "title": "Multi-Session Chat", "users": "17940", "valid": "3000", "test": "2505",
        "folder": "ctcl", "source": "Xu et al. 2021; how dialogues become records is unpublished",
        "kind": "dialogue", "from": "not in the paper",
    },
    "yelp": {
        "title": "Yelp", "users": "1939290", "valid": "5000", "test": "5000",
        "folder": "ctcl", "source": "Yue et al. 2023, as in Aug-PE",
        "kind": "review", "from": "not in the paper",
        "label": "the stars", "classes": "1 star, 2 stars, 3 stars, 4 stars, 5 stars",
    },
    "openreview": {
        "title": "OpenReview", "users": "8396", "valid": "2798", "test": "2798",
        "folder": "popri", "source": "Aug-PE's train, val and test files: docs/methods.md",
        "kind": "review of a paper", "from": "not in the paper",
        "label": "the recommendation, as docs/methods.md writes it", "classes": REVIEW_CLASSES,
    },
}  # fmt: skip
NOISE = {  # App. E, epsilon 4, 2, 1: beside the histogram, and without one
    "pubmed": (("3.03", "5.63", "11.33"), ("3.01", "5.49", "10.3")),
    "arena": (("1.48", "2.57", "5.08"), ("1.47", "2.5", "4.58")),
    "msc": (("11.45", "21.47", "42.7"), ("11.38", "21.01", "39.41")),
    "yelp": ((".63", ".77", ".94"), (".63", ".77", ".91")),
    "openreview": (("23.44", "43.72", "86.05"), ("23.3", "42.87", "80.05")),
}


def rows() -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, layers and numbers of each file."""
    for name, facts in DATA.items():
        records = int(facts["users"])
        delta = 1 / (records * math.log(records))
        known = {"label": "", "classes": "", **facts, "name": name, "records": f"{records:,}"}
        known |= {"rate": repr(BATCH / records), "delta": f"{_down(delta)}"}
        classes = "classes" in facts
        task, lists, dpft = (CLASSES, [CLASS_LIST], [CLASSIFIER]) if classes else (WORDS, [], [])
        for epsilon, ours, plain in zip("421", *NOISE[name], strict=True):
            own = {**known, "epsilon": epsilon, "ours": ours, "plain": plain}
            yield f"ctcl-{name}-eps{epsilon}", [CTCL, CENTRAL, FILES, task, *lists], own
            layers = [DOWNSTREAM, CENTRAL, FILES.partition("[ctcl]")[0], task, *dpft]
            yield f"dp-fedavg-ctcl-{name}-eps{epsilon}", layers, own


def _down(value: float) -> str:
    """Four digits, never more than the value."""
    exponent = math.floor(math.log10(value))
    return f"{math.floor(value * 10 ** (3 - exponent)) / 1000}e{exponent}"
