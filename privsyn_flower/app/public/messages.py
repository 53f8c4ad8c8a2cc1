"""Short chat messages of a model too small for conversations: prompts, and what is kept of answers.

The Gboard paper (Wu et al. 2024, section 3.2) asks for receivers, subjects and conversations, which
a model of a hundred million parameters cannot give. It can go on with a list. So a prompt is the
beginning of one: a persona, a mood and a subject in a heading, and a few messages that we wrote, in
several registers. What comes back is cut into messages and sifted; each cause is counted.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from privsyn_flower.app.public.chats import Persona

# Written for this purpose by the authors: nobody's messages.
TOPICS: Mapping[str, tuple[str, ...]] = {
    "saying hello": (
        "hey, how are you doing?",
        "good morning! did you sleep ok",
        "hi there :)",
        "Hello, nice to meet you. Where are you from?",
        "not much, you?",
        "I'm fine, thanks. A bit bored to be honest",
    ),
    "saying goodbye": (
        "ok I have to go now, talk later",
        "good night, sleep well",
        "It was nice talking to you!",
        "see you tomorrow then",
        "bye, say hi to your mom",
        "are you leaving already?",
    ),
    "food": (
        "I had pasta for lunch and now I'm so sleepy",
        "what's your favourite food?",
        "can't cook at all lol",
        "I burned the rice again",
        "that sounds delicious",
        "Do you like spicy things?",
    ),
    "work": (
        "just got home from work, what a day",
        "what do you do for a living?",
        "my boss wants me to come in on saturday",
        "I start my new job next week and I'm nervous",
        "same here, too many meetings",
        "I work at a bakery",
    ),
    "school": (
        "i have a maths test tomorrow and i didn't study at all",
        "What are you studying?",
        "our teacher was sick so we went home early",
        "I still have two years until I graduate",
        "did you finish the homework",
        "ugh I hate group projects",
    ),
    "films and series": (
        "have you seen anything good lately?",
        "the ending made me cry",
        "I'm watching a show about ghosts, it's so bad that it's funny",
        "no spoilers please!!",
        "I prefer comedies",
        "we fell asleep in the middle of it",
    ),
    "music": (
        "what kind of music do you listen to?",
        "I've been playing the guitar for three years",
        "this song is stuck in my head",
        "mostly rock, and a bit of jazz",
        "i cant sing to save my life haha",
        "The concert was amazing, we danced all night",
    ),
    "games": (
        "wanna play tonight?",
        "I lost five times in a row",
        "my brother is better at it than me",
        "which games do you play?",
        "I like chess but I'm slow",
        "one more round and then I go to bed, promise",
    ),
    "the weather": (
        "it's been raining all day here",
        "Is it cold where you live?",
        "too hot to think",
        "We finally have snow!",
        "i forgot my umbrella of course",
        "I like it when it's windy",
    ),
    "family": (
        "do you have any brothers or sisters?",
        "my grandma is visiting us this week",
        "my little sister is so annoying sometimes lol",
        "I have two kids, they are four and six",
        "my dad tells the worst jokes",
        "aww, how old is she?",
    ),
    "pets": (
        "lol my dog just stole my sandwich",
        "do you have any pets?",
        "The cat woke me up at five again",
        "I always wanted a rabbit",
        "he's so cute, what's his name",
        "we had to take her to the vet but she's ok now",
    ),
    "travel": (
        "where would you go if you could go anywhere?",
        "I missed my train :(",
        "we're going to the sea in july",
        "I've never been on a plane",
        "It was beautiful, but the hotel was terrible",
        "how long are you staying there?",
    ),
    "health": (
        "I have a headache since this morning",
        "hope you feel better soon",
        "My back hurts from sitting all day",
        "are you still sick?",
        "i should really eat more vegetables",
        "went to the dentist, it wasn't that bad",
    ),
    "sleep": (
        "I can't sleep",
        "why are you still awake?",
        "slept like ten hours and i'm still tired",
        "I had a weird dream about a talking fish",
        "i need coffee",
        "It's 2 am here, I should go to bed",
    ),
    "sports": (
        "do you play any sports?",
        "we lost 3 to 0, it was embarrassing",
        "I go running twice a week",
        "my legs are so sore today",
        "not really, I just watch",
        "I used to swim when I was a kid",
    ),
    "hobbies": (
        "What do you do in your free time?",
        "I like drawing, mostly animals",
        "i started knitting and it's so relaxing",
        "I collect old postcards",
        "that's cool, how did you learn it?",
        "mostly reading, and I bake on weekends",
    ),
    "weekend plans": (
        "any plans for the weekend?",
        "we could go to the park if it's sunny",
        "nothing special, just staying home",
        "sure, what time?",
        "I'm helping a friend move on sunday",
        "can't, I promised to visit my parents",
    ),
    "feelings": (
        "I'm really happy today and I don't even know why",
        "kind of sad tbh",
        "sorry, I'm just stressed right now",
        "I miss my friends",
        "that makes me so angry",
        "are you okay?",
    ),
    "love": (
        "I think I like someone",
        "do you have a girlfriend?",
        "We've been together for two years",
        "she never answered my message",
        "we broke up last month, it's fine",
        "aww that's so sweet",
    ),
    "friends": (
        "my best friend moved away last year",
        "I don't know many people here",
        "who else is coming?",
        "we've known each other since kindergarten",
        "she's always late haha",
        "You're a good listener, you know",
    ),
    "money and shopping": (
        "I need new shoes",
        "how much was it?",
        "I'm broke until friday lol",
        "bought a jacket, now I don't like it anymore",
        "It was on sale so I took two",
        "saving up for a bike",
    ),
    "home": (
        "I have to clean my room today",
        "the neighbours are so loud",
        "do you live alone?",
        "we just moved to a bigger apartment",
        "My plants keep dying",
        "the heating is broken again",
    ),
    "phones and computers": (
        "my phone is at 3%",
        "the internet is so slow today",
        "sorry, I didn't see your message",
        "which app do you use for photos?",
        "I broke my screen again",
        "wait, it's not loading",
    ),
    "short answers": (
        "haha yeah",
        "really? why?",
        "i don't know",
        "same",
        "oh wow, that's great!",
        "maybe later",
    ),
    "what the other person thinks": (
        "what do you think?",
        "do you believe in ghosts?",
        "would you rather live in a city or a village?",
        "What makes you laugh?",
        "are you more of a morning person?",
        "tell me something about you",
    ),
    "birthdays and holidays": (
        "happy birthday!!",
        "what do you want for your birthday?",
        "We are having the whole family over for dinner",
        "I still need to buy presents",
        "my birthday is in march",
        "so much cake, I can't move",
    ),
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
