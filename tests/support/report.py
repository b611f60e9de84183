"""A small synthetic run for tests of the report page."""

from afm.report.data import AgentData, CellData, TrajectoryPair
from afm.report.page import PageSection, cell_sections, data_section
from afm.types import Segment, Step, StepKind, StopReason, Trajectory, Usage, make_trajectory


def trajectory(policy: str, answer: str) -> Trajectory:
    """A one-step rollout with an observation that must be escaped."""
    return make_trajectory(
        query_id="0" * 16,
        agent="mhqa",
        question="What is the capital of <Chad>?",
        answers=("N'Djamena",),
        policy=policy,
        sample_index=-1,
        seed=1,
        segments=(
            Segment(text="<think>Look.</think>", author="policy"),
            Segment(
                text="\n\n<observation>\n<script>alert(1)</script>\n</observation>\n\n",
                author="environment",
            ),
            Segment(text=f"<answer>{answer}</answer>", author="policy"),
        ),
        steps=(Step(kind=StepKind.ANSWER, text=answer),),
        stop_reason=StopReason.ANSWERED,
        num_tool_calls=1,
        usage=Usage(),
    )


def agent_data() -> AgentData:
    """What is measured once per agent."""
    return AgentData(
        agent="mhqa",
        prepare={"prepare/queries/sft": 10},
        rollout={"rollout/rollouts": 10, "rollout/failed": 0},
        filter={
            "filter/input": 10,
            "filter/accepted": 7,
            "filter/rows_out": 9,
            "filter/dropped/too_few_hops": 1,
            "filter/dropped/wrong_answer": 2,
        },
        select={"select/kept": 3},
        pass_rates=(0.0, 0.1, 0.5, 1.0),
        hops=(5, 5, 6, 9),
        tokens=(120, 150, 300, 310),
    )


def cell_data() -> CellData:
    """What is measured once per cell; the base model's figures are undefined."""
    score: dict[str, float | int | None] = {}
    for variant, value in (("base", None), ("sft", 0.5), ("rl", 0.7), ("teacher", 1.0)):
        prefix = f"eval/mhqa/{variant}/avg_at_k"
        low = None if value is None else value - 0.05
        high = None if value is None else min(1.0, value + 0.05)
        score |= {prefix: value, f"{prefix}_low": low, f"{prefix}_high": high}
    return CellData(
        agent="mhqa",
        scale="tiny",
        score=score,
        gate={"passed": True, "champion": "rl"},
        sft={},
        dapo={},
        sft_steps=({"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}),
        dapo_steps=(
            {"step": 1, "reward_mean": 0.1, "acc_mean": 0.2},
            {"step": 2, "reward_mean": 0.3, "acc_mean": 0.4},
        ),
        pairs=(
            TrajectoryPair(
                question="What is the capital of <Chad>?",
                answers=("N'Djamena",),
                sft=trajectory("sft", "Chad"),
                rl=trajectory("rl", "N'Djamena"),
            ),
        ),
    )


def sections() -> tuple[PageSection, ...]:
    """All sections of the page."""
    return (*cell_sections(cell_data()), data_section(agent_data(), 20, 0.3))
