"""verl's configuration: its own defaults, our settings on top, checked by verl."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from afm.training.verl.agent_loop import loop_config
from afm.training.verl.run import DapoRun
from afm.training.verl.settings import agent_loops_file, router_file, settings


def compose(
    run: DapoRun,
    *,
    device: str,
    devices: int,
    nodes: int = 1,
    joining: Mapping[str, str] | None = None,
) -> Any:
    """Return verl's resolved `DictConfig` for a run, and write the two files that it names.

    Args:
        run: The run.
        device: `cpu` or `cuda`.
        devices: Accelerators of each node; 1 on a CPU.
        nodes: Of the Ray cluster.
        joining: Variables for the workers of a Ray cluster that is there already; None to start one here.
    """
    import verl.trainer
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf
    from verl.utils.config import validate_config

    agent_loops_file(run).write_text(yaml.safe_dump(loop_config(run)), encoding="utf-8")
    router = {"router_class": "afm.training.verl.router.NoRouter"}
    router_file(run).write_text(yaml.safe_dump(router), encoding="utf-8")
    folder = Path(verl.trainer.__path__[0]) / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        defaults = hydra_compose("ppo_trainer")
    OmegaConf.set_struct(defaults, False)
    config = OmegaConf.merge(defaults, settings(run, device=device, devices=devices))
    config.trainer.nnodes = nodes
    config.ray_kwargs.ray_init = _ray_init(config, joining)
    validate_config(config=config, use_reference_policy=False, use_critic=False)
    OmegaConf.resolve(config)
    return config


def _ray_init(config: Any, joining: Mapping[str, str] | None) -> Any:
    """Return what Ray is started or joined with."""
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    environment = OmegaConf.create({"runtime_env": get_ppo_ray_runtime_env(config)})
    # What a node has was said when it started, and Ray refuses to hear it again.
    started = config.ray_kwargs.ray_init if joining is None else {"log_to_driver": True}
    merged = OmegaConf.merge(environment, started)
    if joining is not None:
        merged.runtime_env.env_vars.update(joining)
    return merged
