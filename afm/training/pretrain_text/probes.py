"""Held-out figures: greedy exact match of copied stretches, on names never seen in training."""

from collections import defaultdict

import torch
from tokenizers import Tokenizer
from transformers import Qwen2ForCausalLM

from afm.training.pretrain_text.batches import Encoded, collate, encode
from afm.training.pretrain_text.stream import held_out_document

PROBE_KINDS = ("chain", "compare", "reading", "keys", "repeat", "arithmetic")
_ROWS = 16


def held_out_set(tokenizer: Tokenizer, *, per_kind: int, max_tokens: int) -> list[Encoded]:
    """Encoded held-out documents, the same for every run of one tokenizer."""
    docs = [
        encode(tokenizer, held_out_document(kind, f"held-out:{kind}:{number}"))
        for kind in PROBE_KINDS
        for number in range(per_kind)
    ]
    return sorted((d for d in docs if len(d.ids) <= max_tokens), key=lambda d: len(d.ids))


@torch.no_grad()
def exact_match(model: Qwen2ForCausalLM, docs: list[Encoded]) -> dict[str, float]:
    """Share of probed stretches whose every token is the model's first choice, by probe.

    Greedy decoding from the true text before a stretch gives exactly that stretch if and only
    if each of its tokens is the first choice given the true tokens before it, so one forward
    pass scores all stretches. ``chain_all`` is the share of chain documents with every probed
    stretch right: such a document would be decoded without a wrong copy.
    """
    model.eval()  # type: ignore[no-untyped-call]
    hits: dict[str, list[bool]] = defaultdict(list)
    for start in range(0, len(docs), _ROWS):
        rows = docs[start : start + _ROWS]
        batch = collate(rows)
        hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        guesses = model.lm_head(hidden).argmax(-1)
        right = torch.zeros_like(batch.ids, dtype=torch.bool)
        right[:, 1:] = guesses[:, :-1] == batch.ids[:, 1:]
        for doc, row in zip(rows, right, strict=True):
            found = [(name, bool(row[first:end].all())) for name, first, end in doc.probes]
            for name, hit in found:
                hits[name].append(hit)
            if doc.kind in ("chain", "compare"):
                hits[f"{doc.kind}_all"].append(all(hit for _, hit in found))
    model.train()
    return {name: sum(values) / len(values) for name, values in sorted(hits.items())}
