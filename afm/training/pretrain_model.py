"""Recipe, model, optimizers and loss of the small base model."""

from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM

from afm.training.optim import Muon32
from afm.training.pretrain_text.batches import Batch
from afm.training.tokenizer import SPECIAL_TOKENS, TAGS


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All that fixes the weights."""

    seed: int = 1
    steps: int = 3000
    batch_tokens: int = 4096
    max_document_tokens: int = 512
    warmup_steps: int = 60
    final_lr_share: float = 0.03
    """The learning rates fall linearly to this share of their peak."""
    muon_lr: float = 0.02
    muon_weight_decay: float = 0.1
    adamw_lr: float = 3e-3
    adamw_betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    init_std: float = 0.06
    vocab_size: int = 1152
    tokenizer_documents: int = 6000
    hidden_size: int = 192
    num_layers: int = 4
    num_heads: int = 6
    intermediate_size: int = 512
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


def build_model(recipe: Recipe) -> Qwen2ForCausalLM:
    """A Qwen2 with fresh weights."""
    torch.manual_seed(recipe.seed)
    # The stubs do not list attn_implementation.
    config = Qwen2Config(  # type: ignore[call-arg]
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        intermediate_size=recipe.intermediate_size,
        max_position_embeddings=recipe.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        rms_norm_eps=recipe.rms_norm_eps,
        initializer_range=recipe.init_std,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
        pad_token_id=SPECIAL_TOKENS.index("<|pad|>"),
        attn_implementation="sdpa",
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def build_optimizers(model: Qwen2ForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings, norms and biases."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    taken = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in taken]
    return [
        Muon32(matrices, lr=recipe.muon_lr, weight_decay=recipe.muon_weight_decay),
        # No weight decay: the rows of the tags must stay as they were drawn.
        torch.optim.AdamW(rest, lr=recipe.adamw_lr, betas=recipe.adamw_betas, weight_decay=0.0),
    ]


def lr_share(step: int, recipe: Recipe) -> float:
    """Learning rate of a step as a share of its peak: linear up, then linear down."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    left = (recipe.steps - step) / max(1, recipe.steps - recipe.warmup_steps)
    return recipe.final_lr_share + (1 - recipe.final_lr_share) * left


def batch_loss(model: Qwen2ForCausalLM, batch: Batch, barred: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the trained tokens.

    Args:
        model: The model.
        batch: The batch.
        barred: ``[V]`` float, minus infinity where an entry takes no part in the softmax.
    """
    hidden = model.model(input_ids=batch.ids[:, :-1], use_cache=False).last_hidden_state
    chosen = batch.trained[:, 1:]
    logits = model.lm_head(hidden[chosen]) + barred
    return functional.cross_entropy(logits, batch.ids[:, 1:][chosen])


def barred_tags(recipe: Recipe) -> torch.Tensor:
    """``[V]`` float: minus infinity at the tags, 0 elsewhere.

    The tags never occur in this text. Left in the softmax, their tied rows would be pushed away
    from every hidden state and fine-tuning would first have to undo that. Barred, they get no
    gradient and keep their initial draw.
    """
    barred = torch.zeros(recipe.vocab_size)
    barred[len(SPECIAL_TOKENS) : len(SPECIAL_TOKENS) + len(TAGS)] = float("-inf")
    return barred
