"""The run configuration: typed, bounded and explained keys; TOML files and `--set`.

`common` has the top-level keys, `schema` the table of methods; each table of keys has a file, with
what it needs of the others; `toml` reads and writes files. A node's policy needs `section` alone:
the others are imported when first asked for.
"""

from typing import TYPE_CHECKING, Any

from privsyn_flower.common.on_demand import on_demand
from privsyn_flower.config.section import (
    ConfigError,
    Scalar,
    Section,
    explain,
    flatten,
    split_list,
)

if TYPE_CHECKING:
    from privsyn_flower.config.data import DataConfig
    from privsyn_flower.config.evaluation import EvaluationConfig
    from privsyn_flower.config.evolution import EvolutionConfig, SftConfig
    from privsyn_flower.config.models import ExpandConfig, GenerationConfig, ModelsConfig
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
    from privsyn_flower.config.training import (
        AveragingConfig,
        FtrlConfig,
        ProximityConfig,
        TrainingConfig,
    )
else:
    _imported = on_demand(
        __name__,
        {
            "data": "DataConfig",
            "evaluation": "EvaluationConfig",
            "evolution": "EvolutionConfig SftConfig",
            "models": "ExpandConfig GenerationConfig ModelsConfig",
            "schema": "RunConfig cache_folder flat_defaults",
            "toml": "absolute_paths changed check_paths differences load_config "
            "parse_override relocated to_toml toml_value without_benchmark",
            "training": "AveragingConfig FtrlConfig ProximityConfig TrainingConfig",
        },
    )

    def __getattr__(name: str) -> Any:
        """Tables of methods, too, which are in `strategies/NAME/config.py`."""
        if not name.endswith("Config") or name == "RunConfig" or name in __all__:
            return _imported(name)
        from privsyn_flower.config.schema import METHODS

        owned = {entry.own.__name__: entry.own for entry in METHODS.values() if entry.own}
        return owned[name] if name in owned else _imported(name)


__all__ = [
    "AveragingConfig",
    "ConfigError",
    "DataConfig",
    "EvaluationConfig",
    "EvolutionConfig",
    "ExpandConfig",
    "FtrlConfig",
    "GenerationConfig",
    "ModelsConfig",
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
