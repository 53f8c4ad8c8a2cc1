"""Put the site of `make docs` beside those of other versions: `make site SITE=FOLDER`.

    python scripts/site_versions.py docs/_build/html FOLDER

The folder gets one folder for each version, `versions.js`, which the menu of every page reads, and
an `index.html` that leads to the newest. It can be served as it lies, or opened without a server.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

INDEX = '<!doctype html><meta http-equiv="refresh" content="0; url={}/index.html">\n'


def versions(site: Path) -> list[str]:
    """Those that a site has, the newest first; other folders are no versions."""
    found = []
    for path in site.iterdir():
        try:
            found.append(Version(path.name))
        except InvalidVersion:
            continue
    return [str(version) for version in sorted(found, reverse=True)]


def add(built: Path, site: Path, version: str) -> None:
    """Put what Sphinx built there as one version, in place of the same."""
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(built, site / version)
    known = versions(site)
    (site / "versions.js").write_text(f"const VERSIONS = {json.dumps(known)};\n", "utf-8")
    (site / "index.html").write_text(INDEX.format(known[0]), "utf-8")


if __name__ == "__main__":
    from privsyn_flower import __version__

    add(Path(sys.argv[1]), Path(sys.argv[2]), __version__)
