"""Bring the base model: copy, convert or pin it, and give a small one something to know."""

from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import read_rows, write_json
from afm.model_files import load_tokenizer, resolve_model
from afm.params.scales import BaseParams
from afm.training.base_model import make_base_model, tuned_card
from afm.training.device import pick_device
from afm.training.knowledge import (
    Fact,
    HeldOut,
    Passage,
    held_out_names,
    split_facts,
    split_passages,
)
from afm.training.model_folder import (
    count_parameters,
    folder_hash,
    load_model,
    save_model,
)
from afm.training.record import read_steps
from afm.types import Query
from stages._stage import Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections that the stage reads."""

    base: BaseParams = field(metadata={"key": "scales.{scale}.base"})


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the stage reads."""

    shipped: Path
    """Model folder that the project ships."""
    queries: Path
    """Folder with `facts.jsonl`, rows of `Fact`, and what must not be learnt: `held_out.jsonl` and `eval.jsonl`, rows
    of `HeldOut` and `Query`."""
    corpus: Path
    """JSONL of `Passage`."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What the stage writes."""

    model: Path
    """Model folder; for a hub model only its manifest and card."""
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Make the base model, and tune it where `memorise_steps` is above 0."""
    settings = params.base.for_agent(context.agent)
    metrics: dict[str, Any] = {
        "base/memorised_facts": 0,
        "base/memorised_passages": 0,
        "base/left_out_passages": 0,
        "base/memorised_correct_share": nan,
        "base/other_correct_share": nan,
        "base/loss_last": nan,
    }
    if settings.memorise_steps == 0:
        make_base_model(settings, inputs.shipped, outputs.model)
    else:
        origin = context.scratch / "origin"
        make_base_model(settings, inputs.shipped, origin)
        metrics |= _memorise(settings, origin, inputs, outputs.model, context)
    metrics["base/parameters"] = count_parameters(resolve_model(outputs.model))
    write_json(outputs.metrics, metrics)


def _memorise(
    params: BaseParams, origin: Path, inputs: Inputs, out: Path, context: Context
) -> dict[str, Any]:
    from afm.training import memorise

    (chosen, others), (passages, left_out) = _facts(params, inputs), _passages(inputs)
    source = resolve_model(origin)
    tokenizer, model = load_tokenizer(source), load_model(source, pick_device("float32"))
    plan = memorise.make_plan(tokenizer, chosen, passages, params)
    memorise.memorise(
        model,
        tokenizer,
        plan,
        params,
        folder=context.scratch / "checkpoints",
        steps=context.steps,
        source=folder_hash(source),
    )
    metrics = {
        "base/memorised_facts": len(chosen),
        "base/memorised_passages": plan.num_passages,
        "base/left_out_passages": len(left_out),
        "base/memorised_correct_share": _share(memorise.answered(model, tokenizer, chosen)),
        "base/other_correct_share": _share(memorise.answered(model, tokenizer, others)),
        "base/loss_last": read_steps(context.steps)[-1]["loss"],
    }
    card = tuned_card(origin, params, metrics)
    save_model(model, out, tokenizer_from=source, card=card, dtype="float32")
    return metrics


def _facts(params: BaseParams, inputs: Inputs) -> tuple[list[Fact], list[Fact]]:
    """Return the facts to memorise and the others."""
    path = inputs.queries / "facts.jsonl"
    facts = read_rows(path, Fact)
    chosen, others = split_facts(facts, params.memorise_share, params.seed)
    if not chosen and params.question_share > 0:
        raise UserError(
            f"memorise_share {params.memorise_share} of {len(facts)} facts in {path} is none; "
            "raise it, or set memorise_steps to 0"
        )
    return chosen, others


def _passages(inputs: Inputs) -> tuple[list[Passage], list[Passage]]:
    """Return the passages that may be learnt, and those about what evaluation asks for."""
    entities = read_rows(inputs.queries / "held_out.jsonl", HeldOut)
    queries = read_rows(inputs.queries / "eval.jsonl", Query)
    return split_passages(read_rows(inputs.corpus, Passage), held_out_names(entities, queries))


def _share(hits: list[bool]) -> float:
    return sum(hits) / len(hits) if hits else nan


STAGE = Stage(
    name="base",
    run=run,
    params=Params,
    inputs=Inputs,
    outputs=Outputs,
    axes=("agent", "scale"),
)

if __name__ == "__main__":
    main(STAGE)
