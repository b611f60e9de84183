"""`scales.<scale>`: model, training and serving settings that differ with model size."""

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, RootModel, model_validator

from afm.params._model import AgentName, Count, Positive, PositiveFloat, Section, Share


class PromptStyle(RootModel[Literal["short", "full"]]):
    """`scales.<scale>.prompt`, for stages that read this key alone."""

    model_config = ConfigDict(frozen=True)


class AgentSection(Section):
    """Settings of which single values can differ for one agent."""

    by_agent: dict[AgentName, dict[str, Any]]
    """Agent -> the values that differ for it; checked like the others."""

    @model_validator(mode="after")
    def _own_values_fit(self) -> Self:
        for agent in self.by_agent:
            self.for_agent(agent)
        return self

    def for_agent(self, agent: str) -> Self:
        """Return these settings with the agent's own values in place."""
        own = {str(name): values for name, values in self.by_agent.items()}.get(agent, {})
        return type(self).model_validate(self.model_dump() | own | {"by_agent": {}})


class BaseParams(AgentSection):
    """`scales.<scale>.base`: where the base model comes from and what is done to it."""

    source: Literal["shipped", "package", "hub"]
    """`shipped`: a folder of this repository; `package`: a PyPI package; `hub`: pinned, by manifest."""
    name: str
    """Folder, package or hub id of the base model."""
    revision: str
    """Commit on the hub or version of the package; empty for `shipped`."""
    memorise_steps: Count
    """Optimiser steps on passages and closed-book questions; 0 leaves the model as it is."""
    memorise_share: Share
    """Seeded share of the train facts that the closed-book questions cover."""
    memorise_batch_tokens: Positive
    """Tokens per optimiser step [tokens]."""
    question_share: Share
    """Share of those tokens that closed-book questions take."""
    passage_share: Share
    """Share that passages of the corpus take; generated pre-training text fills the rest."""
    lr: PositiveFloat
    matrix_lr: PositiveFloat | None
    """With a value, 2-D weights use fp32 Muon at this rate and the rest AdamW at `lr`."""
    seed: int


class SftParams(AgentSection):
    """`scales.<scale>.sft`: observation-masked supervised fine-tuning."""

    seed: int
    epochs: PositiveFloat
    lr: PositiveFloat
    matrix_lr: PositiveFloat | None
    """With a value, 2-D weights use fp32 Muon at this rate and the rest AdamW at `lr`."""
    weight_decay: Annotated[float, Field(ge=0)]
    warmup_share: Share
    schedule: Literal["cosine", "linear", "constant"]
    batch_size: Positive
    """Sequences per optimiser step, before packing."""
    max_tokens: Positive
    """Longest sequence [tokens]; longer trajectories are dropped and counted."""
    micro_batch_tokens: Positive
    """Tokens per forward pass [tokens]."""
    packing: bool
    grad_clip: PositiveFloat
    checkpoint_steps: Positive
    dtype: Literal["float32", "bfloat16"]


class ResponseStage(Section):
    """From which step on which response length holds (the paper's context curriculum)."""

    from_step: Count
    max_response_tokens: Positive


class DapoParams(AgentSection):
    """`scales.<scale>.dapo`: DAPO as verl runs it."""

    seed: int
    total_steps: Positive
    train_batch_size: Positive
    """Queries per step."""
    group_size: Positive
    """Rollouts per query."""
    mini_batch_size: Positive
    """Queries per optimiser step."""
    micro_batch_size: Positive
    """Sequences per forward pass."""
    lr: PositiveFloat
    warmup_steps: Count
    weight_decay: Annotated[float, Field(ge=0)]
    grad_clip: PositiveFloat
    clip_ratio_low: PositiveFloat
    clip_ratio_high: PositiveFloat
    clip_ratio_c: PositiveFloat
    dynamic_sampling: bool
    max_gen_batches: Positive
    """Generation batches per step at most; then it trains on what it has, and stops where no group is informative."""
    temperature: PositiveFloat
    max_prompt_tokens: Positive
    response_schedule: Annotated[tuple[ResponseStage, ...], Field(strict=False, min_length=1)]
    overlong_share: Share
    """Last share of the response budget in which the soft penalty grows; counts policy tokens only."""
    overlong_penalty: Annotated[float, Field(ge=0)]
    checkpoint_steps: Positive
    max_failed_share: Share
    """Above this share of failed rollouts in a batch the stage stops."""
    max_unjudged_share: Share
    """Above this share of finished rollouts without a verdict the stage stops: the judge is broken."""
    max_probs_diff: PositiveFloat
    """Largest allowed difference between rollout and trainer probabilities."""
    fixture_agents: Annotated[tuple[AgentName, ...], Field(strict=False)]
    """Agents of which a few fixture queries join every batch (tests of the agent loops)."""


class ServerParams(Section, ABC):
    """A vLLM server, whoever starts it."""

    max_model_len: Positive
    """Prompt plus response [tokens]."""
    max_num_seqs: Positive
    """Sequences decoded at once."""
    dtype: Literal["float32", "bfloat16"]
    gpu_memory_utilization: Share
    cpu_kv_cache_gib: Positive
    startup_timeout_s: PositiveFloat

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """Processes that share the model, one per GPU; vLLM's tensor_parallel_size."""


class ServeParams(ServerParams):
    """`scales.<scale>.serve`: the vLLM server of a model of this size."""

    max_response_tokens: Positive
    """Response budget in evaluation [tokens], observations included."""
    tensor_parallel_size: Positive
    num_eval_queries: Positive
    """At most so many held-out queries are evaluated at this scale."""

    @property
    def num_workers(self) -> int:
        """As the scale says."""
        return self.tensor_parallel_size


class ClusterParams(Section):
    """`scales.<scale>.cluster`: what its GPU stages take of a cluster; read by the executor, changes no result."""

    nodes: Positive
    """Pods of one Job; more than one makes it an Indexed Job."""
    gpus_per_node: Count
    gpu_product: str | None
    """Value of the node label that names the GPU; null: any."""
    priority_class: str | None
    gpu_price: Annotated[float, Field(ge=0)]
    """Currency units per GPU-hour."""


class ScaleParams(Section):
    """One block of `scales`."""

    prompt: Literal["short", "full"]
    """Wording of the agent's instructions: `short` for models whose context is a few hundred tokens."""
    base: BaseParams
    sft: SftParams
    dapo: DapoParams
    serve: ServeParams
    cluster: ClusterParams
