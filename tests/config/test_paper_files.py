"""configs/papers is what scripts/papers says; the numbers are compared with the papers elsewhere
(`test_training_configs`, `tests/server_apps/test_paper_configs`)."""

from __future__ import annotations

import pytest

from scripts import paper_configs
from scripts.papers.layers import laid

TEXTS = paper_configs.texts()


def test_no_file_is_missing_and_none_is_left_over() -> None:
    assert len(TEXTS) == 137
    assert {path.name for path in paper_configs.FOLDER.iterdir()} == {f"{n}.toml" for n in TEXTS}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_is_that_of_the_tables(name: str) -> None:
    written = (paper_configs.FOLDER / f"{name}.toml").read_text("utf-8")
    assert written == TEXTS[name], "run make paper-configs"


def test_the_later_layer_stays_and_keys_have_the_schemas_order() -> None:
    first = "# A.\n[popri]\nepochs = 2  # section 1\n[data]\nusers = $users\n"
    second = '# B.\nmethod = "popri"\n[popri]\nepochs = 3  # section 2'
    assert laid([first, second], {"users": "7"}) == (
        '# A.\n# B.\nmethod = "popri"\n\n[data]\nusers = 7\n\n[popri]\nepochs = 3  # section 2\n'
    )


def test_what_a_layer_may_not_say() -> None:
    with pytest.raises(ValueError, match=r"unknown keys: \['popri.epsilon'\]"):
        laid(["[popri]\nepsilon = 1.0"], {})
    with pytest.raises(KeyError, match="users"):
        laid(["[data]\nusers = $users"], {})
