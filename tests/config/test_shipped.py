"""Every shipped configuration, accounted once: its noise, integers and plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from privsyn_flower.app.preflight.numbers import noise_of
from privsyn_flower.config import RunConfig, absolute_paths, load_config
from privsyn_flower.privacy.accounting.calibration import DOUBTFUL_SHARE
from privsyn_flower.server_apps.privacy_plan import baseline
from tests.app.preflight.test_plan import it_has_a_plan
from tests.config.test_ctcl_configs import noise_is_that_of_appendix_e
from tests.config.test_encodings import (
    FILES,
    OF_NODES,
    integers_are_so_fine_that_all_releases_fit,
)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_configuration_is_sound(path: Path, tmp_path: Path) -> None:
    own = load_config(path, {"cache": str(tmp_path / "cache")})
    config = absolute_paths(own, tmp_path / "run")
    if path.parent.name == "papers":
        it_has_a_plan(path.stem, config, tmp_path)
    if baseline(config) is None:
        it_is_far_from_both_limits(config)
    if path.stem in OF_NODES:
        integers_are_so_fine_that_all_releases_fit(config)
    if "ctcl" in path.stem and path.parent.name == "papers":
        noise_is_that_of_appendix_e(path.stem, config)


def it_is_far_from_both_limits(config: RunConfig) -> None:
    assert config.delta * config.data.users < 0.5
    noise, answers, _ = noise_of(config)
    assert 0 < noise < DOUBTFUL_SHARE / 10 * answers
