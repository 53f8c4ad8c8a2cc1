"""What several tests share about secure sum."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path, flower_environment: dict[str, str]) -> dict[str, str]:
    """A Flower of its own without a network, and a home: keys are kept there."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    own = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "no_proxy": "127.0.0.1,localhost"}
    return {**flower_environment, **proxies, **own}
