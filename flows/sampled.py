"""Which stages a rerun need not repeat byte for byte."""

from collections.abc import Mapping

SAMPLED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "screen": {
        "samples.jsonl": ("query_id", "sample_index", "seed"),
        "pass_rates.jsonl": ("query_id", "num_samples"),
    },
    "screen_sft": {
        "samples.jsonl": ("query_id", "sample_index", "seed"),
        "pass_rates.jsonl": ("query_id", "num_samples"),
    },
    "dapo": {"steps.jsonl": ("step",)},
    "evaluate": {"records.jsonl": ("policy", "query_id", "sample_index", "seed")},
}
"""Stages whose outputs hold what a model server sampled, and which fields of their rows every run repeats, in order.

All others are deterministic: the same inputs give the same bytes. A server batches requests as they come, and the sums
of a batch depend on what is in it; so the same seed may draw another token, seldom, and all that follows it differs.
"""
