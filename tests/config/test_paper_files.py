"""configs/papers is what scripts/papers says; the numbers are compared with the papers elsewhere
(`test_training_configs`, `tests/server_apps/test_paper_configs`)."""

from __future__ import annotations

import math
import re

import pytest

from privsyn_flower.config import load_config
from privsyn_flower.evaluation.public import tuning_of
from privsyn_flower.server_apps.methods import recipe_of
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


# How often the papers' fine-tunings read their text: PrE-Text 20 epochs (App. D.2), for LLaMA one
# (section 4.2); POPri 500,000 steps of 160 on a million texts, centrally ten epochs (App. B.1);
# CTCL 6,000 steps of 64 on 400,000 texts (section 4.1).
PASSES = {
    r"(.*-)?pretext-llama2-": 1.0,
    r".*pretext-": 20.0,
    r".*popri-(pubmed|openreview)": 10.0,
    r".*popri-": 80.0,
    r"ctcl-": 0.96,
    r"dp-fedavg-ctcl-": math.inf,  # of (c): 6,000 steps, whatever there is to read
    r"(dp-ftrl|evaluation)-gboard-": math.inf,  # of (c), which the paper has not
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_evaluation_reads_its_text_no_more_often_than_the_paper(name: str) -> None:
    """A batch of tokens would read short texts many times over."""
    config = load_config(paper_configs.FOLDER / f"{name}.toml")
    allowed = next(most for family, most in PASSES.items() if re.match(family, name))
    if allowed == math.inf:
        return
    tuning, texts = tuning_of(config), recipe_of(config).texts(config)
    assert tuning.by_texts
    texts = texts or config.data.users * config.data.samples_per_user  # a training writes none
    assert tuning.steps_of(texts) * tuning.batch_size <= allowed * (texts + tuning.batch_size)
    public, pool = tuning_of(config, public=True), config.data.public_pool
    assert public.steps_of(pool) * public.batch_size <= 20 * (pool + public.batch_size)
