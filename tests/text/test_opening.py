"""Which generator `[generation]` makes, and that each is told all of the sampling."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.config import ConfigError
from privsyn_flower.config.models import GenerationConfig
from privsyn_flower.text import HuggingFaceGenerator
from privsyn_flower.text.opening import open_generator
from privsyn_flower.text.protocols import AdaptableGenerator, Answering, Sampling
from privsyn_flower.text.serving.http_generator import OpenAIGenerator
from privsyn_flower.text.serving.vllm_server import VllmGenerator

SAMPLING = Sampling(9, temperature=0.3, top_p=0.8, top_k=40)


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ({}, HuggingFaceGenerator),
        ({"backend": "openai", "base_url": "http://127.0.0.1:9/v1"}, OpenAIGenerator),
        ({"backend": "vllm", "base_url": "http://127.0.0.1:9/v1"}, OpenAIGenerator),
        ({"backend": "vllm", "vllm_python": sys.executable}, VllmGenerator),
    ],
)
def test_every_backend(
    where: dict[str, Any], kind: type, causal_folder: Path, tmp_path: Path
) -> None:
    where = where | {"token_parameter": "max-completion-tokens", "leave_out": "seed, n"}
    found = open_generator(
        str(causal_folder), GenerationConfig(**where), SAMPLING, log=tmp_path / "log", device="cpu",
        stop=("x",), progress=False,
    )  # fmt: skip
    assert type(found) is kind
    assert isinstance(found, AdaptableGenerator)
    assert isinstance(found, Answering)
    told = (found.max_tokens, found.temperature, found.top_p, found.top_k, found.stop)
    assert told == (9, 0.3, 0.8, 40, ("x",))
    assert found.thinking_tag == "think"
    if isinstance(found, OpenAIGenerator):
        assert found.token_parameter == "max_completion_tokens"
        assert found.leave_out == {"seed", "n"}
        assert found.adapters == (where["backend"] == "vllm")
    found.close()


def test_a_hosted_server_has_an_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set base-url"):
        open_generator("m", GenerationConfig(backend="openai"), SAMPLING, log=tmp_path / "log")
