"""A Python that is started finds the running package, also one that is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from privsyn_flower.common.python_path import finding_us


def test_a_copy_that_is_not_installed_is_the_one_that_is_found(tmp_path: Path) -> None:
    """Beside this one, which is installed, and with what was on the path before."""
    copy = tmp_path / "bundle" / "privsyn_flower"
    copy.mkdir(parents=True)
    (copy / "__init__.py").touch()
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "theirs.py").touch()
    (tmp_path / "before" / "privsyn_flower.py").touch()
    environment = finding_us(
        {**os.environ, "PYTHONPATH": str(tmp_path / "before")}, tmp_path / "bundle"
    )
    code = "import privsyn_flower, theirs; print(privsyn_flower.__file__)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(copy / "__init__.py")


def test_of_an_installed_package_nothing_changes() -> None:
    for before in ({}, {"PYTHONPATH": "/a"}):
        assert finding_us(before, Path(sysconfig.get_path("purelib")).resolve()) == before


def test_an_empty_path_gets_no_working_folder() -> None:
    """An empty entry of PYTHONPATH would be the folder that the process is in."""
    assert finding_us({"PYTHONPATH": ""}, Path("/b")) == {"PYTHONPATH": "/b"}
    assert finding_us({}, Path("/b")) == {"PYTHONPATH": "/b"}
