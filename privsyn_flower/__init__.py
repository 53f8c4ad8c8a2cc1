"""privsyn-flower: learn from private, distributed text by noisy sums of bounded answers.

The names below are the public API; docs/api.md has each with one line. They are imported when
first used, so that `import privsyn_flower` loads neither torch nor Flower. Type checkers and
editors read `__init__.pyi`; tests/test_root.py holds both together.
"""

import os
from typing import Any

from privsyn_flower.common.on_demand import on_demand
from privsyn_flower.common.telemetry import NO_TELEMETRY

os.environ.update(NO_TELEMETRY)  # before any library that would report

_HOMES = {  # package -> its names
    "strategies": "CTCL Callback DPFTRL DPFedAvg NothingLearned POPri PldAccountant "
    "PrEText PrivateEvaluation PrivateEvolution SynthesisStrategy",
    "client_apps": "private_evaluation private_training",
    "protocol": "Query",
    "summation": "secure_sum secure_vector",
    "privacy": "PrivacyStatement Sampler account calibrate",
    "config": "AveragingConfig CtclConfig FtrlConfig PeConfig PopriConfig PreTextConfig "
    "TrainingConfig",
    "text": "HuggingFaceGenerator MaskFill OpenAIGenerator PreferenceTrainer Retrieval "
    "load_embedder load_topics make_topics shipped_model",
}
_imported = on_demand(__name__, _HOMES)

__all__ = ["__version__", *sorted(name for names in _HOMES.values() for name in names.split())]


def __getattr__(name: str) -> Any:
    return _version() if name == "__version__" else _imported(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("privsyn-flower")
    except PackageNotFoundError:  # run from a source folder that is not installed (a Flower bundle)
        return "0.1.0"
