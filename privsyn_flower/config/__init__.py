"""The run configuration: typed, bounded and explained keys; TOML files and `--set`.

`common` has the top-level keys, `schema` the table of methods; each table of keys has a file, with
what it needs of the others; `toml` reads and writes files. A node's policy needs `section` alone:
the others are imported when first asked for.
"""

from typing import TYPE_CHECKING, Any

from privsyn_flower.common.on_demand import names_of, on_demand
from privsyn_flower.config.section import ConfigError as ConfigError
from privsyn_flower.config.section import Scalar as Scalar
from privsyn_flower.config.section import Section as Section
from privsyn_flower.config.section import explain as explain
from privsyn_flower.config.section import flatten as flatten
from privsyn_flower.config.section import split_list as split_list

if TYPE_CHECKING:
    from privsyn_flower.config.data import DataConfig as DataConfig
    from privsyn_flower.config.evaluation import EvaluationConfig as EvaluationConfig
    from privsyn_flower.config.evolution import EvolutionConfig as EvolutionConfig
    from privsyn_flower.config.evolution import SftConfig as SftConfig
    from privsyn_flower.config.models import ExpandConfig as ExpandConfig
    from privsyn_flower.config.models import GenerationConfig as GenerationConfig
    from privsyn_flower.config.models import ModelsConfig as ModelsConfig
    from privsyn_flower.config.schema import RunConfig as RunConfig
    from privsyn_flower.config.schema import cache_folder as cache_folder
    from privsyn_flower.config.schema import flat_defaults as flat_defaults
    from privsyn_flower.config.toml import absolute_paths as absolute_paths
    from privsyn_flower.config.toml import changed as changed
    from privsyn_flower.config.toml import check_paths as check_paths
    from privsyn_flower.config.toml import differences as differences
    from privsyn_flower.config.toml import load_config as load_config
    from privsyn_flower.config.toml import parse_override as parse_override
    from privsyn_flower.config.toml import relocated as relocated
    from privsyn_flower.config.toml import to_toml as to_toml
    from privsyn_flower.config.toml import toml_value as toml_value
    from privsyn_flower.config.toml import without_benchmark as without_benchmark
    from privsyn_flower.config.training import AveragingConfig as AveragingConfig
    from privsyn_flower.config.training import FtrlConfig as FtrlConfig
    from privsyn_flower.config.training import ProximityConfig as ProximityConfig
    from privsyn_flower.config.training import TrainingConfig as TrainingConfig
else:
    _HOMES = {
        "data": "DataConfig",
        "evaluation": "EvaluationConfig",
        "evolution": "EvolutionConfig SftConfig",
        "models": "ExpandConfig GenerationConfig ModelsConfig",
        "schema": "RunConfig cache_folder flat_defaults",
        "toml": "absolute_paths changed check_paths differences load_config "
        "parse_override relocated to_toml toml_value without_benchmark",
        "training": "AveragingConfig FtrlConfig ProximityConfig TrainingConfig",
    }
    _imported = on_demand(__name__, _HOMES)
    __all__ = names_of(
        _HOMES, "ConfigError", "Scalar", "Section", "explain", "flatten", "split_list"
    )

    def __getattr__(name: str) -> Any:
        """Tables of methods, too, which are in `strategies/NAME/config.py`."""
        if not name.endswith("Config") or name == "RunConfig" or name in __all__:
            return _imported(name)
        from privsyn_flower.config.schema import METHODS

        owned = {entry.own.__name__: entry.own for entry in METHODS.values() if entry.own}
        return owned[name] if name in owned else _imported(name)
