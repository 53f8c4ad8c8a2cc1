"""What a key is called in an own ServerApp (its errors: `tests/strategies/test_arguments.py`)."""

from __future__ import annotations

from privsyn_flower.config import PopriConfig
from privsyn_flower.config import api as config_api


def test_every_key_has_a_word_that_is_no_key() -> None:
    keys = [f"popri.{name.replace('_', '-')}" for name in PopriConfig.model_fields]
    text = config_api.in_api_words(" and ".join(keys))
    assert text == " and ".join(f"PopriConfig({name})" for name in PopriConfig.model_fields)
    for word in config_api._words().values():
        assert "-" not in word and config_api.in_api_words(word) == word
    # Neither options of other commands nor paths are keys.
    same = "--max-lora-rank, first-use, a/run-folder, data.users.json"
    assert config_api.in_api_words(same) == same
