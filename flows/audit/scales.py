"""`afm audit explain --scales`: which data the scales of an agent share, and where they part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flows.audit.graph import Model
from flows.audit.index import Index
from flows.audit.models import resolve
from flows.audit.render import short


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """One place in the chains of several scales."""

    path: str
    """With `<scale>` for the scale's name."""
    md5: dict[str, str]
    """By scale; a scale whose chain has no such place is not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scales:
    """The chains of one agent's models, laid over each other."""

    agent: str
    stage: str
    models: dict[str, Model]
    """By scale."""
    places: tuple[Shared, ...]


def compare(index: Index, text: str) -> Scales:
    """Lay the chains of all scales that have a model of the same stage and agent over each other.

    Raises:
        UserError: the text names no model, or several.
    """
    asked = resolve(index.graph, index.current, text)
    agent, stage = asked.run.axes.get("agent", ""), asked.run.stage
    models = {
        model.run.axes["scale"]: model
        for model in sorted(index.graph.models(), key=lambda one: _rank(index, one))
        if model.run.axes.get("agent") == agent and model.run.stage == stage
    }
    models[asked.run.axes["scale"]] = asked
    found: dict[str, dict[str, str]] = {}
    for scale, model in models.items():
        for run in index.graph.chain(model.run):
            for path, md5 in run.outs.items():
                place = path.replace(f"{agent}-{scale}", f"{agent}-<scale>")
                found.setdefault(place, {})[scale] = md5
    places = tuple(Shared(path=path, md5=md5) for path, md5 in found.items())
    return Scales(agent=agent, stage=stage, models=models, places=places)


def lines(scales: Scales) -> Iterator[str]:
    """Yield what is shared, then where the scales part."""
    names = list(scales.models)
    yield f"{scales.stage} models of agent {scales.agent} at scales {', '.join(names)}"
    if len(names) == 1:
        yield "no other scale has such a model here, so there is nothing to compare"
        return
    shared = [one for one in scales.places if len(set(one.md5.values())) == 1 and len(one.md5) > 1]
    apart = [one for one in scales.places if one not in shared]
    yield "the same bytes:" if shared else "nothing is shared"
    yield from (f"  {one.path}  md5 {short(_only(one))}  {_which(one, names)}" for one in shared)
    yield "apart:" if apart else "nothing is apart"
    for one in apart:
        yield f"  {one.path}"
        yield from (f"    {scale}: {short(md5)}" for scale, md5 in one.md5.items())


def _rank(index: Index, model: Model) -> tuple[bool, float]:
    return index.current.get(model.path) == model.md5, model.run.started


def _only(one: Shared) -> str:
    return next(iter(one.md5.values()))


def _which(one: Shared, names: Sequence[str]) -> str:
    return "all" if len(one.md5) == len(names) else f"only {', '.join(one.md5)}"
