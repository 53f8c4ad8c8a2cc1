"""What an OpenAI-compatible server answers: completions, or what a model says in a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privsyn_flower.text.protocols import Reply
from privsyn_flower.text.serving.http_client import HalfAnswerError, ServerError

MOST_TOKENS = 2**31  # of an answer or a prompt: a number that is larger tells nothing
OTHER = 200  # status of an error: the server answered, in another language than ours


def texts_of(answer: Any, n: int, server: str, chat: bool) -> list[str]:
    """The texts of an answer in the order of their index, at most n.

    Raises HalfAnswerError for an answer without texts, and ServerError for one in another form.
    """
    texts = [_text(choice, server, chat) for choice in choices_of(answer, server)[:n]]
    found = [text for text in texts if text is not None]
    if len(found) < len(texts):
        raise ServerError(f"{server}: an answer without a message's `content`", OTHER)
    return found


def reply_of(answer: Any, server: str, chat: bool) -> Reply:
    """The one text of an answer, None where the server withheld it, and what it cost.

    A text that is cut at max_tokens is one. Raises as `texts_of`.
    """
    choice = choices_of(answer, server)[0]
    text = _text(choice, server, chat)
    if choice.get("finish_reason") == "content_filter":
        text = None
    usage = answer.get("usage")
    used = usage if isinstance(usage, dict) else {}
    return Reply(
        # Half a pair of surrogates is no character, and could not be written down as UTF-8.
        text=None if text is None else text.encode("utf-8", "replace").decode("utf-8"),
        prompt_tokens=_count(used.get("prompt_tokens")),
        tokens=_count(used.get("completion_tokens")),
    )


def choices_of(answer: Any, server: str) -> list[Mapping[str, Any]]:
    """The completions of an answer, at least one, in the order of their index."""
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


def _text(choice: Mapping[str, Any], server: str, chat: bool) -> str | None:
    """What a completion, or the answer in a chat, says; None: a message that says nothing."""
    message = choice.get("message") if chat else None
    if isinstance(message, dict) and message.get("content") is None:
        return None
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    if isinstance(text, str) and isinstance(message, dict) == chat:
        return text
    raise ServerError(
        f"{server}: an answer without a message's `content`: does it offer chat?"
        if chat
        else f"{server}: a completion without `text`: it must offer /v1/completions; if it offers "
        "chat alone, set generation.chat = true",
        OTHER,
    )


def _count(told: object) -> int | None:
    return told if isinstance(told, int) and 0 <= told < MOST_TOKENS else None
