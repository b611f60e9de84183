"""`run`: which cells exist."""

from typing import Annotated, Literal

from pydantic import Field

from afm.params._model import AgentName, Section


class RunParams(Section):
    """Section `run`: which cells exist."""

    study: str | None
    """MLflow experiment; null means the git branch."""
    agents: Annotated[tuple[AgentName, ...], Field(strict=False, min_length=1)]
    scales: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    variants: Annotated[tuple[Literal["base", "sft", "rl"], ...], Field(strict=False, min_length=1)]
    """Model variants that are evaluated."""
    approve_above_gpu_hours: Annotated[float, Field(ge=0)] | None
    """A stage that may take more waits for approval in Prefect [GPU h]; null: never. Changes no result."""
