"""Which model a user means: a cell, a path, a hash, an identity, or a registered name with an alias or a version."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from afm.errors import UserError
from flows.audit.graph import Graph, Model
from flows.audit.runs import Run

ALIASES = {"sft": "sft", "rl": "dapo"}
"""Alias of a registered model -> the stage whose newest model it names."""
CHAMPION = "champion"
_NAME = re.compile(r"(afm-[a-z]+-[\w.]+)(?:[:@](\w+))?")
_HASH = re.compile(r"[0-9a-f]{6,32}(\.dir)?")
MAX_CANDIDATES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """A model as it stands in a registry: a name, a version, and the aliases that point to it now."""

    model: Model
    name: str
    version: int
    """From 1, by the start of the training run."""
    aliases: tuple[str, ...]

    def __str__(self) -> str:
        """Say how to ask for it."""
        marks = "".join(f" {self.name}:{alias}" for alias in self.aliases)
        return f"{self.name}@{self.version}{marks} ({self.model.run.cell}, {self.model.md5})"


def resolve(graph: Graph, current: Mapping[str, str], text: str) -> Model:
    """Find the one model that a text means.

    Args:
        graph: all runs.
        current: md5 by path, as the workspace's dvc.lock has it.
        text: what the user wrote.

    Raises:
        UserError: none or several; lists what there is.
    """
    models = graph.models()
    found = _find(graph, models, current, text.rstrip("/"))
    by_content = {model.md5: model for model in found}
    if len(by_content) == 1:
        return _preferred(found, current)
    if not models:
        raise UserError(
            "no model has been trained here: neither a run record nor dvc.lock names one"
        )
    if not by_content:
        raise UserError(
            f"no model {text!r}; a model is a cell (sft@mhqa-tiny), a path (data/models/sft/mhqa-tiny), an md5, "
            f"an identity, or a name (afm-mhqa-tiny:rl); there are:\n{_listed(graph, models)}"
        )
    raise UserError(
        f"{text!r} may mean several models:\n{_listed(graph, list(by_content.values()))}"
    )


def registered(graph: Graph) -> list[Registered]:
    """Return the models that SFT and reinforcement have made, as a registry would number them."""
    by_name: dict[str, list[Model]] = {}
    for model in graph.models():
        if model.run.stage in ALIASES.values():
            by_name.setdefault(model.run.name(), []).append(model)
    return [one for name, own in by_name.items() for one in _numbered(graph, name, own)]


def _numbered(graph: Graph, name: str, own: Sequence[Model]) -> Iterator[Registered]:
    newest = {model.run.stage: model for model in own}
    best = champion(graph, name)
    for version, model in enumerate(own, start=1):
        aliases = [alias for alias, stage in ALIASES.items() if newest.get(stage) is model]
        aliases += [CHAMPION] if best and best.md5 == model.md5 else []
        yield Registered(model=model, name=name, version=version, aliases=tuple(aliases))


def champion(graph: Graph, name: str) -> Model | None:
    """Return the model that the newest score of an agent and scale chose; None where no gate has decided."""
    scores = [run for run in graph.runs if run.stage == "score" and run.rl_passed is not None]
    own = [run for run in scores if run.name() == name]
    if not own:
        return None
    score = max(own, key=lambda run: run.ended)
    return judged(graph, score, "rl" if score.rl_passed else "sft")


def judged(graph: Graph, score: Run, variant: str) -> Model | None:
    """Return the model of a variant that a score judged: what its evaluation read, and a training stage wrote."""
    for _, _, maker in graph.upstream(score):
        if maker is None or maker.stage != "evaluate" or maker.axes.get("variant") != variant:
            continue
        for path, md5, trainer in graph.upstream(maker):
            if trainer is not None and path.startswith("data/models/"):
                return Model(path=path, md5=md5, run=trainer)
    return None


def _find(
    graph: Graph, models: Sequence[Model], current: Mapping[str, str], text: str
) -> list[Model]:
    named = _NAME.fullmatch(text)
    if named:
        return list(_by_name(graph, *named.groups()))
    if _HASH.fullmatch(text):
        return [m for m in models if m.md5.startswith(text) or m.run.identity == text]
    own = [m for m in models if text in (m.run.cell, m.path)]
    now = [m for m in own if current.get(m.path) == m.md5]
    return now or own[-1:]


def _by_name(graph: Graph, name: str, mark: str | None) -> Iterator[Model]:
    own = [one for one in registered(graph) if one.name == name]
    best = champion(graph, name)
    if mark == CHAMPION or (mark is None and best):
        yield from [best] if best else []
        return
    for one in own:
        if mark is None or mark in one.aliases or mark == str(one.version):
            yield one.model


def _preferred(found: Sequence[Model], current: Mapping[str, str]) -> Model:
    """Of several runs that made the same bytes, return the newest, one of the workspace's own paths first."""
    return max(found, key=lambda one: (current.get(one.path) == one.md5, one.run.started))


def _listed(graph: Graph, models: Sequence[Model]) -> str:
    names = {id(one.model.run): one for one in registered(graph)}
    lines = [
        f"  {names.get(id(model.run)) or f'{model.run.cell} ({model.md5})'}"
        for model in reversed(models)
    ]
    more = [f"  and {len(lines) - MAX_CANDIDATES} older"] if len(lines) > MAX_CANDIDATES else []
    return "\n".join([*lines[:MAX_CANDIDATES], *more])
