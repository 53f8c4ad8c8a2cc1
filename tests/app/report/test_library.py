"""The charts' library: made once for a machine, and nobody's own script in its place."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from privsyn_flower.app.report.html import library as module

VERSIONS = ("1.0", "6.4")
SCRIPT = "draw('a chart');"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where SCRIPT is to be kept, which is what the installed versions should make."""
    digest = hashlib.sha256(SCRIPT.encode()).hexdigest()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "DIGESTS", {VERSIONS: digest})
    monkeypatch.setattr(module, "installed", lambda: VERSIONS)
    return tmp_path / "privsyn-flower" / "charts" / f"{digest}.js"


def library(monkeypatch: pytest.MonkeyPatch, made: str | None = None) -> str:
    """The library in a process of its own. made: by vl-convert there; None: it is not asked."""

    def bundled(_: str) -> str:
        assert made is not None, "vl-convert was asked"
        return made

    monkeypatch.setattr(module, "bundled", bundled)
    return module.library.__wrapped__()


def test_it_is_made_once_for_all_processes(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library(monkeypatch, made=SCRIPT) == SCRIPT
    assert kept.read_text() == SCRIPT and list(kept.parent.iterdir()) == [kept]
    assert library(monkeypatch) == SCRIPT


@pytest.mark.parametrize("found", ["", SCRIPT[:-1], "steal();", SCRIPT.replace("a", "b")])
def test_what_is_damaged_or_somebody_elses_is_made_anew(
    found: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_text(found)
    assert library(monkeypatch, made=SCRIPT) == SCRIPT
    assert kept.read_text() == SCRIPT


def test_what_has_another_digest_is_used_and_not_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library(monkeypatch, made="other();") == "other();"
    monkeypatch.setattr(module, "installed", lambda: ("9.9", "9.9"))
    assert library(monkeypatch, made=SCRIPT) == SCRIPT
    assert not kept.exists()


def test_a_folder_that_cannot_be_written_to_costs_no_charts(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.parent.parent.mkdir()
    kept.parent.write_text("a file in its place")
    assert library(monkeypatch, made=SCRIPT) == SCRIPT


@pytest.mark.parametrize("hostile", ["</SCRIPT>", "<script>", "<!--"])
def test_a_script_that_would_leave_its_element_is_not_used(
    hostile: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library(monkeypatch, made=SCRIPT + hostile) == ""


@pytest.mark.slow
def test_the_digest_is_of_what_the_installed_versions_make() -> None:
    """Fails after an upgrade: the digest of the new versions belongs into DIGESTS then."""
    versions = module.installed()
    made = hashlib.sha256(module.bundled(versions[1]).encode()).hexdigest()
    assert module.DIGESTS.get(versions) == made
