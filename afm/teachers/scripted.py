"""The scripted teacher: plays a multi-agent system from known solution chains, without a model.

It acts through the same loop, tools and recorder as any policy. Its trajectories look like those of
a real teacher in form; in substance they know the way in advance.
"""

import random
from collections.abc import Sequence

from afm.errors import UserError
from afm.params.agents import AgentParams
from afm.params.rollout import MistakeShares, TeacherParams
from afm.rollout import Action
from afm.tags import observation_body, render_step
from afm.taskgen.width import working
from afm.teachers import code_script, search_script
from afm.teachers.decoys import Decoys, LookUp, look_ups
from afm.teachers.pieces import count_pieces
from afm.teachers.script import MISTAKES, Script
from afm.tools.base import Toolbox
from afm.types import Query

_NEED_DECOY = ("wrong_answer", "late_correction", "detour")


class ScriptedSession:
    """A running script."""

    toolbox: Toolbox | None = None

    def __init__(self, script: Script, mistake: str | None) -> None:
        """Take a script that has not started."""
        self._script = script
        self._observation: str | None = None
        self.mistake = mistake

    async def act(self, max_tokens: int) -> Action:
        """Say the next turn; see `Session`."""
        turn = (
            next(self._script)
            if self._observation is None
            else self._script.send(self._observation)
        )
        text = "".join(render_step(step) for step in turn)
        roles = tuple(step.role for step in turn)
        return Action(text=text, finish="stop", num_tokens=count_pieces(text), roles=roles)

    def observe(self, text: str) -> int:
        """Read an observation; see `Session`."""
        self._observation = observation_body(text)
        return count_pieces(text)


class ScriptedTeacher:
    """Knows the solution chains of all queries."""

    def __init__(
        self, params: TeacherParams, agent_params: AgentParams, queries: Sequence[Query]
    ) -> None:
        """Collect what it may confuse with what.

        Args:
            params: Which mistakes it makes how often.
            agent_params: The grammar that it obeys.
            queries: All queries that it will be asked.
        """
        self._mistakes = params.mistakes
        self._grammar = agent_params.grammar
        self._decoys = Decoys(queries)
        self._answers = sorted({query.answers[0] for query in queries if query.answers})

    def session(self, query: Query, seed: int) -> ScriptedSession:
        """See `Teacher`.

        Raises:
            UserError: the query has no solution chain.
        """
        if not query.solution:
            raise UserError(
                f"query {query.query_id} has no solution chain: the scripted teacher cannot solve "
                "it; use another teacher.kind for this source"
            )
        rng = random.Random(seed)
        mistake = drawn_mistake(self._mistakes, rng.random())
        if self._grammar == "plan_first":
            return ScriptedSession(self._code(query, mistake, rng), mistake)
        return self._search(query, mistake, rng)

    def _search(self, query: Query, mistake: str | None, rng: random.Random) -> ScriptedSession:
        hops = look_ups(query.solution)
        if mistake == "late_correction" and self._grammar == "six_functions":
            mistake = "detour"
        at = rng.randrange(len(hops)) if mistake == "detour" else len(hops) - 1
        decoy: LookUp | None = None
        if mistake in _NEED_DECOY:
            decoy = self._decoys.pick(hops[at], query, rng)
            is_combined = working(query) is not None
            if mistake == "wrong_answer" and is_combined:
                decoy = None
            elif decoy is None:
                mistake = None
        given = search_script.Assignment(
            query=query, grammar=self._grammar, mistake=mistake, at=at, decoy=decoy, rng=rng
        )
        return ScriptedSession(search_script.search_script(given), mistake)

    def _code(self, query: Query, mistake: str | None, rng: random.Random) -> Script:
        others = [answer for answer in self._answers if answer not in query.answers]
        given = code_script.Assignment(
            query=query,
            mistake=mistake,
            wrong_answer=rng.choice(others) if others else None,
            rng=rng,
        )
        return code_script.code_script(given)


def drawn_mistake(shares: MistakeShares, draw: float) -> str | None:
    """Return the mistake that a uniform draw from [0, 1) falls on, or None."""
    for name in MISTAKES:
        draw -= getattr(shares, name)
        if draw < 0:
            return name
    return None
