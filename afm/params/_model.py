"""The base of all sections: frozen, unknown keys refused, numbers never coerced from text."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

AgentName = Literal["web", "mhqa", "code"]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A section of params.yaml. Code supplies no default that changes a result."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
