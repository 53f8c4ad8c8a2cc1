"""Private evolution as POPri's baseline (Hou et al., ICML 2025): Table 1, Figure 3, App. C.3, D.2;
Aug-PE (Xie et al., ICML 2024) on PubMed and OpenReview; and DP training of the downstream model on
PubMed."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.papers.ctcl import REVIEW_CLASSES
from scripts.papers.popri import (
    ALL,
    CENTRAL,
    CENTRAL_RUNS,
    COLUMNS,
    DATA,
    DISTILGPT2,
    FEDERATED,
    FEDERATED_RUNS,
    PARTIAL,
    PUBMED,
    SAMPLED,
    SOME,
)

PE = """
# PE on $title at epsilon $epsilon, POPri's baseline (Hou et al., ICML 2025, App. C.3). App. D.2.1: on this data
# PE is PrE-Text. Run: privsyn run $file
method = "pretext"
"""

PE_SFT = """
# PE + SFT on $title at epsilon $epsilon, POPri's baseline (Hou et al., ICML 2025, section 3, Table 1): the
# generator is fine-tuned on PE's texts, then writes. Run: privsyn run $file
# Of the fine-tuning the paper says nothing; where it can, this one follows POPri's (App. B.1).
method = "pretext"
[sft]
epochs = 2  # App. B.1
learning-rate = 1e-4  # not in the paper
batch-size = 24  # App. B.1
micro-batch-size = 4  # POPri's
lora-rank = 4  # section 3.1
lora-alpha = 8.0  # section 3.1
"""

PRETEXT = """
# What App. C.3 does not state is as in PrE-Text (Hou et al., ICML 2024, App. D), which it follows.
spare-rounds = 0  # the paper knows no failed rounds
round-timeout = 7200.0  # the first round embeds every private sample
benchmark = true  # accuracy on held-out users, Table 1: outside epsilon
[data]
samples-per-user = 8  # PrE-Text: limits the sensitivity to 8
[models]
embedder = "minilm"  # App. C.3
infiller = "FacebookAI/roberta-large"  # PrE-Text
generator = "meta-llama/Meta-Llama-3-8B"  # not in the paper: POPri's, so that the rows compare
[pretext]
population = 1024  # App. C.3: N_syn
lookahead = 4  # the code of PrE-Text: K
clip = "worst-case"  # App. D.1: the noise is sigma times the most samples of a client
vote-bound = 8.0  # PrE-Text
threshold = 0.1626  # App. C.3: H, without a unit; in votes, as PrE-Text's, it is next to nothing
threshold-unit = "votes"
variation = "mask-fill"
mask-fraction = 0.3  # PrE-Text: MASK%
mask-steps = 2  # PrE-Text: W_steps
mask-passes = 0  # the code of PrE-Text: the masks of a step are filled one after another
temperature = 1.0  # PrE-Text
top-p = 1.0  # PrE-Text
max-tokens = 64  # the code of PrE-Text
[generation]
backend = "vllm"  # PrE-Text uses the library
[expand]
seeds-per-prompt = 3  # PrE-Text, section 3 (6)
include-seeds = false  # as its PrE-Text
temperature = 1.0  # PrE-Text
top-p = 1.0  # PrE-Text
"""

AUG_PE = """
# Aug-PE on $title at epsilon $epsilon, central: POPri's PE there (Hou et al., ICML 2025, App. D.2.2, Table 1;
# Xie et al., ICML 2024). Run: privsyn run $file
# One $document a user, and a server that holds the data and is trusted with it. Table 1's other generator:
# --set models.generator=facebook/opt-6.7b --set generation.chat=false
# The files are not on a hub: docs/methods.md says how to make them.
method = "pe"
delta = $delta  # Aug-PE: 1 / (N ln N), N = $records
noise-multiplier = $theirs
spare-rounds = 0  # the paper knows no failed rounds
round-timeout = 7200.0
benchmark = true  # accuracy on held-out ${document}s, Table 1: outside epsilon
[models]
generator = "meta-llama/Llama-2-7b-chat-hf"  # Table 1
[pe]
population = 2000  # Table 1, Aug-PE's script: texts that survive
copies = 7  # Aug-PE's script: L, 14,000 candidates
selection = "rank"  # Aug-PE's script
lookahead = 1  # Aug-PE's script: none, a candidate's own embedding
clip = "worst-case"  # one $document a user: a vote is 1
vote-bound = 1.0
neighbors = 1  # Aug-PE's code
metric = "l2"  # Aug-PE's code
threshold = 0.0  # Aug-PE's code
threshold-unit = "votes"
variation = "rewrite"  # Aug-PE: said again in a drawn style
initial = "model"  # Aug-PE, Algorithm 1: RANDOM_API
styles = "in a matter-of-fact way, formally, in fewer words, more vividly, as a story is told, with sentences of many shapes, with other examples"  # own words
[generation]
backend = "vllm"
chat = true  # Llama-2-7b-chat follows instructions in its template
[expand]
samples = 0  # Aug-PE's script: the survivors themselves
top-p = 0.9  # Aug-PE's code
top-k = 50  # Aug-PE's code
max-tokens = 448  # Aug-PE's script
"""

AUG_PE_PUBMED = """
[data]
public-path = "data/popri/pubmed-public.jsonl"  # for comparison alone: the first texts are the generator's
[models]
embedder = "sentence-transformers/sentence-t5-base"  # Aug-PE's script
[pe]
prompt = "Write the abstract of a paper in medical research, as it would stand in a journal. Give the abstract alone."  # own words; the task is Aug-PE's
rewrite = "Here is the abstract of a paper in medical research. Write it anew {style}, as an abstract of the same kind, and give that alone: {text}"  # own words; the task is Aug-PE's
[expand]
temperature = 1.0  # Aug-PE's script
"""

AUG_PE_OPENREVIEW = rf"""
# A review votes for the nearest of its own recommendation. Each of the five has 400 survivors; Aug-PE's
# classes are pairs of area and recommendation, in the proportions of the private reviews, without noise.
[data]
public-path = ""  # the first texts are the generator's
[models]
embedder = "sentence-transformers/stsb-roberta-base-v2"  # Aug-PE's script
[pe]
labels = "{REVIEW_CLASSES}"  # Aug-PE's data
prompt = "You are reviewing a paper for a machine learning conference, and your recommendation is \"{{label}}\". Write a long and detailed review: sum up the paper, go through its strengths and weaknesses one by one, and end with your overall judgement. Give the review alone."  # own words; the task is Aug-PE's
rewrite = "Here is a review of a paper for a machine learning conference, whose recommendation is \"{{label}}\". Write it anew {{style}}, as a review with the same recommendation, and give that alone: {{text}}"  # own words; the task is Aug-PE's
[expand]
temperature = 1.2  # Aug-PE's script
"""

DP_TRAINING = """
# DP training of the downstream model on PubMed at epsilon $epsilon: DP-FedAvg with one abstract a user and one
# step each, so that a record is protected as in DP-SGD. No row of POPri's Table 1: on its data, for comparison.
# Run: privsyn run $file
# One abstract a user, and a server that holds the data and is trusted with it; the numbers without a source are ours.
method = "dp-fedavg"
noise-multiplier = 0.0  # the smallest that keeps epsilon
rounds = 190  # ten passes over the data, as many as App. B.1's epochs
sampler = "poisson"
sampling-rate = 0.05263157894736842  # 3,964 of 75,316 users: a nineteenth
spare-rounds = 0
round-timeout = 14400.0
benchmark = true  # accuracy on held-out abstracts: outside epsilon
[training]
parameters = "full"
optimizer = "sgd"
learning-rate = 1.0  # a user's update is the gradient of its abstract
momentum = 0.0
epochs = 1
batch-size = 1
clip-norm = 1.0
server-optimizer = "fedadam"
server-learning-rate = 3e-4  # App. B.1, of the fine-tuning without privacy
server-momentum = 0.9
beta-2 = 0.999
tau = 1e-8
noise = "nodes"
public-steps = 0
"""

BASELINES = {"pe": PE, "pe-sft": PE_SFT}
AUG_PE_DATA = {  # what Aug-PE has of its own there
    "pubmed": (AUG_PE_PUBMED, {"title": "PubMed", "document": "abstract", "records": "75,316"}),
    "openreview": (
        AUG_PE_OPENREVIEW,
        {"title": "OpenReview", "document": "review", "records": "8,396"},
    ),
}
AUG_PE_NOISE = {  # POPri's App. D.1 has "their reported epsilon directly": Aug-PE's scripts' noise
    "pubmed-eps1": {"theirs": "13.26  # Aug-PE's script", "delta": "1.182e-6"},
    "pubmed-eps4": {"theirs": "3.75  # Aug-PE's script", "delta": "1.182e-6"},
    "openreview-eps1": {
        "theirs": "11.61  # Aug-PE's script has 11.60, which costs 1.0001 here",
        "delta": "1.318e-5",
    },
    "openreview-eps4": {"theirs": "3.38  # Aug-PE's script", "delta": "1.318e-5"},
}


def numbers_of(layer: str, *others: str) -> str:
    """A layer of POPri without its header, without what is POPri's alone, and other tables."""
    kept, table = [], ""
    for line in layer.strip().splitlines():
        table = line if line.startswith("[") else table
        if not line.startswith("#") and table not in ("[popri]", *others):
            kept.append(line)
    return "\n".join(kept)


def rows() -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, layers and numbers of each file."""
    for run, numbers in FEDERATED_RUNS.items():
        data, named = DATA[run.partition("-")[0]]
        own = named | dict(zip(COLUMNS, numbers, strict=True)) | PARTIAL.get(run, {})
        part = [SOME] if run in PARTIAL else [ALL] if run == "partial-10000" else []
        sampling = [SAMPLED] if run in PARTIAL else []
        for name, layer in BASELINES.items():
            if name == "pe" or run not in ("partial-10000", *PARTIAL):  # Figure 3 has four methods
                layers = [
                    layer,
                    numbers_of(FEDERATED),
                    DISTILGPT2,
                    *part,
                    *sampling,
                    *data,
                    PRETEXT,
                ]
                yield f"{name}-popri-{run}", layers, own
    for run, (layers, noise) in CENTRAL_RUNS.items():
        layer, named = AUG_PE_DATA[run.partition("-")[0]]
        own = {**noise, **named, **AUG_PE_NOISE[run], "epsilon": run.rpartition("eps")[2]}
        shared = [numbers_of(each) for each in (CENTRAL, *layers)]
        yield f"aug-pe-popri-{run}", [*shared, AUG_PE, layer], own
        if layers == [PUBMED]:  # a training on the users' text writes none
            data = [numbers_of(each, "[expand]") for each in shared]
            yield f"dp-fedavg-popri-{run}", [*data, DP_TRAINING], own
