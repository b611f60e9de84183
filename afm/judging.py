"""Judging the answers of one stage: the judge's endpoint, its calibration, then all answers at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from afm.chat import ModelClient
from afm.endpoint import Endpoint
from afm.endpoint_client import ask_endpoint, open_endpoint, read_endpoint
from afm.errors import UserError
from afm.params.agents import AgentParams
from afm.params.endpoints import EndpointParams
from afm.params.judge import AskingParams, JudgeModel
from afm.progress import Progress
from afm.rewards import REWARDS
from afm.rewards.calibration import Calibration, calibrate
from afm.rewards.judge_prompt import Pair
from afm.rewards.llm_judge import CACHE, Judgements, LlmJudge, VerdictCache, judge_each

LOG = "judge.log"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A judge that a stage may ask, and where it leaves what it did."""

    model: JudgeModel
    asking: AskingParams
    access: EndpointParams
    scratch: Path
    facts: Path

    @contextmanager
    def open(self) -> Iterator[Endpoint]:
        """Yield where the judge answers; a server of the stage's own ends with the block.

        Raises:
            UserError: its server does not start.
        """
        with open_endpoint(
            self.model.endpoint, self.model.model, access=self.access, log=self.scratch / LOG
        ) as endpoint:
            yield endpoint

    def judge(self, client: ModelClient) -> LlmJudge:
        """Return the judge behind a client."""
        cache = VerdictCache(self.scratch / CACHE)
        return LlmJudge(client=client, model=self.model, asking=self.asking, cache=cache)

    def calibrate(self, endpoint: Endpoint) -> Calibration:
        """Judge the gold set.

        Raises:
            UserError: the judge cannot be reached.
        """

        async def work(client: ModelClient) -> Calibration:
            return await calibrate(self.judge(client))

        return ask_endpoint(
            self.model.endpoint, endpoint, work, access=self.access, facts=self.facts
        )

    def calibrated(self, endpoint: Endpoint) -> Calibration:
        """Judge the gold set, and check that the judge may judge.

        Raises:
            UserError: the judge cannot be reached, or agrees with too little.
        """
        found = self.calibrate(endpoint)
        found.check(self.model.endpoint, self.asking.min_agreement)
        return found

    def judged(self, endpoint: Endpoint, pairs: Sequence[Pair]) -> Judgements:
        """Judge answers.

        Raises:
            UserError: the judge cannot be reached.
        """

        async def work(client: ModelClient) -> Judgements:
            return await judge_each(
                self.judge(client), pairs, Progress(len(dict.fromkeys(pairs)), "answers judged")
            )

        return ask_endpoint(
            self.model.endpoint, endpoint, work, access=self.access, facts=self.facts
        )


def open_bench(
    agent: AgentParams,
    model: JudgeModel | None,
    asking: AskingParams,
    *,
    endpoints: Path,
    scratch: Path,
    facts: Path,
) -> Bench | None:
    """Return the judge of an agent; None where its reward asks none.

    Args:
        agent: The agent.
        model: `judge.models.<agent>`.
        asking: `judge.asking`.
        endpoints: File that says how the stage's endpoints are reached.
        scratch: Folder of the stage.
        facts: File for the run record.

    Raises:
        UserError: the reward needs a judge and there is none, or nothing is known of its endpoint.
    """
    if not REWARDS[agent.reward].is_judged:
        return None
    if model is None:
        raise UserError(
            f"reward {agent.reward!r} needs a judge: set judge.models.<agent> to its endpoint, name and revision"
        )
    access = read_endpoint(endpoints, model.endpoint)
    return Bench(model=model, asking=asking, access=access, scratch=scratch, facts=facts)


def judge_or_none(
    bench: Bench | None, pairs: Sequence[Pair]
) -> tuple[Judgements, Calibration] | None:
    """Calibrate a judge and let it judge; None without one.

    Raises:
        UserError: the judge cannot be reached, or agrees with too little.
    """
    if bench is None:
        return None
    with bench.open() as endpoint:
        calibration = bench.calibrated(endpoint)
        return bench.judged(endpoint, pairs), calibration
