"""`endpoints.<name>`: models that answer over HTTP and that stages ask: a teacher, a judge, a screening policy."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from afm.params._model import Count, Positive, PositiveFloat, Section
from afm.params.scales import ServerParams

EndpointName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
Price = Annotated[float, Field(ge=0)]


class EndpointModel(Section):
    """`endpoints.<name>.model`: who answers. All of an endpoint that can change a result, so all that stages track."""

    name: Annotated[str, Field(min_length=1)]
    """As the server reports it; another one stops the stage."""
    revision: str
    """Commit or version behind the name. For a `serve.model` in the checkout its md5 as DVC knows it, and checked."""


class EndpointServe(ServerParams):
    """`endpoints.<name>.serve`: a server that is started for the stages that need it."""

    model: Annotated[str, Field(min_length=1)]
    """Folder of the model or of its manifest: below the checkout (a cell's out), or absolute (a model cache)."""
    gpus: Count
    """GPUs of the one node that serves it; 0: on CPUs."""
    gpu_product: str | None
    """Value of the node label that names the GPU; null: any."""

    @property
    def num_workers(self) -> int:
        """One per GPU."""
        return max(1, self.gpus)


class EndpointParams(Section):
    """`endpoints.<name>`: all but `model` says how it is reached, and changes no result."""

    model: EndpointModel
    base_url: str | None = None
    """Address of a server that stands already, up to and with `/v1`."""
    serve: EndpointServe | None = None
    api_key_variable: str | None
    """NAME of the environment variable that holds the API key; null: the server asks for none."""
    timeout_s: PositiveFloat
    """Of one try [s]."""
    concurrency: Positive
    """Requests in flight."""
    max_tries: Positive
    max_total_tokens: Positive | None
    """Budget of one stage, prompts and completions together [tokens]; null: none."""
    prompt_price: Price
    """Per million prompt tokens [currency units]."""
    completion_price: Price
    """Per million completion tokens [currency units]."""

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> Self:
        if (self.base_url is None) == (self.serve is None):
            raise ValueError(
                "give exactly one of base_url (a server that stands) and serve (one to be started)"
            )
        return self
