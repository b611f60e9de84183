"""Fine-tune the base model on accepted trajectories, observations masked."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afm.jsonl import read_rows, write_json, write_text
from afm.model_files import load_tokenizer, resolve_model
from afm.params.agents import AgentParams
from afm.params.scales import PromptStyle, SftParams
from afm.training.device import pick_device
from afm.training.model_folder import folder_hash, load_model, save_model
from afm.training.ranks import Ranks, joined
from afm.training.record import read_steps
from afm.types import Trajectory
from stages._stage import Context, Stage, main

if TYPE_CHECKING:
    from afm.training.sft_data import SftData


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections that the stage reads."""

    agent: AgentParams = field(metadata={"key": "agents.{agent}"})
    prompt: PromptStyle = field(metadata={"key": "scales.{scale}.prompt"})
    sft: SftParams = field(metadata={"key": "scales.{scale}.sft"})


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the stage reads."""

    accepted: Path
    """JSONL of `Trajectory`; a row that stands there twice trains twice."""
    model: Path
    """Base model folder, or the manifest of a hub model."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What the stage writes."""

    model: Path
    """Model folder in Hugging Face form."""
    steps: Path
    """JSONL, one row per optimiser step."""
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Encode, train, save; continues from the newest checkpoint in scratch."""
    device = pick_device(params.sft.for_agent(context.agent).dtype)
    with joined(device) as ranks:
        _run(params, inputs, outputs, context, device, ranks)


def _run(
    params: Params,
    inputs: Inputs,
    outputs: Outputs,
    context: Context,
    device: Any,
    ranks: Ranks,
) -> None:
    """Every rank does the same, but the first one alone speaks and writes."""
    from afm.training import sft
    from afm.training.sft_data import sft_data, show_example

    settings = params.sft.for_agent(context.agent)
    folder, digest = resolve_model(inputs.model), ranks.first(lambda: folder_hash(inputs.model))
    tokenizer = load_tokenizer(folder)
    data = sft_data(
        read_rows(inputs.accepted, Trajectory),
        tokenizer,
        agent=context.agent,
        agent_params=params.agent,
        prompt_style=params.prompt.root,
        max_tokens=settings.max_tokens,
    )
    if ranks.is_first:
        show_example(tokenizer, data.examples[0])
    model = load_model(folder, device)
    sft.train(
        model,
        data,
        settings,
        folder=context.scratch / "checkpoints",
        steps=context.steps,
        source=digest,
        ranks=ranks,
    )
    card = _card(data, digest, context)
    save_model(model, outputs.model, tokenizer_from=folder, card=card, dtype=settings.dtype)
    if ranks.is_first:
        write_text(outputs.steps, context.steps.read_text(encoding="utf-8"))
        write_json(outputs.metrics, sft.metrics(data, settings, read_steps(context.steps)))


def _card(data: "SftData", source: str, context: Context) -> str:
    return (
        f"# SFT model, agent {context.agent}, scale {context.scale}\n\n"
        f"Fine-tuned on {len(data.examples)} trajectories "
        f"({data.num_trained} of {data.num_tokens} tokens trained, observations masked).\n\n"
        f"sha256 of the base model: `{source}`\n"
    )


STAGE = Stage(
    name="sft",
    run=run,
    params=Params,
    inputs=Inputs,
    outputs=Outputs,
    axes=("agent", "scale"),
    launcher="torchrun",
)

if __name__ == "__main__":
    main(STAGE)
