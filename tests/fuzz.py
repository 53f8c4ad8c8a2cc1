"""How long hypothesis looks for trouble: PRIVSYN_FUZZ_SECONDS for each target, a few by default."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES_A_SECOND = 100  # hypothesis counts examples, not seconds: about what a target manages


def fuzz_settings() -> settings:
    """For `@fuzz_settings()` on a test: no deadline, and examples for the time asked for."""
    seconds = float(os.environ.get("PRIVSYN_FUZZ_SECONDS", "2"))
    return settings(
        max_examples=max(10, int(seconds * EXAMPLES_A_SECOND)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
