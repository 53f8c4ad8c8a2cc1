"""Check the wheel in a folder: it holds every file of the package, and its command works.

    python scripts/check_wheel.py dist

The wheel is installed without extras, as a device of hashed n-grams would, into an environment of
its own. What the extra `edge` adds is tried in tests/end_to_end/test_edge.py.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "privsyn_flower"
# What a device's owner types, and what no device pays for.
COMMANDS = (
    "--help",
    "node status --folder node",
    "node key --folder node",
    "embedder show ngram-256",
)
ABSENT = ("torch", "onnxruntime", "dp_accounting", "scipy", "pandas", "pyarrow")


def package_files(root: Path) -> set[str]:
    """Every file of the package in the working tree, data included, but for compiled ones."""
    found = (path for path in (root / PACKAGE).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in found if "__pycache__" not in path.parts}


def differences(wheel: Path, root: Path = ROOT) -> list[str]:
    """What the wheel lacks of the package, and what it has beside it; empty when all is well."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    held = {name for name in names if ".dist-info/" not in name}
    wanted = package_files(root)
    lacking = [f"lacks {name}" for name in sorted(wanted - held)]
    return lacking + [f"has {name}" for name in sorted(held - wanted)]


def try_command(wheel: Path) -> None:
    """Install the wheel, run COMMANDS, and look for ABSENT; CalledProcessError when one fails."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        binaries = Path(folder) / "bin"
        install = [binaries / "python", "-m", "pip", "install", "--quiet"]
        options = ["--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
        subprocess.run([*install, *options, wheel], check=True, cwd=folder)
        for command in COMMANDS:
            subprocess.run([binaries / "privsyn", *command.split()], check=True, cwd=folder)
        found = f"import importlib.util as u; assert not any(map(u.find_spec, {ABSENT!r}))"
        subprocess.run([binaries / "python", "-c", found], check=True, cwd=folder)


def main(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    wrong = differences(wheel)
    if wrong:
        sys.exit(f"{wheel}: " + "; ".join(wrong))
    try_command(wheel.resolve())
    print(f"{wheel}: {len(package_files(ROOT))} files, and its commands work")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
