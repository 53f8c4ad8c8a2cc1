"""What an instruction model is asked about public text, and how its answers are read.

Gboard paper (Wu et al. 2024). Section 3.1, the filter: is the subject of a text something that
people write about on their phones? Section 3.2, chats: of a persona, a list of receivers; of each
receiver, a list of subjects; of each subject, a conversation. Text is varied by a persona's five
fixed variables and by these lists, not by a high temperature. Section 3.3: an article becomes a
conversation. All words to the model are in this file, and are ours. Unlike the paper's, they ask
for one message on each line, after its writer's name, so that turns can be told apart (`turns`).

A model of a hundred million parameters cannot give receivers, subjects and conversations, but it
can go on with a list: of it short messages are asked for. A prompt is the beginning of one: a
persona, a mood and a subject in a heading, and a few messages that we wrote, in several registers.
What comes back is cut into messages and sifted; each cause is counted.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

GENDERS = ("male", "female")
# 15 to 55 year by year, and three groups.
AGES = (
    *(f"{age} years old" for age in range(15, 56)),
    "between 55 and 59 years old",
    "between 60 and 64 years old",
    "over 65 years old",
)
TIMES = ("morning", "afternoon", "night")
# Eleven, of which the paper names New Year's Day alone: the other ten are the public holidays of
# the United States, whose population it begins with.
HOLIDAYS = (
    "New Year's Day",
    "Martin Luther King Jr. Day",
    "Presidents' Day",
    "Memorial Day",
    "Juneteenth",
    "Independence Day",
    "Labor Day",
    "Columbus Day",
    "Veterans Day",
    "Thanksgiving",
    "Christmas Day",
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SEASONS = ("spring", "summer", "autumn", "winter")
DAYS = (
    *HOLIDAYS,
    "a vacation day",
    *(f"a {weekday} in {season}" for weekday, season in product(WEEKDAYS, SEASONS)),
)
APPS = (
    "Android Messages",
    "Facebook Messenger",
    "Snapchat",
    "Instagram",
    "WhatsApp",
    "Discord",
    "Telegram",
)


class Persona(NamedTuple):
    """One value of each variable, worded as a prompt has it."""

    gender: str
    age: str
    time: str
    day: str
    app: str


# 2 x 44 x 3 x 40 x 7 = 73,920.
PERSONAS: Sequence[Persona] = tuple(
    Persona(*values) for values in product(GENDERS, AGES, TIMES, DAYS, APPS)
)


def draw(count: int, rng: np.random.Generator) -> list[Persona]:
    """`count` different personas, uniformly; of one generator, fewer are the first of more.

    Raises ValueError for more than there are.
    """
    if not 0 <= count <= len(PERSONAS):
        raise ValueError(
            f"chat.personas = {count}: there are {len(PERSONAS):,} different ones; lower it"
        )
    return [PERSONAS[place] for place in rng.permutation(len(PERSONAS))[:count].tolist()]


JUDGE_TEMPERATURE = 0.0  # the likelier of two digits; the paper does not say

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


def _speakers(candidates: list[re.Match[str] | None]) -> set[str]:
    """Who takes part in a conversation, of all that stands before a colon."""
    matches = [match for match in candidates if match is not None]
    if bold := [match for match in matches if match["bold"]]:
        return {_name(match) for match in bold}
    times = Counter(_name(match) for match in matches)
    return set(list(times)[:2]) | {name for name, count in times.items() if count > 1}


# Written for this purpose by the authors: nobody's messages.
_SHOWN = Path(__file__).with_name("messages.json")
TOPICS: Mapping[str, tuple[str, ...]] = {
    topic: tuple(texts) for topic, texts in json.loads(_SHOWN.read_text("utf-8")).items()
}
MOODS = (
    "happy", "tired", "bored", "friendly", "curious", "sad", "excited", "nervous", "calm", "funny",
    "annoyed", "shy", "grateful", "busy", "hopeful", "worried",
)  # fmt: skip
SHOWN, OTHERS = 4, 2  # messages in a prompt: of its topic, and of other topics


END = re.compile(r"\n(?!-)")  # where a list ends: at a line that is no item


def message_prompt(persona: Persona, rng: np.random.Generator) -> tuple[str, str]:
    """(topic, prompt): the beginning of a list of messages, which the model goes on with."""
    topic = list(TOPICS)[rng.integers(len(TOPICS))]
    others = [text for name, texts in TOPICS.items() if name != topic for text in texts]
    shown = [*rng.permutation(TOPICS[topic])[:SHOWN], *rng.permutation(others)[:OTHERS]]
    who = {"male": "man", "female": "woman"}.get(persona.gender, "person")
    mood = MOODS[rng.integers(len(MOODS))]
    scene = f"from a {who}, {persona.age}, feeling {mood}, {persona.time} of {persona.day}"
    heading = f"Short text messages about {topic} to a friend ({scene}):"
    return topic, "\n".join([heading, *(f"- {text}" for text in rng.permutation(shown)), "-"])


def items(answer: str, *, cut: bool) -> list[str]:
    """The messages of an answer that goes on with a list, up to the first line that is no item.

    cut: the answer ended at its most tokens, so a list that was going on loses its last message.
    """
    end = END.search(answer)
    lines = answer[: end.start() if end else None].split("\n")
    if cut and not end:
        del lines[-1]
    return [" ".join(line.removeprefix("-").split()) for line in lines]


# Of an answer that talks about the task, or as an assistant.
_ASIDE = re.compile(
    r"\b(text messages? about|short messages?|as an ai|language model|sure, here|here (?:is|are) "
    r"(?:a|some|the) (?:list|message|text)|\(from a (?:wo)?man|"
    r"feeling \w+, (?:morning|afternoon|night))\b|\[[^\]]*\]",  # the heading's scene; [city]
    re.IGNORECASE,
)
# What a package should not put into the mouths of invented people, some of whom are 15.
RUDE = re.compile(
    r"\b(sex|sexy|sexual|horny|naked|nudes?|porn|virgins?|fuck\w*|shit\w*|bitch\w*|asshole|whore|"
    r"slut|bed with (?:you|me|him|her)|rape\w*|suicid\w*|kill (?:yourself|myself))\b",
    re.IGNORECASE,
)
# What may be somebody's, and names of lists: addresses, numbers, links, handles.
_ADDRESS = re.compile(r"https?:|www\.|@|\d{5,}|\b\d{3}[-. ]\d{3,4}\b|#\w", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_HELD = re.compile(r"([^\W\d_])\1{6}")  # a letter held down
LONGEST = 60  # words of a message


class Sieve:
    """Which messages are kept, and why another is not. kept: those of before."""

    def __init__(self, kept: Iterable[str] = ()) -> None:
        self._seen = {_bare(text) for text in kept}
        self._shown = {_bare(text) for texts in TOPICS.values() for text in texts}

    def sift(self, text: str) -> tuple[str, str]:
        """A message -> (why it is left out, or "" if it is kept; the message as it is kept)."""
        words = [word.lower() for word in _WORD.findall(text)]
        bare = _bare(text)
        if cause := _fault(text, words):
            return cause, text
        if bare in self._shown:
            return "written by us", text
        if bare in self._seen:
            return "repeated", text
        self._seen.add(bare)
        return "", text


def _fault(text: str, words: list[str]) -> str:
    if not words:
        return "without words"
    if len(words) > LONGEST:
        return "too long"
    if _ASIDE.search(text):
        return "about the task"
    if _ADDRESS.search(text):
        return "with an address or number"
    if RUDE.search(text):
        return "sexual or abusive"
    if any(unicodedata.category(letter)[0] == "L" and not letter.isascii() for letter in text):
        return "with letters beyond English"
    return "going round" if _HELD.search(text) or goes_round(words) else ""


def goes_round(words: list[str]) -> bool:
    """Whether a text repeats itself: a word three times in a row, three words three times, four
    words twice, or more than half of its words are repetitions (of ten words and more)."""
    if any(len(set(words[at : at + 3])) == 1 for at in range(len(words) - 2)):
        return True
    if _most(words, 3) >= 3 or _most(words, 4) >= 2:
        return True
    return len(words) >= 10 and 2 * len(set(words)) < len(words)


def _most(words: list[str], run: int) -> int:
    """How often the run of so many words that occurs most often occurs."""
    runs = Counter(tuple(words[at : at + run]) for at in range(len(words) - run + 1))
    return max(runs.values(), default=0)


def _bare(text: str) -> str:
    """What two messages have in common that differ by case, digits and punctuation alone."""
    return " ".join(_WORD.findall(text.lower()))
