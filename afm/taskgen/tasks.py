"""Queries for the code tool: families take turns; some families are only ever held out."""

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence

from afm.errors import UserError
from afm.ids import derived_seed
from afm.params.prepare import PrepareParams
from afm.sources.program import printed
from afm.sources.task import Family, Side, Task
from afm.taskgen.questions import Questions, Split, for_split
from afm.taskgen.split import held_out_clusters
from afm.types import Query, SolutionStep, make_query


def build_tasks(
    families: Mapping[str, Sequence[Family]], params: PrepareParams, *, agent: str
) -> Questions:
    """Draw the queries of a code agent.

    Held-out tasks come from all families alike: from those that training never sees, and from
    parameters of the others that it never sees.

    Args:
        families: Source name -> its families.
        params: Section `prepare`.
        agent: Name of the agent.

    Raises:
        UserError: the families have too few tasks for `prepare.counts`.
    """
    named = [(source, family) for source, group in families.items() for family in group]
    clusters = [f"{source}:{family.name}" for source, family in named]
    unseen = held_out_clusters(clusters, params.held_out_entities, params.seed)
    seen = [pair for pair, name in zip(named, clusters, strict=True) if name not in unseen]
    counts = params.counts[agent]
    maker = _Maker(params=params, agent=agent)
    evaluated = maker.take(named, counts.eval, held_out=True)
    trained = maker.take(seen, counts.sft + counts.rl, held_out=False)
    trained.sort(key=lambda query: derived_seed(params.seed, "deal", query.query_id))
    splits: dict[Split, list[Query]] = {
        "sft": trained[: counts.sft],
        "rl": trained[counts.sft :],
        "eval": evaluated,
    }
    return Questions(
        queries={split: for_split(queries, split) for split, queries in splits.items()},
        dropped=maker.dropped,
        held_out=unseen,
    )


class _Maker:
    def __init__(self, *, params: PrepareParams, agent: str) -> None:
        self._params = params
        self._agent = agent
        self._asked: set[str] = set()
        self.dropped: Counter[str] = Counter()

    def take(
        self, named: Sequence[tuple[str, Family]], wanted: int, *, held_out: bool
    ) -> list[Query]:
        streams = deque(self._queries(source, family, held_out) for source, family in named)
        queries: list[Query] = []
        while streams and len(queries) < wanted:
            query = next(streams[0], None)
            if query is None:
                streams.popleft()
                continue
            queries.append(query)
            streams.rotate(-1)
        if len(queries) < wanted:
            side = "held-out" if held_out else "training"
            raise UserError(
                f"only {len(queries)} of {wanted} {side} tasks can be made: lower prepare.counts."
                f"{self._agent} or change prepare.held_out_entities or prepare.sources"
            )
        return queries

    def _queries(self, source: str, family: Family, held_out: bool) -> Iterator[Query]:
        side = Side(
            seed=derived_seed(self._params.seed, source, family.name),
            held_out=held_out,
            share=self._params.held_out_entities,
        )
        for task in family.make(side):
            made = self._make(source, family, task)
            if isinstance(made, Query):
                yield made
            else:
                self.dropped[made] += 1

    def _make(self, source: str, family: Family, task: Task) -> Query | str:
        if task.question in self._asked:
            return "repeated"
        self._asked.add(task.question)
        if any(_stands_in(answer, task.question) for answer in task.answers):
            return "answer_in_question"
        output = printed(task.program)
        if task.answers and output not in task.answers:
            return "program_fails"
        step = SolutionStep(
            tool="code", argument=f"```py\n{task.program}\n```", finds=output, subject=family.name
        )
        query = make_query(
            agent=self._agent,
            question=task.question,
            answers=task.answers,
            source=source,
            split="sft",
            hops=1,
            phrasing="-".join(filter(None, (family.name, task.wording))),
            entities=(),
            solution=(step,),
            entry_point=task.entry_point,
            tests=task.tests,
        )
        return "excluded" if self._params.exclude.leaves_out(query) else query


def _stands_in(answer: str, question: str) -> bool:
    """Tell whether a question can be answered with a word of its own, without any work."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", question, re.IGNORECASE) is not None
