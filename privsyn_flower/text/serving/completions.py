"""What an OpenAI-compatible server answers: completions, or what a model says in a chat."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privsyn_flower.common.terminal import one_line
from privsyn_flower.config.models import OPTIONAL
from privsyn_flower.text.prompts import THINKING, without_thinking
from privsyn_flower.text.protocols import Reply
from privsyn_flower.text.serving.http_client import HalfAnswerError, ServerError

MOST_TOKENS = 2**31  # of an answer or a prompt: a number that is larger tells nothing
OTHER = 200  # status of an error: the server answered, in another language than ours
LEAST = 16  # completions before most of them can be called unusable
CHATS = "if the model only chats, set generation.chat = true"
COMPLETES = "if the server offers no chat, set generation.chat = false"
REFUSING = re.compile(r"unsupported|support|unknown|unrecogni[sz]ed|unexpected|extra|not permitted")
LENGTH, FILTERED = "length", "content_filter"  # finish_reason
UNFINISHED = "with an unfinished"  # cause of a text that ends within a thought


@dataclass(frozen=True)
class Completion:
    """One text, or None and why there is none, for people to read."""

    text: str | None
    cause: str = ""


class Usability:
    """How many completions a server gave, and of those that are of no use how many by cause.

    Threads may share it. server: its address.
    """

    def __init__(self, server: str) -> None:
        self.server, self.given, self.reported = server, 0, 0
        self.unusable = Counter[str]()
        self._lock = threading.Lock()

    def add(self, completions: Sequence[Completion], max_tokens: int) -> None:
        """Count these. Raises ServerError when most are of no use."""
        with self._lock:
            self.given += len(completions)
            self.unusable.update(one.cause for one in completions if one.text is None)
            if self.given >= LEAST and 2 * self.unusable.total() > self.given:
                raise ServerError(f"{self.summary()}: {self._way_out(max_tokens)}", OTHER)

    def new_problems(self) -> str:
        """`summary`, where there are more than the last time; else ""."""
        with self._lock:
            before, self.reported = self.reported, self.unusable.total()
            return self.summary() if self.reported > before else ""

    def summary(self) -> str:
        """In words."""
        causes = ", ".join(f"{count} {cause}" for cause, count in self.unusable.most_common())
        return (
            f"{self.server}: {self.unusable.total()} of {self.given} completions are of no use "
            f"({causes})"
        )

    def _way_out(self, max_tokens: int) -> str:
        [(worst, _)] = self.unusable.most_common(1)
        if repr(LENGTH) in worst:
            return (
                f"raise expand.max-tokens = {max_tokens}, which the model used up before it said "
                "anything, or use a models.generator that does not reason at length"
            )
        return "use another models.generator, or another server"


def completions_of(
    answer: Any, n: int, server: str, chat: bool, tag: str = THINKING
) -> list[Completion]:
    """The completions of an answer in the order of their index, at most n.

    tag: of what a model thinks before it answers, which is left out. Raises HalfAnswerError for an
    answer without completions, and ServerError for one in another form.
    """
    return [_read(choice, server, chat, tag) for choice in choices_of(answer, server)[:n]]


def reply_of(answer: Any, server: str, chat: bool, tag: str = THINKING) -> Reply:
    """The one text of an answer, None where it is of no use, and what it cost.

    A text that is cut at max_tokens is one; "" where it is all thought. Raises as `completions_of`.
    """
    [found] = completions_of(answer, 1, server, chat, tag)
    thought = found.cause.startswith(UNFINISHED)
    usage = answer.get("usage")
    used = usage if isinstance(usage, dict) else {}
    return Reply(
        text="" if thought else found.text,
        prompt_tokens=count(used.get("prompt_tokens")),
        tokens=count(used.get("completion_tokens")),
    )


def choices_of(answer: Any, server: str) -> list[Mapping[str, Any]]:
    """The choices of an answer, at least one, in the order of their index."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices:
        raise HalfAnswerError(
            f"{server}: the answer is no completion (JSON with `choices`); is generation.base-url "
            f"the address of an OpenAI-compatible server?"
        )
    found = [choice if isinstance(choice, dict) else {} for choice in choices]
    places = [choice.get("index") for choice in found]
    order = [place if isinstance(place, int) else number for number, place in enumerate(places)]
    return [found[i] for i in sorted(range(len(found)), key=order.__getitem__)]


def count(value: object) -> int | None:
    """A number of tokens; None for anything else, whatever a server says."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if isinstance(value, int) and whole and 0 <= value < MOST_TOKENS else None


def _read(choice: Mapping[str, Any], server: str, chat: bool, tag: str) -> Completion:
    content, reason = _content(choice, server, chat), choice.get("finish_reason")
    why = f" (finish_reason = {one_line(str(reason), 40)!r})"
    message = choice.get("message")
    if isinstance(message, dict) and message.get("refusal") and not content:
        return Completion(None, "refused by the model")
    if reason == FILTERED or content is None or (not content and reason == LENGTH):
        return Completion(None, f"without content{why}")
    text = without_thinking(content, tag)
    if text is None:
        return Completion(None, f"{UNFINISHED} <{tag}>{why}")
    # Half a pair of surrogates is no character, and could not be written down as UTF-8.
    return Completion(text.encode("utf-8", "replace").decode("utf-8"))


def _content(choice: Mapping[str, Any], server: str, chat: bool) -> str | None:
    """What a completion, or the answer in a chat, says; None: nothing. Raises ServerError."""
    message = choice.get("message") if chat else None
    if chat and isinstance(message, dict):
        content = message.get("content")
        if isinstance(content, list):  # of parts, of which some may be texts
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            texts = [part for part in parts if isinstance(part, str)]
            return "".join(texts) if texts else None
        if content is None or isinstance(content, str):
            return content
    text = choice.get("text")
    if not chat and isinstance(text, str):
        return text
    if not chat and text is None and choice.get("finish_reason") and "message" not in choice:
        return None
    raise ServerError(
        f"{server}: an answer without a message's `content`: does it offer chat?"
        if chat
        else f"{server}: a completion without `text`: it must offer /v1/completions; if it offers "
        "chat alone, set generation.chat = true",
        OTHER,
    )


def refused_parameter(words: str, left_out: Collection[str], tokens: str) -> str:
    """The key to change where a server's words refuse a parameter of ours; "" where they do not."""
    if not REFUSING.search(words.lower()):
        return ""
    unknown = re.search(r"unknown|unrecogni[sz]ed|unexpected|extra", words.lower())
    if tokens == "max_tokens" and (
        "max_completion_tokens" in words or (unknown and tokens in words)
    ):
        return "set generation.token-parameter = 'max-completion-tokens'"
    if tokens != "max_tokens" and tokens in words:
        return "set generation.token-parameter = 'max-tokens'"
    for name in OPTIONAL:
        quoted = name if len(name) > 1 else rf"['\"`]{name}['\"`]"
        if name not in left_out and re.search(rf"(?<!\w){quoted}(?!\w)", words):
            return f"set generation.leave-out = {', '.join([*sorted(left_out), name])!r}"
    return ""
