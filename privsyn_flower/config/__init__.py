"""The run configuration: typed, bounded and explained keys; TOML files and `--set`.

`schema` has the top-level keys and a table of methods; each table of keys has a file, with what it
needs of the others; `toml` reads and writes files. A node's policy needs `section` alone: the
others are imported when first asked for.
"""

from typing import TYPE_CHECKING

from privsyn_flower.config.section import (
    ConfigError,
    Scalar,
    Section,
    explain,
    flatten,
    split_list,
)
from privsyn_flower.on_demand import on_demand

if TYPE_CHECKING:
    from privsyn_flower.config.ctcl import CtclConfig
    from privsyn_flower.config.data import DataConfig
    from privsyn_flower.config.dp_prompt import DPPromptConfig
    from privsyn_flower.config.evaluation import EvaluationConfig
    from privsyn_flower.config.models import ExpandConfig, GenerationConfig, ModelsConfig
    from privsyn_flower.config.pe import PeConfig, SftConfig
    from privsyn_flower.config.popri import PopriConfig
    from privsyn_flower.config.pretext import PreTextConfig
    from privsyn_flower.config.proximity import ProximityConfig
    from privsyn_flower.config.schema import RunConfig, cache_folder, flat_defaults
    from privsyn_flower.config.toml import (
        absolute_paths,
        changed,
        check_paths,
        differences,
        load_config,
        parse_override,
        relocated,
        to_toml,
        toml_value,
        without_benchmark,
    )
    from privsyn_flower.config.training import AveragingConfig, FtrlConfig, TrainingConfig
else:
    __getattr__ = on_demand(
        __name__,
        AveragingConfig="training",
        CtclConfig="ctcl",
        DataConfig="data",
        DPPromptConfig="dp_prompt",
        EvaluationConfig="evaluation",
        ExpandConfig="models",
        FtrlConfig="training",
        GenerationConfig="models",
        ModelsConfig="models",
        PeConfig="pe",
        PopriConfig="popri",
        PreTextConfig="pretext",
        ProximityConfig="proximity",
        RunConfig="schema",
        SftConfig="pe",
        TrainingConfig="training",
        absolute_paths="toml",
        check_paths="toml",
        cache_folder="schema",
        changed="toml",
        flat_defaults="schema",
        differences="toml",
        load_config="toml",
        parse_override="toml",
        relocated="toml",
        to_toml="toml",
        toml_value="toml",
        without_benchmark="toml",
    )

__all__ = [
    "AveragingConfig",
    "ConfigError",
    "CtclConfig",
    "DPPromptConfig",
    "DataConfig",
    "EvaluationConfig",
    "ExpandConfig",
    "FtrlConfig",
    "GenerationConfig",
    "ModelsConfig",
    "PeConfig",
    "PopriConfig",
    "PreTextConfig",
    "ProximityConfig",
    "RunConfig",
    "Scalar",
    "Section",
    "SftConfig",
    "TrainingConfig",
    "absolute_paths",
    "cache_folder",
    "changed",
    "check_paths",
    "differences",
    "explain",
    "flat_defaults",
    "flatten",
    "load_config",
    "parse_override",
    "relocated",
    "split_list",
    "to_toml",
    "toml_value",
    "without_benchmark",
]
