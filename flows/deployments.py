"""The flows of prefect.yaml: the pipeline and parts of it, with parameters that Prefect's form and API check.

What can be chosen is what params.yaml names when they are deployed: deploy again after `run.agents` or `run.scales`.
"""

import os
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

from prefect import flow
from prefect.flows import Flow
from pydantic import Field

from afm.params.root import read_params
from flows.executors import EXECUTORS
from flows.pipeline import OPTIONS, ROOT, Result, bring_up_to_date
from flows.selection import Selection

STAGES = (
    *("prepare", "base", "rollout", "filter", "sft"),
    *("screen", "select", "dapo"),
    *("evaluate", "demonstrate", "score", "report"),
)
"""Every stage, in the order in which the first cells of each can run."""
PARTS = {
    "pipeline": STAGES,
    "distill": ("prepare", "base", "rollout", "filter", "sft"),
    "reinforce": ("screen", "select", "dapo", "evaluate", "demonstrate", "score"),
    "evaluate": ("evaluate", "demonstrate", "score", "report"),
}
"""The stages that each flow is for; what they read is brought up to date too."""
DESCRIPTIONS = {
    "pipeline": "Everything, from queries to the report.",
    "distill": "From queries to the SFT model: a teacher's trajectories, filtered, in one model.",
    "reinforce": "From screening to the scored RL model: queries of the right difficulty, then DAPO.",
    "evaluate": "Every model variant on the held-out queries, scored, with the report.",
}
ARGUMENTS = """

Args:
    agents: Task domains.
    scales: Model sizes.
    stages: What they read is brought up to date too.
    executor: Where stages run: on the worker's machine, or as Jobs of a cluster.
    force: Ask for these stages again even where nothing changed.
    allow_code_rerun: Let GPU stages run again where nothing but code has changed.
"""
"""Prefect shows them in its form."""
_RUN = read_params(ROOT / "params.yaml").run


def _some_of(names: Iterable[str]) -> Any:
    """Return the type of a list with at least one of some names, each at most once."""
    known = tuple(names)
    schema: Any = {"items": {"type": "string", "enum": list(known)}, "uniqueItems": True}
    bounds = Field(min_length=1, max_length=len(known), json_schema_extra=schema)
    return Annotated[list[Literal[known]], bounds]  # type: ignore[valid-type]


Agents: TypeAlias = _some_of(_RUN.agents)  # type: ignore[valid-type]
Scales: TypeAlias = _some_of(_RUN.scales)  # type: ignore[valid-type]
Executor: TypeAlias = Literal[tuple(EXECUTORS)]  # type: ignore[valid-type]


def _flow(name: str) -> "Flow[..., Any]":
    Stages: TypeAlias = _some_of(PARTS[name])  # type: ignore[valid-type]

    def run(
        agents: Agents = list(_RUN.agents),  # noqa: B006 - Prefect shows it as the form's default
        scales: Scales = list(_RUN.scales),  # noqa: B006
        stages: Stages = list(PARTS[name]),  # noqa: B006
        executor: Executor = "local",
        force: bool = False,
        allow_code_rerun: bool = False,
    ) -> Result:
        os.environ["AFM_EXECUTOR"] = executor
        return bring_up_to_date(
            Selection(
                agents=tuple(agents),
                scales=tuple(scales),
                stages=tuple(stages),
                force=force,
                allow_code_rerun=allow_code_rerun,
            )
        )

    run.__name__, run.__doc__ = name, DESCRIPTIONS[name] + ARGUMENTS
    return flow(name=name, description=DESCRIPTIONS[name], **OPTIONS)(run)


pipeline = _flow("pipeline")
distill = _flow("distill")
reinforce = _flow("reinforce")
evaluate = _flow("evaluate")
