"""`scales.<scale>`: model, training and serving settings that differ with model size."""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field

from afm.params._model import AgentName, Count, Positive, PositiveFloat, Section, Share


SectionT = TypeVar("SectionT", "SftParams", "DapoParams")


class BaseParams(Section):
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
    lr: PositiveFloat
    seed: int


class SftParams(Section):
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
    by_agent: dict[AgentName, dict[str, Any]]
    """Values that differ for one agent."""

    def for_agent(self, agent: str) -> Self:
        """Return these settings with the agent's own values in place."""
        return _with_agent_values(self, agent)


class ResponseStage(Section):
    """From which step on which response length holds (the paper's context curriculum)."""

    from_step: Count
    max_response_tokens: Positive


class DapoParams(Section):
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
    """Generation batches per step before the stage stops and says that no group is informative."""
    temperature: PositiveFloat
    max_prompt_tokens: Positive
    response_schedule: Annotated[tuple[ResponseStage, ...], Field(strict=False, min_length=1)]
    overlong_share: Share
    """Last share of the response budget in which the soft penalty grows; counts policy tokens only."""
    overlong_penalty: Annotated[float, Field(ge=0)]
    checkpoint_steps: Positive
    max_failed_share: Share
    """Above this share of failed rollouts in a batch the stage stops."""
    max_probs_diff: PositiveFloat
    """Largest allowed difference between rollout and trainer probabilities."""
    fixture_agents: Annotated[tuple[AgentName, ...], Field(strict=False)]
    """Agents of which a few fixture queries join every batch (tests of the agent loops)."""
    by_agent: dict[AgentName, dict[str, Any]]

    def for_agent(self, agent: str) -> Self:
        """Return these settings with the agent's own values in place."""
        return _with_agent_values(self, agent)


class ServeParams(Section):
    """`scales.<scale>.serve`: the vLLM server of a model of this size."""

    max_model_len: Positive
    """Prompt plus response [tokens]."""
    max_num_seqs: Positive
    """Sequences decoded at once."""
    max_response_tokens: Positive
    """Response budget in evaluation [tokens], observations included."""
    dtype: Literal["float32", "bfloat16"]
    tensor_parallel_size: Positive
    gpu_memory_utilization: Share
    cpu_kv_cache_gib: Positive
    startup_timeout_s: PositiveFloat
    num_eval_queries: Positive
    """At most so many held-out queries are evaluated at this scale."""


class ScaleParams(Section):
    """One block of `scales`."""

    prompt: Literal["short", "full"]
    """Wording of the agent's instructions: `short` for models whose context is a few hundred tokens."""
    base: BaseParams
    sft: SftParams
    dapo: DapoParams
    serve: ServeParams


def _with_agent_values(section: SectionT, agent: str) -> SectionT:
    own = section.by_agent.get(agent, {})  # type: ignore[call-overload]
    merged = section.model_dump() | own
    return type(section).model_validate(merged)
