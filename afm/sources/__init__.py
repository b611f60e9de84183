"""Data sources: facts about entities, and generators of tasks for the code tool."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from afm.errors import UserError
from afm.sources import elements, functions, geography, reasoning
from afm.sources.attribution import Attribution
from afm.sources.graph import Entity
from afm.sources.task import Family

__all__ = ["SOURCES", "Attribution", "FactSource", "TaskSource", "choose_sources"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FactSource:
    """A source of entities with facts: passages and questions are made of them."""

    load: Callable[[int], tuple[Entity, ...]]
    """From the most cities per country to entities."""
    attributions: tuple[Attribution, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSource:
    """A source of tasks that are solved by a program."""

    families: tuple[Family, ...]
    attributions: tuple[Attribution, ...]


SOURCES: dict[str, FactSource | TaskSource] = {
    "geography": FactSource(load=geography.load_geography, attributions=geography.ATTRIBUTIONS),
    "elements": FactSource(load=elements.load_elements, attributions=elements.ATTRIBUTIONS),
    "reasoning_gym": TaskSource(families=reasoning.FAMILIES, attributions=reasoning.ATTRIBUTIONS),
    "functions": TaskSource(families=functions.FAMILIES, attributions=()),
}
"""Names in params `prepare.sources` and `prepare.exclude.sources`."""


def choose_sources(
    names: Sequence[str], excluded: Sequence[str], *, where: str
) -> dict[str, FactSource] | dict[str, TaskSource]:
    """Return the named sources without the excluded ones, in the order of `SOURCES`.

    Args:
        names: Value of params `prepare.<where>`.
        excluded: Value of params `prepare.exclude.sources`.
        where: Key below `prepare`, for messages.

    Raises:
        UserError: an unknown name, none left, or facts and tasks mixed in one agent.
    """
    unknown = sorted({*names, *excluded} - SOURCES.keys())
    if unknown:
        raise UserError(
            f"unknown source {', '.join(map(repr, unknown))} in prepare.{where} or "
            f"prepare.exclude.sources; known: {', '.join(SOURCES)}"
        )
    chosen = {key: SOURCES[key] for key in SOURCES if key in names and key not in excluded}
    facts = {key: source for key, source in chosen.items() if isinstance(source, FactSource)}
    tasks = {key: source for key, source in chosen.items() if isinstance(source, TaskSource)}
    if facts and tasks:
        raise UserError(
            f"prepare.{where} mixes sources of facts ({', '.join(facts)}) with sources of tasks "
            f"({', '.join(tasks)}); keep one sort"
        )
    if not chosen:
        raise UserError(
            f"prepare.exclude.sources {list(excluded)} leaves none of prepare.{where} "
            f"{list(names)}; keep one"
        )
    return facts or tasks
