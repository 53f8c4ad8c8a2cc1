"""The library that draws the charts (Vega, Vega-Lite, vega-embed), as the text of one script.

vl-convert needs two seconds to make it, at the end of every run; so it is kept once it was made.
The digest of what may be used stands here, so that nobody's own script is: not even of whoever
can write into the cache folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import logging
from collections.abc import Callable

from privsyn_flower.common.files import build_file, cache_home

INSTALL = "pip install 'privsyn-flower[report]'"
logger = logging.getLogger("privsyn_flower")

# sha256 of the script, by the versions of vl-convert-python and Vega-Lite. What others make is
# used, and made anew in every process.
DIGESTS = {
    ("1.9.0.post1", "6.4"): "3425bd951a44d478d0505c6b5d1e8d57656b6e9a4da7bfe88a718ce61d76e572",
}


@functools.cache
def library() -> str:
    """The scripts that draw; "" where the extra is missing."""
    if not (importlib.util.find_spec("altair") and importlib.util.find_spec("vl_convert")):
        return ""
    versions = installed()
    digest = DIGESTS.get(versions)
    found = _cached(digest, versions[1]) if digest else bundled(versions[1])
    # Nothing in it may end the element that it stands in.
    lowered = found.lower()
    if any(mark in lowered for mark in ("</script", "<script", "<!--")):
        logger.warning("the report page has no charts: their script cannot stand in a page")
        return ""
    return found


def installed() -> tuple[str, str]:
    """The versions of vl-convert-python, and of the Vega-Lite that altair writes for."""
    import altair

    vega_lite = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return importlib.metadata.version("vl-convert-python"), vega_lite


def bundled(vega_lite: str) -> str:
    """The script, made by vl-convert; "" for a version of Vega-Lite that it does not have."""
    import vl_convert

    bundle: Callable[..., str] = vl_convert.javascript_bundle
    try:
        return str(bundle(vl_version=vega_lite))
    except ValueError as error:
        logger.warning("the report page has no charts: %s", error)
        return ""


def _cached(digest: str, vega_lite: str) -> str:
    """The script with this digest, kept in the cache folder where that can be written to."""
    path = cache_home() / "privsyn-flower" / "charts" / f"{digest}.js"
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() == digest:
            return data.decode()
    found = bundled(vega_lite)
    if hashlib.sha256(found.encode()).hexdigest() == digest:
        with contextlib.suppress(OSError):
            build_file(path, lambda scratch: scratch.write_bytes(found.encode()))
    return found
