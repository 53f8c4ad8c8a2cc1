"""The file of `privsyn public`: its keys, bounds and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from privsyn_flower.config import ConfigError
from privsyn_flower.config.public import PublicTextConfig, load_public_config

ROOT = Path(__file__).parents[2]


def test_the_shipped_file_has_the_papers_numbers() -> None:
    config = load_public_config(ROOT / "configs" / "gboard-public.toml")
    assert (config.chat.temperature, config.chat.top_k) == (0.2, 40)
    assert (config.convert.temperature, config.convert.top_k) == (0.2, 40)
    assert config.convert.share == 0.2 and config.filter.max_tokens == 1
    assert list(config.mix.chosen) == ["filter", "chat", "convert"]
    assert (config.mix.examples, config.mix.repeats) == ("turns", "keep")
    assert config.generation.chat and config.generation.backend == "openai"


def test_settings_stand_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "public.toml"
    file.write_text('folder = "a"\n[generation]\nconcurrency = 3\n[chat]\npersonas = 7\n')
    settings = ["chat.personas=9", "folder=1e3", "mix.stages=chat,chat", "convert.share=1"]
    config = load_public_config(file, settings)
    assert (config.chat.personas, config.folder, config.generation.concurrency) == (9, "1e3", 3)
    assert config.generation.chat  # a table of its own need not repeat it
    assert list(config.mix.chosen) == ["chat"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "chat.persona=1",
            "unknown configuration key 'chat.persona'; did you mean 'chat.personas'",
        ),
        (
            "chat.personas=73921",
            "chat.personas = 73921: Input should be less than or equal to 73920",
        ),
        ("convert.share=0", "convert.share = 0: Input should be greater than 0"),
        ("chat.temperature=-0.1", "chat.temperature = -0.1"),
        ("mix.stages=chats", "mix.stages = 'chats': must be one or more of filter, chat, convert"),
        ("mix.stages=", "mix.stages = ''"),
        ("mix.examples=lines", "mix.examples = 'lines': Input should be 'turns' or 'texts'"),
        ("generation.chat=false", "generation.chat = false: the prompts are instructions"),
        ("epsilon=1.0", "unknown configuration key 'epsilon'"),
    ],
)
def test_wrong_keys_and_values_are_named(tmp_path: Path, setting: str, words: str) -> None:
    (tmp_path / "public.toml").write_text("")
    with pytest.raises(ConfigError) as caught:
        load_public_config(tmp_path / "public.toml", [setting])
    assert words in str(caught.value)


def test_no_key_can_name_users_or_private_text() -> None:
    """What could be private has no place in the file."""
    assert set(PublicTextConfig.model_fields) == {
        "folder", "seed", "vocabulary", "models", "generation", "filter", "chat", "convert", "mix"
    }  # fmt: skip
    assert set(type(PublicTextConfig().models).model_fields) == {"generator", "device"}
