"""What the checks find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from privsyn_flower.config import ConfigError


@dataclass(frozen=True)
class Finding:
    """One line for the user: what is wrong, and the key or command to mend it.

    fatal: the run could only fail, or give nothing; else a warning.
    """

    text: str
    fatal: bool = True


Findings = Iterator[Finding]


class NotReady(ConfigError):
    """The run could not work. errors: why, a line for each reason."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\nerror: ".join(errors))
        self.errors = errors
