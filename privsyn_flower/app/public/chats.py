"""Chats by an instruction model: what it is asked, and how its answers are read.

Gboard paper (Wu et al. 2024), section 3.2: of a persona, a list of receivers; of each receiver, a
list of subjects; of each subject, a conversation. Section 3.3: an article becomes a conversation.
All words to the model are in this file, and are ours. Unlike the paper's, they ask for one message
on each line, after its writer's name, so that turns can be told apart (`turns`).
"""

from __future__ import annotations

import json
import re
from collections import Counter

from privsyn_flower.app.public.personas import Persona

LONGEST_ITEM = 200  # characters: a longer line is an explanation, or a refusal
# Characters of a line that are looked at, whatever the model wrote: for an item, and for a name.
ITEM_WITHIN, NAME_WITHIN = 2000, 200

# Where and when, for all three requests of a chain: the same person in the same moment.
_SCENE = (
    "Put yourself in the place of a {gender} person who is {age}. It is {time} on {day}, and you "
    "have {app} open on your phone, about to write to {receiver}."
)
_LIST = " One on each line, in a few words, without repetitions and without any other text."
_FORM = (
    " One message on each line, after the name of its writer and a colon. Give the messages and "
    "nothing else."
)
# Receivers: whom such a person writes to. The model knows that better than a list of ours.
_RECEIVERS = " Who might that be? List the people and groups that come to mind." + _LIST
# Topics: what these two have to say to each other, and on this day.
_TOPICS = " What might it be about? List the subjects that come to mind." + _LIST
# A conversation: both sides of it, as they would be typed.
_CONVERSATION = (
    " It is about this: {topic}. Write down the whole conversation that follows between the two of "
    "you, as you would type it on your phones, and call yourself Me." + _FORM
)
# Conversion: chats alone use few words; an article brings its own (section 3.3, Table 2).
_CONVERT = (
    "Turn the text below into a conversation between two people who write to each other on their "
    "phones. Let them mention as much of what it says as possible." + _FORM + "\n\nText:\n{text}"
)


def receivers_prompt(persona: Persona) -> str:
    """The first request of a chain: whom the persona writes to."""
    return _scene(persona, "somebody") + _RECEIVERS


def topics_prompt(persona: Persona, receiver: str) -> str:
    """The second: what about."""
    return _scene(persona, receiver) + _TOPICS


def conversation_prompt(persona: Persona, receiver: str, topic: str) -> str:
    """The third: what the two write."""
    return _scene(persona, receiver) + _CONVERSATION.format(topic=topic)


def convert_prompt(text: str) -> str:
    """A public text -> the request for a conversation that has its details."""
    return _CONVERT.format(text=text.strip())


def _scene(persona: Persona, receiver: str) -> str:
    return _SCENE.format(**persona._asdict(), receiver=receiver)


# What comes back

_BULLET = re.compile(r"\s*(?:\(?\d{1,3}[.):]|[-*•–—·+])\s+|\s*\(?\d{1,3}[.)](?=\D)")
_BOLD = re.compile(r"\*\*\s*(.+?)\s*\*\*")
_QUOTES = "\"'`“”‘’«»"


def parse_list(answer: str, most: int, *, cut: bool = False) -> list[str]:
    """The distinct items of a list that a model wrote: at most `most`, in its order.

    Numbered and bulleted lines, or else all lines, one line with commas, or a JSON array. What is
    in bold at an item's beginning is the item. Items that differ in case or quotes only are one.
    cut: the answer ended at its most tokens, so its last line is left out unless it is the only.
    """
    lines = _json_array(answer)
    if lines is None:
        lines = [line.strip() for line in answer.splitlines()]
        lines = [line for line in lines if line and not line.endswith(":")]  # no headings
        if cut and len(lines) > 1:
            del lines[-1]
        if marked := [line for line in lines if _BULLET.match(line)]:
            lines = marked
        elif len(lines) == 1:
            lines = re.split(r"[,;]\s", lines[0])
    items: dict[str, str] = {}
    for line in lines:
        item = _item(line)
        if item and len(item) <= LONGEST_ITEM:
            items.setdefault(item.casefold(), item)
    return list(items.values())[:most]


def _json_array(answer: str) -> list[str] | None:
    """The strings of an answer that is a JSON array, perhaps in a block of code; None for none."""
    text = re.sub(r"\A```\w*|```\Z", "", answer.strip()).strip()
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return [item for item in found if isinstance(item, str)]


def _item(line: str) -> str:
    """A line of a list without number, bullet, bold, quotes and full stop; "" for none."""
    text = " ".join(line[:ITEM_WITHIN].split())
    bullet = _BULLET.match(text)
    text = text[bullet.end() :].strip() if bullet else text
    if text.startswith("```"):
        return ""
    if bold := _BOLD.match(text):
        text = bold[1]
    text = " ".join(text.replace("**", "").split())
    return text.strip(_QUOTES + " ").rstrip(".:,;").strip(_QUOTES + " ")


# A writer's name and a colon; a time before or after it, and bold around any of it.
_TURN = re.compile(
    r"""\s*(?:[-•]\s+)?(?:[\[(][^\])]{1,20}[\])]\s*)?
    (?P<bold>\*\*|__|\*)?\s*
    (?P<role>[^\W\d_][\w .,'’&/-]{0,38}|\[[^\]]{1,38}\])(?:[\[(][^\])]{1,30}[\])])?
    \s*(?:\*\*|__|\*)?\s*:(?!//)\s*(?:\*\*|__|\*)?\s*""",
    re.VERBOSE,
)
_WORDS_OF_NAME = 5


def turns(conversation: str, *, cut: bool = False) -> list[str]:
    """A conversation -> what is said in each turn, without its writer's name; none is empty.

    A line without a name goes on with the turn before it; lines before the first name are no part
    of the conversation. Where bold names are, only those are names; else the first two names are,
    and those that come again, so that "Note: bring milk" stays as it is said. Without any name,
    each line is a turn. cut: the answer ended at its most tokens, so its last turn is left out,
    unless it is the only one. Source: section C.1, each turn is an example.
    """
    lines = [" ".join(line.split()) for line in conversation.splitlines()]
    lines = [line for line in lines if line and not line.startswith("```")]
    found = [_turn(line) for line in lines]
    names = _speakers(found)
    said: list[list[str]] = []
    for line, match in zip(lines, found, strict=True):
        if match is not None and _name(match) in names:
            said.append([line[match.end() :]])
        elif not names:
            said.append([line])
        elif said:
            said[-1].append(line)
    if cut and len(said) > 1:
        del said[-1]
    cleaned = (" ".join(" ".join(parts).replace("**", "").split()) for parts in said)
    return [text for text in cleaned if text]


def _turn(line: str) -> re.Match[str] | None:
    match = _TURN.match(line[:NAME_WITHIN])
    if match is None or len(match["role"].split()) > _WORDS_OF_NAME:
        return None
    return match


def _name(match: re.Match[str]) -> str:
    return " ".join(match["role"].split()).casefold()


def _speakers(found: list[re.Match[str] | None]) -> set[str]:
    """Who takes part in a conversation, of all that stands before a colon."""
    matches = [match for match in found if match is not None]
    if bold := [match for match in matches if match["bold"]]:
        return {_name(match) for match in bold}
    times = Counter(_name(match) for match in matches)
    return set(list(times)[:2]) | {name for name, count in times.items() if count > 1}
