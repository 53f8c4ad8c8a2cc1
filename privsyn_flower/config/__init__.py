"""The run configuration: typed, bounded and explained keys; TOML files and `--set`.

`schema` has the keys of every method and `sections` the tables below them; `toml` reads and
writes files.
"""

from privsyn_flower.config.schema import (
    ConfigError,
    RunConfig,
    Scalar,
    cache_folder,
    explain,
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
    Section,
    TrainingConfig,
)
from privsyn_flower.config.toml import load_config, parse_override, relocated, to_toml, toml_value

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
