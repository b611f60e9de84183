"""The reward that verl sees."""

from pathlib import Path

import pytest

from afm.params.root import read_params
from afm.params.scales import DapoParams
from afm.rewards.reward import Reward
from afm.training.verl.reward import extra_info, sample_of, shape
from afm.types import StopReason, Trajectory, Usage, make_trajectory


@pytest.fixture(scope="module")
def dapo() -> DapoParams:
    tiny = read_params(Path("params.yaml")).scales["tiny"].dapo
    return tiny.model_copy(update={"overlong_share": 0.125, "overlong_penalty": 1.0})


def trajectory(observation_tokens: int) -> Trajectory:
    return make_trajectory(
        query_id="q", agent="mhqa", question="?", answers=("a",), policy="rl", sample_index=0, seed=1,
        segments=(), steps=(), stop_reason=StopReason.ANSWERED, num_tool_calls=2,
        usage=Usage(prompt_tokens=9, policy_tokens=100, observation_tokens=observation_tokens),
    )  # fmt: skip


@pytest.mark.parametrize(("tokens", "penalty"), [(10, 0.0), (560, 0.0), (600, -0.5), (640, -1.0)])
def test_the_penalty_grows_over_the_last_eighth(
    dapo: DapoParams, tokens: int, penalty: float
) -> None:
    scored = shape(Reward(value=1.0, breakdown={"answer": 1.0}), tokens, budget=640, dapo=dapo)
    assert scored.reward == pytest.approx(1.0 + penalty)
    assert scored.acc == 1.0
    assert scored.parts == {"answer": 1.0, "overlong": pytest.approx(penalty)}


def test_observations_cost_nothing(dapo: DapoParams) -> None:
    reward = Reward(value=1.0, breakdown={"answer": 1.0})
    infos = [
        extra_info(t, shape(reward, t.usage.policy_tokens, budget=640, dapo=dapo), logprob=-1.0)
        for t in (trajectory(0), trajectory(540))
    ]
    assert infos[0]["reward"] == infos[1]["reward"] == 1.0


def test_the_sampler_reads_what_the_loop_wrote(dapo: DapoParams) -> None:
    scored = shape(Reward(value=1.0, breakdown={"answer": 1.0}), 100, budget=640, dapo=dapo)
    sample = sample_of(extra_info(trajectory(7), scored, logprob=-1.0))
    assert sample.query_id == trajectory(7).query_id
    assert (sample.agent, sample.acc, sample.policy_tokens, sample.observation_tokens) == (
        "mhqa",
        1.0,
        100,
        7,
    )
