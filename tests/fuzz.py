"""How long fuzzing goes on: a second for each target, or PRIVSYN_FUZZ_SECONDS."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def fuzz_settings(per_second: int = 40) -> settings:
    """Settings of a fuzz test. per_second: inputs that its target takes in about a second.

    Without PRIVSYN_FUZZ_SECONDS a test takes a second and its inputs are the same every time;
    with it (`make fuzz`) they are new ones, and a failure says how to repeat it.
    """
    seconds = os.environ.get("PRIVSYN_FUZZ_SECONDS", "")
    return settings(
        max_examples=max(10, int(float(seconds or 1) * per_second)),
        derandomize=not seconds,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
