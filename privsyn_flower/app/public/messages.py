"""Short chat messages of a model too small for conversations: prompts, and what is kept of answers.

The Gboard paper (Wu et al. 2024, section 3.2) asks for receivers, subjects and conversations, which
a model of a hundred million parameters cannot give. It can go on with a list. So a prompt is the
beginning of one: a persona, a mood and a subject in a heading, and a few messages that we wrote, in
several registers. What comes back is cut into messages and sifted; each cause is counted.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from privsyn_flower.app.public.chats import Persona

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
