"""What a process imports to load a language model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from privsyn_flower.text.models import devices
from privsyn_flower.text.models.pretrained import load_model

LOADED = """
import json, sys
from pathlib import Path
import transformers
from privsyn_flower.text.models.parameters import base_shapes
from privsyn_flower.text.models.pretrained import load_model

folder = Path(sys.argv[1])
shapes = base_shapes(folder)
model = load_model("AutoModelForCausalLM", folder, "models.generator", "cpu", "auto")
import torch
made = model.generate(torch.tensor([[3, 4]]), max_new_tokens=2, do_sample=False)
heavy = [name for name in ("sklearn", "pandas", "scipy") if name in sys.modules]
available = transformers.utils.is_sklearn_available() and transformers.utils.is_scipy_available()
print(json.dumps([heavy, len(shapes), made.shape[1], available]))
"""


@pytest.mark.slow
def test_a_model_is_loaded_without_scikit_learn_and_scipy(causal_folder: Path) -> None:
    """In a process that has them installed, and finds them afterwards."""
    found = subprocess.run(
        [sys.executable, "-c", LOADED, str(causal_folder)],
        capture_output=True, text=True, check=True, timeout=1500,
    )  # fmt: skip
    heavy, shapes, length, available = json.loads(found.stdout.splitlines()[-1])
    assert heavy == [] and shapes > 10 and length <= 4 and available


@pytest.mark.parametrize(
    ("kept", "units", "wanted"),
    [("bfloat16", True, "bfloat16"), ("bfloat16", False, "float32"), ("float32", True, "float32")],
)
def test_bfloat16_is_for_weights_kept_so_where_it_is_fast(
    causal_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    kept: str, units: bool, wanted: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda device: units)
    name = ("AutoModelForCausalLM", causal_folder, "models.generator", "cpu")
    load_model(*name, kept).save_pretrained(tmp_path)
    found = load_model("AutoModelForCausalLM", tmp_path, "models.generator", "cpu", "auto")
    assert str(found.dtype) == f"torch.{wanted}"
    asked = load_model("AutoModelForCausalLM", tmp_path, "models.generator", "cpu", "float32")
    assert str(asked.dtype) == "torch.float32"


def test_no_progress_bar_of_the_library_is_drawn(
    causal_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import transformers

    transformers.logging.enable_progress_bar()
    load_model("AutoModelForCausalLM", causal_folder, "models.generator", "cpu", "float32")
    assert "Loading" not in capfd.readouterr().err
    assert transformers.logging.is_progress_bar_enabled()
