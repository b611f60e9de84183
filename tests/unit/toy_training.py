"""A toy Qwen2 with its own tokenizer, made in the test, and trajectories for it."""

from pathlib import Path
from typing import Any

from afm.training.packing import Example
from afm.types import Segment, StopReason, Trajectory, Usage, make_trajectory

TEXTS = (
    "Answer with tools. Question: What is the capital of Norland? user assistant",
    "I search for Norland. The page says that the capital is Oslu. The answer is Oslu.",
    "Answer from memory. Norland is a country. Capital: Oslu. Population: 12 million.",
)


def make_toy_model(folder: Path, *, heads: int = 2, kv_heads: int = 1, seed: int = 0) -> Path:
    """Write a model folder of about 30,000 parameters with grouped-query attention."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from afm.training.tokenizer import save_tokenizer, train_tokenizer

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=352,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=48,
        max_position_embeddings=512,
        initializer_range=0.06,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )
    folder.mkdir(parents=True)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    save_tokenizer(train_tokenizer(TEXTS * 4, vocab_size=352), folder, max_length=512)
    return folder


def load_toy(folder: Path) -> Any:
    """Load it as the trainer does."""
    import torch

    from afm.training.model_folder import load_model

    return load_model(folder, torch.device("cpu"))


def examples(count: int = 6, *, shift: int = 0) -> list[Example]:
    """Sequences of 3 to 20 tokens with a masked stretch inside."""
    result = []
    for number in range(count):
        length = 3 + (number * 7 + shift) % 18
        ids = tuple(60 + (number * 31 + place * 17 + shift) % 200 for place in range(length))
        trained = tuple(place > 0 and (place + number) % 3 != 0 for place in range(length))
        result.append(Example(input_ids=ids, trained=trained))
    return result


def trajectory(number: int = 0, *, observation: str = "Capital: Oslu.") -> Trajectory:
    """An accepted trajectory with one search."""
    segments = (
        Segment(
            text="<think>I search.</think>\n<wiki_search>\nNorland\n</wiki_search>",
            author="policy",
        ),
        Segment(text=f"\n\n<observation>\n{observation}\n</observation>\n\n", author="environment"),
        Segment(
            text=f"<think>It says Oslu.</think><answer>Oslu {number}</answer>", author="policy"
        ),
    )
    return make_trajectory(
        query_id=f"{number:016x}",
        agent="mhqa",
        question=f"What is the capital of Norland {number}?",
        answers=("Oslu",),
        policy="teacher:scripted",
        sample_index=0,
        seed=number,
        segments=segments,
        steps=(),
        stop_reason=StopReason.ANSWERED,
        num_tool_calls=1,
        usage=Usage(),
    )
