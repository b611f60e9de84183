"""A model whose weights, gradients and moments lie in shards on several ranks (FSDP2)."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.training.packing import register_attention, token_losses


def load_sharded(folder: Path, device: Any) -> Any:
    """Load a causal language model in fp32; every rank reads its own rows of the weights and no more.

    The model gets a method `token_losses`: FSDP gathers the weights around it, as it would around `forward`.

    Raises:
        UserError: the folder's weights are not the safetensors that its config describes.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    model = _empty_model(folder)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _materialise(model, device)
    _read_weights(model, folder)
    if device.type == "cuda":
        model.gradient_checkpointing_enable()
    model.token_losses = partial(token_losses, model)
    register_fsdp_forward_method(model, "token_losses")
    return model


def whole_weights(model: Any, *, keep: bool) -> dict[str, Any]:
    """Gather the weights on the CPU, one at a time; a collective call, empty where they are not kept."""
    from torch.distributed.tensor import DTensor

    weights: dict[str, Any] = {}
    for name, weight in model.named_parameters():
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
        if keep:
            weights[name] = whole.detach().cpu()
    return weights


def shards(model: Any, optimizers: Sequence[Any]) -> dict[str, Any]:
    """Return the state of a run by the names of its weights, so that any number of ranks can read it."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, moments = get_state_dict(model, optimizers)
    return {"model": weights, "optimizers": moments}


def set_shards(model: Any, optimizers: Sequence[Any], state: Mapping[str, Any]) -> None:
    """Put back what `shards` returned."""
    from torch.distributed.checkpoint.state_dict import set_state_dict

    set_state_dict(
        model, optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizers"]
    )


def set_whole(model: Any, optimizers: Sequence[Any], state: Mapping[str, Any]) -> None:
    """Put back the state of a run that one process made."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, dict(state["model"]), options=options)
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        moments = {
            number: {name: _like(value, weights[number]) for name, value in entry.items()}
            for number, entry in saved["state"].items()
        }
        optimizer.load_state_dict({**saved, "state": moments})


def _like(value: Any, weight: Any) -> Any:
    """Shard a moment as its weight is; a counter of steps stays as it is."""
    from torch.distributed.tensor import distribute_tensor

    if value.shape != weight.shape:
        return value
    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)


def _empty_model(folder: Path) -> Any:
    """Build the model without memory for its weights; what is computed from the config alone is there."""
    import torch
    from accelerate import init_empty_weights  # type: ignore[import-untyped]
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            AutoConfig.from_pretrained(str(folder)),
            dtype=torch.float32,
            attn_implementation=register_attention(),
        )
    model.tie_weights()
    if (folder / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(str(folder))
    return model


def _materialise(model: Any, device: Any) -> None:
    import torch

    def place(tensor: Any) -> Any:
        if tensor.device.type == "meta":
            return torch.empty_like(tensor, device=device)
        return tensor.to(device)

    model._apply(place)


def _read_weights(model: Any, folder: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    state = {name: weight.detach() for name, weight in model.named_parameters()}
    try:
        load(state, storage_reader=HuggingFaceStorageReader(str(folder)))
    except CheckpointException as error:
        raise UserError(
            f"{folder}: several GPUs read weights from *.safetensors whose names are those of the config's model: "
            f"{error}"
        ) from error
