"""What a reasoning model writes for itself before it answers, between <think> and </think>."""

from __future__ import annotations

import re

THINKING = "think"  # the usual tag


def without_thinking(text: str, tag: str = THINKING) -> str | None:
    """The text without its blocks between <tag> and </tag>; None where one is not finished.

    A chat template may have opened the block in the prompt: then all before </tag> goes. tag "":
    the text as it is.
    """
    begin, end = f"<{tag}>", f"</{tag}>"
    if not tag or (begin not in text and end not in text):
        return text
    found = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", "", text, flags=re.DOTALL)
    found = found.rpartition(end)[2]
    return None if begin in found else found.lstrip()
