"""The run configuration: typed, bounded and explained keys; TOML files and `--set`.

`schema` has the keys of every method and `sections` the tables below them; `toml` reads and
writes files. A node's policy needs `base` alone: the others are imported when first asked for.
"""

from typing import TYPE_CHECKING

from privsyn_flower.config.base import ConfigError, Section, explain
from privsyn_flower.on_demand import on_demand

if TYPE_CHECKING:
    from privsyn_flower.config.schema import (
        RunConfig,
        Scalar,
        cache_folder,
        flat_defaults,
        flatten,
        ledger_folder,
        split_list,
    )
    from privsyn_flower.config.sections import (
        DataConfig,
        EvaluationConfig,
        ExpandConfig,
        FtrlConfig,
        GenerationConfig,
        ModelsConfig,
        PopriConfig,
        PreTextConfig,
        TrainingConfig,
    )
    from privsyn_flower.config.toml import (
        load_config,
        parse_override,
        relocated,
        to_toml,
        toml_value,
    )
else:
    __getattr__ = on_demand(
        __name__,
        DataConfig="sections",
        EvaluationConfig="sections",
        ExpandConfig="sections",
        FtrlConfig="sections",
        GenerationConfig="sections",
        ModelsConfig="sections",
        PopriConfig="sections",
        PreTextConfig="sections",
        RunConfig="schema",
        Scalar="schema",
        TrainingConfig="sections",
        cache_folder="schema",
        flat_defaults="schema",
        flatten="schema",
        ledger_folder="schema",
        load_config="toml",
        parse_override="toml",
        relocated="toml",
        split_list="schema",
        to_toml="toml",
        toml_value="toml",
    )

__all__ = [
    "ConfigError",
    "DataConfig",
    "EvaluationConfig",
    "ExpandConfig",
    "FtrlConfig",
    "GenerationConfig",
    "ModelsConfig",
    "PopriConfig",
    "PreTextConfig",
    "RunConfig",
    "Scalar",
    "Section",
    "TrainingConfig",
    "cache_folder",
    "explain",
    "flat_defaults",
    "flatten",
    "ledger_folder",
    "load_config",
    "parse_override",
    "relocated",
    "split_list",
    "to_toml",
    "toml_value",
]
