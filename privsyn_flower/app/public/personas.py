"""Who writes on a phone, when and by which app: the five fixed variables of generated chats.

Gboard paper (Wu et al. 2024), section 3.2. Text is varied by these values and by the lists that a
model makes of them (`chats`), not by a high temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

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
