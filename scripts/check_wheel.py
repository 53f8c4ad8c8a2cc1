"""Check the three wheels in a folder, each alone in an environment of its own.

    python -m scripts.check_wheel dist

privsyn-flower holds every file of the package but the larger models, in 20 MB, and its commands
work without extras, as for a device of hashed n-grams; whoever names a larger model is told what
to install, and finds it then. privsyn-flower-models holds these models, and privsyn-secagg runs
the examples of docs/secure-sum.md. What the extra `edge` adds is tried in
tests/end_to_end/test_edge.py.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.secagg_package import NAME as SECAGG
from scripts.secagg_package import closure, module_file, renamed

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, MODELS = "privsyn_flower", "privsyn_flower_models"
LARGE = ("minilm-int8", "small-conditional", "small-generator", "small-infiller")
MOST_BYTES = 20_000_000  # of the main wheel
# What a device's owner types, and what no device pays for.
COMMANDS = (
    "--help",
    "node status --folder node",
    "node key --folder node",
    "embedder show ngram-256",
)
LARGER = "embedder show minilm-int8"
ABSENT = ("torch", "onnxruntime", "dp_accounting", "scipy", "pandas", "pyarrow")


def package_files(root: Path) -> set[str]:
    """Every file of the package in the working tree, data included, but for compiled ones."""
    files = (path for path in (root / PACKAGE).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in files if "__pycache__" not in path.parts}


def wanted_files(root: Path = ROOT) -> dict[str, set[str]]:
    """What each wheel has to hold."""
    every, assets = package_files(root), f"{PACKAGE}/assets/"
    large = {name for name in every if name.startswith(tuple(f"{assets}{x}/" for x in LARGE))}
    models = {name.replace(assets, f"{MODELS}/") for name in large} | {f"{MODELS}/LICENSE"}
    code = {module_file(renamed(module), root).relative_to(root) for module in closure()}
    inner = {folder / "__init__.py" for path in code for folder in list(path.parents)[:-1]}
    alone = {path.as_posix() for path in code | inner} | {f"{SECAGG}/py.typed"}
    return {PACKAGE: every - large, MODELS: models, SECAGG: alone}


def differences(wheel: Path, wanted: set[str]) -> list[str]:
    """What the wheel lacks, what it has beside it, and whether it is too large; empty: all well."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    held = {name for name in names if ".dist-info/" not in name}
    lacking = [f"lacks {name}" for name in sorted(wanted - held)]
    size, main = wheel.stat().st_size, wheel.name.startswith(f"{PACKAGE}-")
    large = [f"has {size:,} bytes, at most {MOST_BYTES:,}"] if main and size > MOST_BYTES else []
    return lacking + [f"has {name}" for name in sorted(held - wanted)] + large


@contextmanager
def installed(wheel: Path) -> Iterator[Path]:
    """A folder whose bin/ is of a new environment with a wheel and what it asks for."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        install(Path(folder), wheel)
        yield Path(folder)


def install(folder: Path, wheel: Path) -> None:
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    options = ["--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    subprocess.run([*command, *options, wheel], check=True, cwd=folder)


def run(folder: Path, program: str, *words: str | Path, fails: bool = False) -> str:
    """What a program of the environment says; CalledProcessError when it fails."""
    result = subprocess.run(
        [folder / "bin" / program, *words], cwd=folder, text=True, check=not fails,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT if fails else None,
    )  # fmt: skip
    if fails and not result.returncode:
        sys.exit(f"{program} {' '.join(map(str, words))} does not fail: {result.stdout}")
    return result.stdout


def try_core(wheel: Path, models: Path) -> None:
    """COMMANDS, without ABSENT; a larger model by name, without its package and with it."""
    with installed(wheel) as folder:
        for command in COMMANDS:
            print(run(folder, "privsyn", *command.split()))
        absent = f"import importlib.util as u; assert not any(map(u.find_spec, {ABSENT!r}))"
        run(folder, "python", "-c", absent)
        told = run(folder, "privsyn", *LARGER.split(), fails=True)
        if "minilm-int8' is in the package privsyn-flower-models" not in told:
            sys.exit(f"privsyn {LARGER} without privsyn-flower-models says: {told}")
        install(folder, models)
        run(folder, "privsyn", *LARGER.split())


def try_models(wheel: Path) -> None:
    """Found by its name, with nothing else."""
    listed = f"from importlib.resources import files; print(*files({MODELS!r}).iterdir())"
    with installed(wheel) as folder:
        said = run(folder, "python", "-c", listed)
    if absent := [name for name in LARGE if f"/{name}" not in said]:
        sys.exit(f"{wheel} was installed without {', '.join(absent)}")


def try_secagg(wheel: Path) -> None:
    """The page's examples."""
    trial, page = ROOT / "scripts" / "secagg_trial.py", ROOT / "docs" / "secure-sum.md"
    with installed(wheel) as folder:
        print(run(folder, "python", trial, page))


def main(folder: Path) -> None:
    """Look at all wheels, then try them."""
    wheels = {path.name.partition("-")[0]: path.resolve() for path in folder.rglob("*.whl")}
    wanted = wanted_files()
    if set(wheels) != set(wanted):
        sys.exit(f"{folder} has wheels of {sorted(wheels)}, expected {sorted(wanted)}")
    for name, wheel in wheels.items():
        if wrong := differences(wheel, wanted[name]):
            sys.exit(f"{wheel}: " + "; ".join(wrong))
    try_core(wheels[PACKAGE], wheels[MODELS])
    try_models(wheels[MODELS])
    try_secagg(wheels[SECAGG])
    for name, wheel in wheels.items():
        print(f"{wheel.name}: {len(wanted[name])} files, {wheel.stat().st_size:,} bytes; works")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
