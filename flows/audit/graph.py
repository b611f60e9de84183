"""The chain of stage runs: joined by content, so that a cached stage and one run by hand keep their place."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flows.audit.formats import TRAINERS
from flows.audit.runs import Run

Current = Mapping[str, str]
"""md5 by path, as the workspace's dvc.lock has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model: an output folder of a training stage."""

    path: str
    md5: str
    run: Run


class Graph:
    """All runs that records and locks tell of."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """Join `runs`; where record and lock speak of one run, the record counts."""
        own = sorted(runs, key=_order)
        recorded = [run for run in own if run.origin == "record"]
        known = {run.key for run in recorded}
        locked = {run.key: run for run in reversed(own) if run.key not in known}
        self.runs: tuple[Run, ...] = tuple(sorted([*recorded, *locked.values()], key=_order))
        self._makers: dict[str, list[Run]] = defaultdict(list)
        self._readers: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            for md5 in set(run.outs.values()):
                self._makers[md5].append(run)
            for md5 in set(run.deps.values()):
                self._readers[md5].append(run)

    def makers(self, md5: str) -> Sequence[Run]:
        """Return the runs that wrote this content, oldest first."""
        return self._makers.get(md5, [])

    def readers(self, md5: str) -> Sequence[Run]:
        """Return the runs that read this content, oldest first."""
        return self._readers.get(md5, [])

    def maker(self, path: str, md5: str, reader: Run) -> Run | None:
        """Return the run that wrote what another one read.

        Several may have written the same bytes; the one counts that wrote them to that path last before they were
        read. Never the reader itself, whatever it wrote.
        """
        others = [run for run in self.makers(md5) if run.key != reader.key]
        named = [run for run in others if path in run.outs] or others
        earlier = [run for run in named if run.started <= reader.started] or named
        return earlier[-1] if earlier else None

    def upstream(self, run: Run) -> Iterator[tuple[str, str, Run | None]]:
        """Yield what a run read: path, md5, and who wrote it; None for what no run wrote."""
        for path, md5 in run.deps.items():
            yield path, md5, self.maker(path, md5, run)

    def chain(self, last: Run) -> list[Run]:
        """Return a run and all that it rests on, each once, what is read before what reads it."""
        done: dict[int, Run] = {}
        above: set[int] = set()

        def visit(run: Run) -> None:
            if id(run) in done or id(run) in above:
                return
            above.add(id(run))
            for _, _, maker in self.upstream(run):
                if maker is not None:
                    visit(maker)
            done[id(run)] = run

        visit(last)
        return list(done.values())

    def downstream(self, path: str | None, md5: str) -> list[Run]:
        """Return every run that read a content, or what came of it, oldest first.

        Args:
            path: where it was read; None for anywhere.
            md5: the content.
        """
        waiting = [run for run in self.readers(md5) if path is None or run.deps.get(path) == md5]
        found = {id(run): run for run in waiting}
        while waiting:
            source = waiting.pop()
            for reader in (one for out in source.outs.values() for one in self.readers(out)):
                if id(reader) not in found and self._feeds(source, reader):
                    found[id(reader)] = reader
                    waiting.append(reader)
        return sorted(found.values(), key=_order)

    def _feeds(self, source: Run, reader: Run) -> bool:
        """Tell whether what a run read may be what another one wrote: the bytes, at the path where they were written.

        Bytes alone do not tell: two files that are empty, or hold `{}`, have nothing to do with each other.
        """
        written = set(source.outs.values())
        return any(
            source.outs.get(path) == md5
            or (md5 in written and not any(path in run.outs for run in self.makers(md5)))
            for path, md5 in reader.deps.items()
        )

    def models(self) -> list[Model]:
        """Return every model, oldest first; the same bytes from two runs are two models."""
        return [
            Model(path=path, md5=md5, run=run) for run in self.runs for path, md5 in _models(run)
        ]


def model_of(run: Run) -> Model | None:
    """Return the model that a run wrote, or None."""
    return next((Model(path=path, md5=md5, run=run) for path, md5 in _models(run)), None)


def _models(run: Run) -> Iterator[tuple[str, str]]:
    if run.stage in TRAINERS:
        yield from ((path, md5) for path, md5 in run.outs.items() if md5.endswith(".dir"))


def _order(run: Run) -> tuple[float, str, str]:
    return run.started, run.identity or "", run.cell
