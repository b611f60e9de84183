"""What verl lacks on a CPU: a platform, a plain gloo process group, and a rollout server over HTTP.

verl imports this module in every process of the run (VERL_USE_EXTERNAL_MODULES), which registers the parts below.
"""

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import verl.utils.distributed as verl_distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from afm.training.verl.settings import ROLLOUT_BACKEND

_ZERO = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


class _CpuModule(types.ModuleType):
    """torch.cpu, and what verl asks of a device module beyond it: memory counters and no-ops."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _ZERO:
            return lambda *args, **kwargs: 0
        return getattr(torch.cpu, name, lambda *args, **kwargs: None)

    @staticmethod
    def is_available() -> bool:
        """Say no, which spares verl's cache emptying."""
        return False

    @staticmethod
    def set_device(device: Any) -> None:
        """Do nothing: there is one device."""

    @staticmethod
    def get_device_name(*_args: Any) -> str:
        """Return a name; verl looks its peak speed up."""
        return "cpu"

    @staticmethod
    def mem_get_info(*_args: Any) -> tuple[int, int]:
        """Return free and total device memory; never 0 in total, which verl divides by."""
        return 0, 1

    @staticmethod
    def get_rng_state(*_args: Any) -> torch.Tensor:
        """Return torch's generator state."""
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, *_args: Any) -> None:
        """Set torch's generator state."""
        torch.set_rng_state(state)


_MODULE = _CpuModule("afm_cpu_device")


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """The CPU as verl's accelerator; the abstract methods are verl's, their meaning is documented there."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _MODULE)

    def is_available(self) -> bool:
        """Return True."""
        return True

    def current_device(self) -> str:
        """Return what verl passes to `Tensor.to`."""
        return "cpu"

    def device_count(self) -> int:
        """Return 1."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Do nothing."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing."""

    def empty_cache(self) -> None:
        """Do nothing."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        """Return no capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return a name that means nothing here."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Mark nothing."""
        yield

    def profiler_start(self) -> None:
        """Do nothing."""

    def profiler_stop(self) -> None:
        """Do nothing."""

    def ray_resource_name(self) -> str:
        """Return a logical resource: `ray.init(num_gpus=1)` declares it."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return none."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return False."""
        return False

    def cudart(self) -> None:
        """Return None."""
        return None


def _init_process_group(timeout_second: int | None = None, backend: str | None = None) -> None:
    # verl asks for "cpu:gloo,cpu:gloo", and torch refuses a device type that is named twice.
    if torch.distributed.is_initialized():
        return
    torch.distributed.init_process_group(
        backend="gloo",
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        timeout=timedelta(seconds=timeout_second) if timeout_second else None,
        init_method=os.environ.get("DIST_INIT_METHOD"),
    )


def _load_replica() -> type:
    from afm.training.verl.http_rollout import HttpReplica

    return HttpReplica


def _register() -> None:
    # Before anything that imports the function by name.
    verl_distributed.initialize_global_process_group_ray = _init_process_group

    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from afm.training.verl.loss import install

    install()
    adapter = "afm.training.verl.http_rollout.HttpAdapter"
    base._ROLLOUT_REGISTRY[(ROLLOUT_BACKEND, "async")] = adapter
    RolloutReplicaRegistry.register(ROLLOUT_BACKEND, _load_replica)


_register()
