"""`judge`: which model judges the answers of an agent whose reward is `llm_judge`, and how it is asked."""

from typing import Annotated, Literal

from pydantic import Field

from afm.params._model import AgentName, Positive, Section, Share
from afm.params.endpoints import EndpointModel, EndpointName


class AskingParams(Section):
    """`judge.asking`: how any judge is asked, and how good it must be."""

    prompt: Literal["equivalence_v1"]
    """Version of the wording."""
    max_answer_chars: Positive
    """A longer answer is incorrect, and no judge sees it [characters]."""
    max_tokens: Positive
    """Longest reply, rationale included [tokens]."""
    max_asks: Positive
    """Asked so often for a reply of the required form [asks]; then the answer is unjudged."""
    decoy_check: bool
    """Confirm each `correct` against a made-up reference: text that persuades the judge persuades it there too."""
    min_agreement: Share
    """Below this share of the gold set judged as known, stages that ask the judge stop."""


class JudgeModel(Section):
    """`judge.models.<agent>`: who judges. Tracked by the stages of the agent, unlike how it is reached."""

    endpoint: EndpointName
    """One of `endpoints`."""
    name: Annotated[str, Field(min_length=1)]
    """The same as `endpoints.<endpoint>.model.name`."""
    revision: str
    """The same as `endpoints.<endpoint>.model.revision`."""

    @property
    def model(self) -> EndpointModel:
        """Who must answer at the endpoint."""
        return EndpointModel(name=self.name, revision=self.revision)


class JudgeParams(Section):
    """Section `judge`."""

    asking: AskingParams
    models: dict[AgentName, JudgeModel | None]
