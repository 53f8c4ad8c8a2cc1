"""The filter: is this something that people write about on their phones?

Gboard paper (Wu et al. 2024), section 3.1: an instruction model is asked about the subject of every
example of a public corpus, not about its style, and answers with 0 or 1. The words are ours.
"""

from __future__ import annotations

import re
from typing import Literal

TEMPERATURE = 0.0  # the likelier of two digits; the paper does not say

_JUDGE = """\
Would people bring up the subject of the text below when they write messages on their phones? \
Judge the subject alone, not how the text is written. Answer with one digit and nothing else: \
1 if they very probably would, 0 if they hardly would.

Text:
{text}

Digit:"""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def judge_prompt(text: str) -> str:
    """A public text -> the question about it."""
    return _JUDGE.format(text=text.strip())


def parse_judgement(answer: str) -> Literal[0, 1] | None:
    """The first number of an answer, if it is 0 or 1; None for any other answer."""
    found = _NUMBER.search(answer)
    number = float(found[0]) if found else -1.0
    return 1 if number == 1 else 0 if number == 0 else None
