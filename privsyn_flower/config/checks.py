"""What keys of different tables need of each other. Each function raises ValueError."""

from __future__ import annotations

from privsyn_flower.config.common import TRAINING, CommonConfig
from privsyn_flower.config.section import split_list

TRACKERS = ("tensorboard", "mlflow", "wandb")  # each also a library's module, and an extra


def check_run(config: CommonConfig) -> None:
    """All of it, for the tables that the method uses."""
    if config.min_surviving_weight + config.colluding_weight > 1:
        raise ValueError(
            f"min-surviving-weight = {config.min_surviving_weight} plus colluding-weight = "
            f"{config.colluding_weight} exceeds 1: no sum could ever be released; lower one"
        )
    if config.aggregation == "secure" and config.nodes < 3:
        raise ValueError(
            f"nodes = {config.nodes}: secure aggregation needs at least 3; raise nodes, or set "
            "aggregation = 'plain' to trust the server with each node's vector"
        )
    check_sampler(config)
    check_tables(config)
    for name in split_list(config.trackers):
        if name not in TRACKERS:
            raise ValueError(
                f"trackers = {config.trackers!r}: {name!r} is none of {', '.join(TRACKERS)}"
            )
    if config.nodes > config.data.users:
        raise ValueError(
            f"nodes = {config.nodes} exceeds data.users = {config.data.users}: lower nodes"
        )


def check_sampler(config: CommonConfig) -> None:
    """Each sampler has its own key, and the other one at its default."""
    if (config.sampler == "poisson") != (config.sampling_rate < 1):
        raise ValueError(
            f"sampling-rate = {config.sampling_rate} with sampler = {config.sampler!r}: a rate "
            "below 1 belongs to 'poisson' and to nothing else"
        )
    least = 3 if config.aggregation == "secure" else 1
    if config.sampler == "fixed" and not least <= config.cohort_nodes <= config.nodes:
        raise ValueError(
            f"cohort-nodes = {config.cohort_nodes} with sampler = 'fixed' must be from {least} "
            f"to nodes = {config.nodes}"
        )
    if config.sampler != "fixed" and config.cohort_nodes:
        raise ValueError(
            f"cohort-nodes = {config.cohort_nodes} belongs to sampler = 'fixed'; this one is "
            f"{config.sampler!r}"
        )


def check_tables(config: CommonConfig) -> None:
    """What the method's tables and the common ones need; some belong to their methods alone."""
    entries = config.methods.values()
    elsewhere = {entry.own.table for entry in entries if entry.own and entry.own.elsewhere}
    strict = {name for entry in entries for name in entry.tables} - elsewhere
    for name in type(config).model_fields:
        if name not in strict:
            continue
        table = getattr(config, name)
        if not config.uses(name) and table != type(table)():
            owners = " or ".join(repr(entry.name) for entry in entries if name in entry.tables)
            raise ValueError(
                f"keys of {name.replace('_', '-')} belong to method = {owners}, and it is "
                f"{config.method!r}: leave them out"
            )
    config.own.check(config)
    for name, check in SHARED.items():
        if config.uses(name):
            check(config)
    check_data(config)
    check_evaluation(config)


def check_training(config: CommonConfig) -> None:
    """What the run's rounds, and Gaussian noise of a trusted aggregator, cannot go with."""
    own = config.training
    own.check_rounds(config.rounds)
    if own.classifies:
        _check_classifier(config)
    if max(own.evaluated_rounds, default=0) >= config.rounds:
        raise ValueError(
            f"training.evaluate-rounds = {own.evaluate_rounds!r} must be below rounds = "
            f"{config.rounds}: the final model is measured by training.evaluate = true"
        )
    if own.noise != "aggregator":
        return
    if config.sampler != "full":
        raise ValueError(
            f"sampler = {config.sampler!r} with training.noise = 'aggregator', whose noise is "
            "made for users who all take part or take turns (ftrl.min-separation): set 'full'"
        )
    if config.simulation_seeded_noise:
        raise ValueError(
            "simulation-seeded-noise = true is for the nodes' noise; training.noise = "
            "'aggregator' draws its key from the operating system: set it to false"
        )


def _check_classifier(config: CommonConfig) -> None:
    """What a classifier that the nodes train needs: a method that trains it, labels, and a head."""
    told = "training.task = 'classification' with "
    if not config.trains:
        able = [repr(name) for name, entry in config.methods.items() if entry.kind == TRAINING]
        raise ValueError(
            f"{told}method = {config.method!r}, which trains no classifier: set method = "
            f"{' or '.join(able)}, or leave training.task out"
        )
    data = config.data
    if data.source in ("chats", "emails"):
        raise ValueError(f"{told}data.source = {data.source!r}, whose texts have no label")
    if not data.labelled:
        raise ValueError(f"{told}data.label-column = '': name the field in which classes stand")
    if config.models.downstream == "lstm":
        raise ValueError(
            f"{told}models.downstream = 'lstm', which writes words alone: name another"
        )
    if config.proximity.filter:
        raise ValueError(f"{told}proximity.filter = true, which scores next tokens: leave it out")


def check_ftrl(config: CommonConfig) -> None:
    """What correlated noise needs of the other tables."""
    config.ftrl.check_noise(config.training)
    config.ftrl.check_rounds(config.rounds)
    if config.sampler != "full":
        raise ValueError(
            f"sampler = {config.sampler!r} with noise that is correlated over the rounds, which is "
            "made for users who all take part or take turns (ftrl.min-separation): set 'full'"
        )


def check_proximity(config: CommonConfig) -> None:
    """There must be public text to choose from."""
    data = config.data
    if config.proximity.filter and not data.has_minority and not data.public_path:
        raise ValueError(
            "proximity.filter = true chooses from public text, and data.public-path is empty: "
            "name it, or set proximity.filter = false"
        )


def check_sft(config: CommonConfig) -> None:
    """What the fine-tuning needs of the text that follows, and of the generator."""
    own = config.sft
    if not own.epochs:
        return
    config.models.check_shared("sft.batch-size", own.batch_size)
    if config.evolution.labels:
        table = config.evolution.table
        raise ValueError(
            f"sft.epochs = {own.epochs} with {table}.labels: the fine-tuning knows no "
            f"classes; set sft.epochs = 0, or {table}.labels to ''"
        )
    if not config.expand.samples:
        raise ValueError(
            f"sft.epochs = {own.epochs} with expand.samples = 0: the tuned generator would "
            "write nothing; raise expand.samples, or set sft.epochs = 0"
        )
    if config.generation.backend == "openai" or config.generation.chat:
        raise ValueError(
            f"sft.epochs = {own.epochs} with generation.backend = "
            f"{config.generation.backend!r} and generation.chat = {config.generation.chat}: "
            "the adapter is trained on bare prompts and must be loaded: set 'huggingface' or "
            "'vllm', and chat = false"
        )


SHARED = {
    "sft": check_sft,
    "training": check_training,
    "ftrl": check_ftrl,
    "proximity": check_proximity,
}


def check_data(config: CommonConfig) -> None:
    """Users, samples and public text are chosen by private text for benchmarks only."""
    data, keys = config.data, config.data.chosen_by_text
    if data.source in ("chats", "emails") and data.partition != "natural":
        raise ValueError(
            f"data.partition = {data.partition!r} with data.source = {data.source!r}, whose users "
            "are the people who wrote the text: set data.partition = 'natural'"
        )
    if keys and not config.benchmark:
        raise ValueError(
            f"{keys}: this chooses users, samples or public text by reading private text, "
            "which epsilon does not cover: for benchmarks only (benchmark = true); else "
            "leave it at its default (data.near-duplicates = 'own', data.partition = "
            "'natural', data.min-samples-per-user = 1)"
        )
    if data.canaries and not config.benchmark:
        raise ValueError(
            f"data.canaries = {data.canaries}: made-up users take the places of real ones, for "
            "audits in a simulation only: set benchmark = true, or data.canaries = 0"
        )
    if data.canaries and config.classes:
        raise ValueError(
            f"data.canaries = {data.canaries} with {config.labels[0]}: a canary is of no class, "
            "and would put nothing into any sum; leave the classes out"
        )
    if data.canaries > data.users:
        raise ValueError(
            f"data.canaries = {data.canaries} exceeds data.users = {data.users}, whose places they "
            "take: lower it"
        )


def check_evaluation(config: CommonConfig) -> None:
    """What a comparison needs of the method."""
    _check_start(config)
    _check_kind(config)
    _check_checkpoint(config)
    if config.evaluation.rival:
        _check_rival(config)
    if config.trains and config.benchmark and config.evaluation.task != config.training.task:
        raise ValueError(
            f"evaluation.task = {config.evaluation.task!r} with training.task = "
            f"{config.training.task!r}: a trained model is measured by what it learned, so set "
            "both alike"
        )
    if config.evaluation.task == "classification":
        (key, given), classes = config.labels, config.classes
        if not classes:
            able = ", ".join(repr(e.name) for e in config.methods.values() if e.classes)
            named = f" and {key} = {given!r}" if key else ""
            raise ValueError(
                f"evaluation.task = 'classification' with method = {config.method!r}{named}: it "
                f"needs labels of a method among {able}, so that synthetic text has classes"
            )
        if len(classes) < 2:
            raise ValueError(
                f"evaluation.task = 'classification' with {key} = "
                f"{given!r}: at least 2 classes are needed"
            )


def _check_rival(config: CommonConfig) -> None:
    """What a rival can be simulated beside."""
    own = config.evaluation
    if config.trains:
        raise ValueError(
            f"evaluation.rival = {own.rival!r} is simulated for synthetic text, "
            f"not for method = {config.method!r}: set it to ''"
        )
    if config.entry is config.methods.get(own.rival):
        raise ValueError(f"evaluation.rival = {own.rival!r} is the method itself: set it to ''")
    if own.task == "classification":
        raise ValueError(
            f"evaluation.rival = {own.rival!r} writes text without classes, of no use to "
            "evaluation.task = 'classification': set rival = ''"
        )
    rival = config.evolution
    if rival.labels:  # public text has the classes of the method's table alone
        raise ValueError(
            f"evaluation.rival = {own.rival!r} with {rival.table}.labels = {rival.labels!r}: a "
            f"rival knows no classes; set {rival.table}.labels = '', or rival = ''"
        )


def _check_start(config: CommonConfig) -> None:
    """A public stage has one length, in one place."""
    own = config.evaluation
    lengths = (own.public_steps > 0) + (own.public_epochs > 0)
    if own.start == "converged":
        _check_converged(config)
    elif own.start == "base" or config.trains:
        if lengths or own.public_batch_size:
            raise ValueError(
                f"evaluation.public-steps = {own.public_steps}, public-epochs = "
                f"{own.public_epochs} and public-batch-size = {own.public_batch_size} belong "
                "to evaluation.start = 'public' of a method that writes text (a training has "
                "training.public-steps): set them to 0"
            )
        if own.start == "public" and not config.training.public_steps:
            raise ValueError(
                "evaluation.start = 'public' with training.public-steps = 0: there is no such "
                "model; raise it, or set evaluation.start = 'base'"
            )
    elif lengths != 1:
        raise ValueError(
            f"evaluation.start = 'public' with public-steps = {own.public_steps} and "
            f"public-epochs = {own.public_epochs}: set exactly one of them above 0"
        )


def _check_converged(config: CommonConfig) -> None:
    """The stage ends by public text of its own, in bounded time, and is the only one."""
    own, also = config.evaluation, config.training.public_steps
    if own.public_epochs or not own.public_steps:
        raise ValueError(
            f"evaluation.start = 'converged' with public-steps = {own.public_steps} and "
            f"public-epochs = {own.public_epochs}: set public-steps to the most steps that it may "
            "take, and public-epochs = 0"
        )
    if not config.data.public_validation:
        raise ValueError(
            "evaluation.start = 'converged' with data.public-validation = 0: there is no text "
            "whose loss would end it; raise it"
        )
    if also:
        raise ValueError(
            f"evaluation.start = 'converged' with training.public-steps = {also}: the private "
            "training starts from that model already; set training.public-steps = 0"
        )


def _check_kind(config: CommonConfig) -> None:
    """Keys that a task or a method has no use for."""
    own = config.evaluation
    classes = own.task == "classification"
    nodes = config.trains or config.own.evaluates_on_nodes(config)
    without = "without task = 'classification'"
    on_server = f"on the server, {without} and without training or evaluation on the nodes"
    unfiltered = f"{without} and without proximity.filter = true"
    ends = own.special_tokens == "bos-eos"
    filters = config.uses("proximity") and config.proximity.filter
    for key, used, barred, where in (
        (f"start = {own.start!r}", own.start != "base", classes, without),
        ("special-tokens = 'bos-eos'", ends, classes or filters, unfiltered),
        (f"adapter-rank = {own.adapter_rank}", own.adapter_rank > 0, classes or nodes, on_server),
    ):
        if used and barred:
            raise ValueError(f"evaluation.{key} is for next tokens {where}: leave it out")
    if own.adapter_rank and own.start != "base":
        raise ValueError(
            f"evaluation.adapter-rank = {own.adapter_rank} with start = {own.start!r}: adapters "
            "are trained over models.downstream as it is; set start = 'base'"
        )


def _check_checkpoint(config: CommonConfig) -> None:
    """A choice among epochs needs epochs, and text to choose by."""
    own = config.evaluation
    if own.checkpoint == "last":
        return
    if not own.epochs:
        raise ValueError(
            f"evaluation.checkpoint = {own.checkpoint!r} with epochs = 0: set epochs, or 'last'"
        )
    public = own.checkpoint == "public"
    if public and own.task == "classification":
        raise ValueError(
            "evaluation.checkpoint = 'public' with task = 'classification': public validation "
            "text has no classes; set 'last' or 'development'"
        )
    found = config.data.public_validation if public else config.data.development_users
    if not found:
        key = "data.public-validation" if public else "data.development-users"
        raise ValueError(
            f"evaluation.checkpoint = {own.checkpoint!r} with {key} = 0: raise it, or set 'last'"
        )
