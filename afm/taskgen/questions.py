"""Questions over a fact graph: three splits, their mix of hops and forms, and solutions."""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from afm.errors import UserError
from afm.ids import derived_seed
from afm.params.prepare import PrepareParams
from afm.sources.graph import Graph, unaccented
from afm.taskgen.depth import chains_by_depth
from afm.taskgen.draw import Drawer
from afm.taskgen.phrasing import ask, letters, phrasing_id
from afm.taskgen.problem import Chain, Form, Problem
from afm.taskgen.solve import Verifier
from afm.taskgen.split import held_out_clusters, quotas
from afm.taskgen.width import widen
from afm.types import Query, make_query

Split = Literal["sft", "rl", "eval"]
COMBINED_HOPS = {2: 0.7, 4: 0.3}
"""Hops of two merged chains -> share of the combined questions."""
WIDEN_ROUNDS = 6
"""How often the chains of a graph are paired anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """The queries of each split, and why problems were dropped."""

    queries: Mapping[Split, list[Query]]
    dropped: Mapping[str, int]
    held_out: frozenset[str]
    """Clusters of entities, or families of tasks, that only held-out queries may use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The problems of one side of the held-out split."""

    chains: Mapping[int, list[Problem]]
    """By hops."""
    combined: Mapping[int, Mapping[Form, list[Problem]]]
    """By hops, then form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """How many queries one split takes of each kind."""

    chains: Mapping[int, int]
    combined: Mapping[int, int]


def build_questions(
    graph: Graph, params: PrepareParams, *, agent: str, verifier: Verifier
) -> Questions:
    """Draw the queries of one agent.

    Raises:
        UserError: the graph has too few problems for `prepare.counts`.
    """
    counts = params.counts[agent]
    clusters = [entity.cluster for entity in graph.entities.values()]
    held = held_out_clusters(clusters, params.held_out_entities, params.seed)
    depths = chains_by_depth(graph, params.max_hops)
    maker = _Maker(params=params, agent=agent, verifier=verifier)
    train, held_out = Drawer(make=maker.train), Drawer(make=maker.held_out)
    pools = {side: _pool(depths, held, side, params.seed) for side in (False, True)}
    quotas_of = {split: _quota(count, params) for split, count in dict(counts).items()}
    training = _Side(name="training", agent=agent, seed=params.seed, drawer=train)
    sft, rl = training.draw(pools[False], [quotas_of["sft"], quotas_of["rl"]])
    held_side = _Side(name="held-out", agent=agent, seed=params.seed, drawer=held_out)
    (evaluated,) = held_side.draw(pools[True], [quotas_of["eval"]])
    return Questions(
        queries={
            "sft": for_split(sft, "sft"),
            "rl": for_split(rl, "rl"),
            "eval": for_split(evaluated, "eval"),
        },
        dropped=train.dropped + held_out.dropped,
        held_out=held,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Maker:
    """Turns problems into queries."""

    params: PrepareParams
    agent: str
    verifier: Verifier

    def train(self, problem: Problem) -> Query | str:
        return self._make(problem, held_out=False)

    def held_out(self, problem: Problem) -> Query | str:
        return self._make(problem, held_out=True)

    def _make(self, problem: Problem, *, held_out: bool) -> Query | str:
        solution = self.verifier.solution(problem)
        if solution is None:
            return "tool_misses"
        # By the problem's own hash: leaving one query out changes the wording of no other.
        choice = derived_seed(self.params.seed, "phrasing", *problem.key)
        allowed = letters(problem, held_out=held_out)
        letter = allowed[choice % len(allowed)]
        query = make_query(
            agent=self.agent,
            question=ask(problem, letter),
            answers=_accepted(problem.answer),
            source=problem.branches[0].source,
            split="eval" if held_out else "sft",
            hops=len(problem.hops),
            phrasing=phrasing_id(problem, letter),
            entities=problem.names,
            solution=solution,
        )
        return "excluded" if self.params.exclude.leaves_out(query) else query


def _accepted(answer: str) -> tuple[str, ...]:
    """Return the answer, and how it is typed without accents."""
    return tuple(dict.fromkeys((answer, unaccented(answer))))


def _quota(total: int, params: PrepareParams) -> Quota:
    hops = range(1, params.max_hops + 1)
    by_hops = dict(zip(hops, quotas(total, params.hop_shares[: params.max_hops]), strict=True))
    allowed = {depth: share for depth, share in COMBINED_HOPS.items() if depth in by_hops}
    combined_total = round(total * params.combined_share) if allowed else 0
    shares = quotas(combined_total, allowed.values()) if allowed else []
    combined = {
        depth: min(count, by_hops[depth]) for depth, count in zip(allowed, shares, strict=True)
    }
    chains = {depth: count - combined.get(depth, 0) for depth, count in by_hops.items()}
    return Quota(chains=chains, combined=combined)


def _pool(
    depths: Mapping[int, Sequence[Chain]], held: frozenset[str], is_held: bool, seed: int
) -> Pool:
    rng = random.Random(derived_seed(seed, "pool", str(is_held)))
    own = {
        depth: [chain for chain in chains if (chain.cluster in held) == is_held]
        for depth, chains in depths.items()
    }
    for chains in own.values():
        rng.shuffle(chains)
    singles = {
        depth: [Problem(form="chain", branches=(c,), answer=c.end.value) for c in chains]
        for depth, chains in own.items()
    }
    combined = {2 * depth: _widened(own[depth], rng) for depth in own if 2 * depth in COMBINED_HOPS}
    return Pool(chains=singles, combined=combined)


def _widened(chains: Sequence[Chain], rng: random.Random) -> dict[Form, list[Problem]]:
    rounds = [widen(chains, rng) for _ in range(WIDEN_ROUNDS)]
    return {form: [problem for found in rounds for problem in found[form]] for form in rounds[0]}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Side:
    """One side of the held-out split."""

    name: str
    agent: str
    seed: int
    drawer: Drawer

    def draw(self, pool: Pool, splits: Sequence[Quota]) -> list[list[Query]]:
        """Draw for one or two splits together, so that neither gets the better problems."""
        drawn: list[list[Query]] = [[] for _ in splits]
        for depth, problems in pool.chains.items():
            wanted = [quota.chains[depth] for quota in splits]
            found = self.drawer.draw(problems, sum(wanted))
            self._deal(found, wanted, drawn, f"questions of {depth} hops")
        for depth, forms in pool.combined.items():
            wanted = [quota.combined.get(depth, 0) for quota in splits]
            found = self._draw_forms(forms, sum(wanted))
            self._deal(found, wanted, drawn, "questions that combine two chains")
        return drawn

    def _draw_forms(self, forms: Mapping[Form, list[Problem]], wanted: int) -> list[Query]:
        possible = {form: problems for form, problems in forms.items() if problems}
        # As many differences as comparisons, whose two forms share the other half.
        weights = [2.0 if form == "difference" else 1.0 for form in possible]
        counts = quotas(wanted, weights) if possible else []
        found: list[Query] = []
        for problems, count in zip(possible.values(), counts, strict=True):
            found.extend(self.drawer.draw(problems, count))
        return found

    def _deal(
        self,
        found: Sequence[Query],
        wanted: Sequence[int],
        drawn: Sequence[list[Query]],
        what: str,
    ) -> None:
        """Give each split its number of queries, by hash: one query less moves few others."""
        if len(found) < sum(wanted):
            raise UserError(
                f"only {len(found)} of {sum(wanted)} {self.name} {what} can be made: lower "
                f"prepare.counts.{self.agent}, raise prepare.cities_per_country, or change "
                "prepare.held_out_entities, prepare.sources or prepare.exclude.sources"
            )
        order = sorted(found, key=lambda query: derived_seed(self.seed, "deal", query.query_id))
        waiting = iter(order)
        for split, count in zip(drawn, wanted, strict=True):
            split.extend(itertools.islice(waiting, count))


def for_split(queries: Sequence[Query], split: Split) -> list[Query]:
    """Mark queries as a split's and sort them by id."""
    return sorted(
        (query.model_copy(update={"split": split}) for query in queries),
        key=lambda query: query.query_id,
    )
