"""What is asked of the hub's client; nothing here has a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call, create_autospec

import httpx
import huggingface_hub
import pytest
from huggingface_hub import HfApi
from typer.testing import CliRunner, Result

from privsyn_flower.app.cli.main import app
from tests.app.report.publishing.runs import BENCHMARK, make_run


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """The client, with the real one's signatures; no repository is there."""
    found: MagicMock = create_autospec(HfApi, instance=True)
    found.endpoint = "https://hub.test"
    found.repo_exists.return_value = False
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: found)
    return found


def cli(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["publish", *map(str, arguments)])


def test_a_private_data_set_is_made_and_filled(api: MagicMock, tmp_path: Path) -> None:
    run, folder = make_run(tmp_path / "run"), tmp_path / "out"
    found = cli(run, folder, "--push", "me/texts")
    assert found.exit_code == 0, found.stderr
    own = {"repo_id": "me/texts", "repo_type": "dataset"}
    assert api.mock_calls == [
        call.repo_exists(**own),
        call.create_repo(**own, private=True),
        call.upload_folder(
            **own, folder_path=folder, commit_message="Written by privsyn publish",
            delete_patterns="*",
        ),
    ]  # fmt: skip
    assert found.stdout.splitlines()[-1] == "https://hub.test/datasets/me/texts"
    assert 'load_dataset("me/texts"' in (folder / "README.md").read_text()


def test_a_model_for_everyone(api: MagicMock, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=None, model=True, method="dp-fedavg")
    found = cli(run, tmp_path / "out", "--push", "me/model", "--public")
    assert found.exit_code == 0, found.stderr
    own = {"repo_id": "me/model", "repo_type": "model"}
    assert api.create_repo.mock_calls == [call(**own, private=False)]
    assert found.stdout.splitlines()[-1] == "https://hub.test/me/model"


@pytest.mark.parametrize(("private", "public", "pushed"), [(1, 0, 1), (0, 1, 1), (0, 0, 0)])
def test_a_repository_that_is_there(
    private: int, public: int, pushed: int, api: MagicMock, tmp_path: Path
) -> None:
    api.repo_exists.return_value = True
    api.repo_info.return_value.private = bool(private)
    options = ["--push", "me/texts", *(["--public"] if public else [])]
    found = cli(make_run(tmp_path / "run"), tmp_path / "out", *options)
    assert found.exit_code == (0 if pushed else 1)
    assert api.upload_folder.call_count == pushed and not api.create_repo.called
    assert ("me/texts is public already" in found.stderr) is not pushed


def test_what_the_hub_refuses_is_one_line(api: MagicMock, tmp_path: Path) -> None:
    api.upload_folder.side_effect = httpx.ConnectError("no\nroute")
    found = cli(make_run(tmp_path / "run"), tmp_path / "out", "--push", "me/texts")
    assert found.exit_code == 1 and (tmp_path / "out" / "README.md").is_file()
    assert found.stderr.splitlines()[-1].endswith(
        "is written, but me/texts was not pushed: ConnectError: no route"
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--push", "texts"], "as in OWNER/NAME"),
        (["--push", "me/te xts"], "--push me/te xts"),
        (["--public"], "name it with --push"),
        (["--license", "CC BY"], "no name of the hub's"),
        (["--model"], "left no model/"),
        (["--benchmark-figures"], "no benchmark figures"),
    ],
)
def test_nothing_is_written_or_asked_after_an_error(
    arguments: list[str], why: str, api: MagicMock, tmp_path: Path
) -> None:
    found = cli(make_run(tmp_path / "run"), tmp_path / "out", *arguments)
    assert found.exit_code == 1 and why in found.stderr.splitlines()[-1]
    assert not api.mock_calls and not (tmp_path / "out").exists()


def test_the_command_says_what_it_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", summary={"benchmark": BENCHMARK})
    found = cli(run, tmp_path / "out")
    assert found.exit_code == 0 and found.stdout == f"{tmp_path / 'out'}\n"
    assert "figures are left out" in found.stderr and "'unknown'" in found.stderr
    seeded = make_run(tmp_path / "seeded", **{"simulation-seeded-noise": True})
    assert "--no-privacy-claimed" in cli(seeded, tmp_path / "seeds").stderr
    told = cli(seeded, tmp_path / "seeds", "--no-privacy-claimed", "--license", "mit")
    assert told.exit_code == 0 and told.stderr.startswith("no privacy is claimed for it: none:")
