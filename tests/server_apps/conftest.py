"""Fixtures of all runs in one process; the large models stand in as small random ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from privsyn_flower.config import RunConfig
from privsyn_flower.strategies.engine.session import noise_key_folder
from tests.rigs.http_generator import Fake
from tests.rigs.models import one_thread
from tests.server_apps.in_process import small_config, with_texts
from tests.text.conftest import causal_folder, masked_folder

__all__ = ["causal_folder", "masked_folder", "one_thread"]


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where keys of noise lie in these tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return noise_key_folder()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Private and public text, and a cache, that the tests of a file share."""
    return with_texts(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def small(shared: Path, causal_folder: Path) -> Callable[..., RunConfig]:
    """Dotted keys -> `small_config` with the shared texts and a random causal model."""
    return partial(small_config, shared, causal_folder)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A server of completions."""
    server = Fake()
    yield server
    server.server.shutdown()
    server.server.server_close()
