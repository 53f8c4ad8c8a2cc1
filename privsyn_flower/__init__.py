"""privsyn-flower: learn from private, distributed text by noisy sums of bounded answers.

The names below are the public API; docs/api.md has each with one line. They are imported when
first used, so that `import privsyn_flower` loads neither torch nor Flower. Type checkers and
editors read `__init__.pyi`; tests/test_root.py holds both together.

None of our modules is imported here: Flower's simulation imports a ServerApp in one thread and its
ClientApp in another, and each would wait for a module that the other one is importing.
"""

import os
from importlib import import_module
from typing import Any

# What libraries would send or write by themselves, and the variables that stop it: set before our
# modules import any of the libraries, in every process of ours and in an app that uses this
# package, whatever they were. What was imported earlier has read its own by then (Flower's
# commands, when they are started as they are): set them where such a process starts, too
# (docs/flwr-run.md). SECURITY.md has a row for each library.
NO_TELEMETRY = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # ONNX Runtime counts its runs, one for each private text, and sends texts of errors.
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",  # TRL's trainers send through it
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",  # datasets, for local files too
    "DISABLE_SAFETENSORS_CONVERSION": "1",  # transformers, of a hub model that has none
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GRADIO_ANALYTICS_ENABLED": "False",  # what TRL's Trackio draws with
    "DO_NOT_TRACK": "1",
}
os.environ.update(NO_TELEMETRY)

_HOMES = {  # package -> its names
    "strategies": "AllNodesFailed CTCL Callback DPFTRL DPFedAvg NoRelease NothingLearned POPri "
    "PldAccountant PrEText PrivateEvaluation PrivateEvolution SynthesisStrategy TooFewNodes",
    "client_apps": "private_evaluation private_training",
    "protocol": "Query",
    "summation": "secure_sum secure_vector",
    "privacy": "PrivacyStatement Sampler account calibrate",
    "config": "AveragingConfig CtclConfig FtrlConfig PeConfig PopriConfig PreTextConfig "
    "TrainingConfig",
    "text": "HuggingFaceGenerator MaskFill OpenAIGenerator PreferenceTrainer Retrieval "
    "load_embedder load_topics make_topics shipped_model",
}
_MODULES = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # from now on without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("privsyn-flower")
    except PackageNotFoundError:  # run from a source folder that is not installed (a Flower bundle)
        return "0.1.0"
