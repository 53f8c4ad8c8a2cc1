"""privsyn-flower: learn from private, distributed text by noisy sums of bounded answers."""

import os
from importlib.metadata import PackageNotFoundError, version

from privsyn_flower.telemetry import NO_TELEMETRY

os.environ.update(NO_TELEMETRY)  # before any library that would report

try:
    __version__ = version("privsyn-flower")
except PackageNotFoundError:  # run from a source folder that is not installed (a Flower bundle)
    __version__ = "0.1.0"

__all__ = ["__version__"]
