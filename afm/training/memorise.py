"""Give a small base model something to know: passages, and answers to a share of the facts.

Large base models know many facts from pre-training, and screening exists to find the queries that
they answer without tools. A model made here knows none, so it learns some by heart, in the form in
which screening asks.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm.encoding import encode_data
from afm.errors import UserError
from afm.ids import content_id, derived_seed
from afm.params.scales import BaseParams
from afm.screening_prompt import closed_book_message
from afm.training.knowledge import Fact, Passage
from afm.training.packing import Example, pack, token_logits
from afm.training.sft_data import encode_turn, end_of_turn
from afm.types import Segment

WARMUP_SHARE = 0.05
GRAD_CLIP = 1.0
ROUNDING = 1e-9
"""Shares such as 0.9 and 0.1 add up to 1 only nearly."""
EVAL_ROW = 64
"""Questions per forward pass when answers are checked."""


def question_example(tokenizer: Any, fact: Fact, end: str) -> Example:
    """Encode a fact as the closed-book question and its whole reply, the answer."""
    answer = Segment(text=fact.value, author="policy")
    return encode_turn(tokenizer, closed_book_message(fact.question), [answer], end)


def passage_example(tokenizer: Any, passage: Passage, end: str) -> Example:
    """Encode a passage as plain text, all of it trained but the first token."""
    ids = [*encode_data(tokenizer, passage.text), tokenizer.convert_tokens_to_ids(end)]
    return Example(input_ids=tuple(ids), trained=(False, *(True for _ in ids[1:])))


def pretraining_examples(tokenizer: Any, seed: int) -> Iterator[Example]:
    """Yield generated pre-training text without end, so that copying is not forgotten."""
    from afm.training.pretrain_text.batches import encode
    from afm.training.pretrain_text.stream import document

    number = 0
    while True:
        encoded = encode(tokenizer.backend_tokenizer, document(f"memorise:{seed}:{number}"))
        if any(encoded.trained[1:]):
            yield Example(input_ids=encoded.ids, trained=(False, *encoded.trained[1:]))
        number += 1


def shuffled_forever(examples: Sequence[Example], seed: int) -> Iterator[Example]:
    """Yield every example once per pass, each pass in an order of its own."""
    for turn in range(10**9):
        order = list(range(len(examples)))
        random.Random(derived_seed(seed, "pass", turn)).shuffle(order)
        yield from (examples[index] for index in order)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Examples of one kind and the share of each batch that they fill."""

    share: float
    examples: Iterator[Example]


def batches(streams: Sequence[Stream], batch_tokens: int, num_steps: int) -> list[list[Example]]:
    """Fill batches of about `batch_tokens`; each stream keeps its share over the whole run."""
    result: list[list[Example]] = []
    taken = [0] * len(streams)
    for step in range(1, num_steps + 1):
        batch: list[Example] = []
        for index, stream in enumerate(streams):
            while taken[index] < stream.share * batch_tokens * step:
                example = next(stream.examples)
                taken[index] += len(example.input_ids)
                batch.append(example)
        result.append(batch)
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is learnt in which step."""

    batches: Sequence[Sequence[Example]]
    num_passages: int
    """Passages among them: all, unless the steps end first."""


def make_plan(
    tokenizer: Any, facts: Sequence[Fact], passages: Sequence[Passage], params: BaseParams
) -> Plan:
    """Mix closed-book questions, passages and pre-training text by their shares.

    Args:
        tokenizer: Of the model.
        facts: The facts to memorise.
        passages: The part of the corpus that may be learnt.
        params: Settings.

    Raises:
        UserError: a share is asked for of something that is empty.
    """
    streams = _streams(tokenizer, facts, passages, params)
    steps = batches(streams, params.memorise_batch_tokens, params.memorise_steps)
    seen = {example.input_ids for batch in steps for example in batch}
    end = end_of_turn(tokenizer)
    read = [passage_example(tokenizer, passage, end).input_ids in seen for passage in passages]
    return Plan(batches=steps, num_passages=sum(read))


def memorise(
    model: Any,
    tokenizer: Any,
    plan: Plan,
    params: BaseParams,
    *,
    folder: Path,
    steps: Path,
    source: str,
) -> None:
    """Tune a model in place.

    Args:
        model: On its device, from `model_folder.load_model`.
        tokenizer: Its tokenizer.
        plan: What it learns.
        params: Settings.
        folder: Checkpoints.
        steps: Record of the steps; see `trainer.Trainer`.
        source: Hash of the model at the start.
    """
    from afm.training.device import deterministic
    from afm.training.trainer import Trainer

    with deterministic(derived_seed(params.seed, "memorise")):
        trainer = Trainer(
            model,
            _settings(tokenizer, params),
            total_steps=params.memorise_steps,
            batch=lambda step: plan.batches[step],
            folder=folder,
            steps=steps,
            fingerprint=_fingerprint(plan, params, source),
            what="memorising steps",
        )
        trainer.run(checkpoint_steps=params.memorise_steps)


def answered(model: Any, tokenizer: Any, facts: Sequence[Fact]) -> list[bool]:
    """Return for each fact whether greedy decoding gives exactly the answer and then ends the turn.

    It does if and only if each token of the true reply is the first choice after the true text
    before it, so one forward pass answers many questions.
    """
    import torch

    end = end_of_turn(tokenizer)
    examples = [question_example(tokenizer, fact, end) for fact in facts]
    device = next(model.parameters()).device
    model.eval()
    result: list[bool] = []
    with torch.no_grad():
        for start in range(0, len(examples), EVAL_ROW):
            chunk = examples[start : start + EVAL_ROW]
            row = pack(chunk).to(device)
            right = token_logits(model, row).argmax(-1) == row.targets
            sizes = [example.num_trained for example in chunk]
            replies = torch.split(right, sizes)
            result.extend(bool(reply.all()) for reply in replies)
    return result


def _fingerprint(plan: Plan, params: BaseParams, source: str) -> str:
    content = [[list(e.input_ids), list(e.trained)] for batch in plan.batches for e in batch]
    return content_id([content, params.model_dump(mode="json"), source])


def _streams(
    tokenizer: Any, facts: Sequence[Fact], passages: Sequence[Passage], params: BaseParams
) -> list[Stream]:
    end, rest = end_of_turn(tokenizer), _rest(params)
    learnt = {
        "question_share": [question_example(tokenizer, fact, end) for fact in facts],
        "passage_share": [passage_example(tokenizer, passage, end) for passage in passages],
    }
    streams = [_stream(name, examples, params) for name, examples in learnt.items()]
    if rest > ROUNDING:
        generated = pretraining_examples(tokenizer, derived_seed(params.seed, "text"))
        streams.append(Stream(share=rest, examples=generated))
    return [stream for stream in streams if stream.share > 0]


def _rest(params: BaseParams) -> float:
    """Return the share that generated text fills."""
    rest = 1 - params.question_share - params.passage_share
    if rest < -ROUNDING:
        raise UserError(
            f"question_share {params.question_share} and passage_share {params.passage_share} "
            "together exceed 1"
        )
    return rest


def _stream(name: str, examples: Sequence[Example], params: BaseParams) -> Stream:
    share: float = getattr(params, name)
    if share > 0 and not examples:
        raise UserError(
            f"base.{name} is above 0 but there is nothing of the kind to learn; set it to 0"
        )
    return Stream(share=share, examples=shuffled_forever(examples, derived_seed(params.seed, name)))


def _settings(tokenizer: Any, params: BaseParams) -> Any:
    from afm.training.tokenizer import TAGS
    from afm.training.trainer import Settings

    ids = tokenizer.get_vocab()
    return Settings(
        lr=params.lr,
        matrix_lr=params.matrix_lr,
        weight_decay=0.0,
        warmup_share=WARMUP_SHARE,
        schedule="linear",
        micro_batch_tokens=2 * params.memorise_batch_tokens,
        packing=True,
        grad_clip=GRAD_CLIP,
        dtype="float32",
        # The tags stay as they were drawn: this text has none, and would only push them away.
        barred=tuple(sorted(ids[tag] for tag in TAGS if tag in ids)),
    )
