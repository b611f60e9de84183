"""What verl is told: our params as the overrides of its own configuration. Plain data, so that tests need no verl.

Sources: DAPO (arXiv 2503.14476) as the paper uses it (section 3.3), and the official training scripts
(train_dapo_web_agent.sh, train_dapo_code_agent.sh); docs/paper-to-code.md has the differences.
"""

import os
from pathlib import Path
from typing import Any

from afm.ids import derived_seed
from afm.training.verl.run import RUN_VARIABLE, DapoRun

ROLLOUT_BACKEND = "vllm_http"
"""Name under which verl knows the server of another environment."""

_LOGICAL_CPUS = 8
"""Ray counts these for placing actors; it does not bind them."""
_OBJECT_STORE_BYTES = 300_000_000
_NO_EPOCH_LIMIT = 10**9
_OWN_PACKAGE = "pkg://afm.training.verl"

_QUIET = {
    "DO_NOT_TRACK": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "WANDB_MODE": "disabled",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_DEDUP_LOGS": "0",
}
"""No telemetry, no hub; one line per log line."""

_LEAN_RAY = {
    # Ray would start an idle Python per logical CPU, each of which costs a second of CPU time.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray would run the trainer at nice 15, and anything else on the machine would take its cores.
    "RAY_worker_niceness": "0",
}

_PATIENT_RAY = {
    # Ray gives its own processes 30 s to find each other, which a busy machine exceeds.
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_gcs_server_request_timeout_seconds": "300",
}

_VERL_ON_CPU = {
    "VERL_USE_EXTERNAL_MODULES": "afm.training.verl.cpu",
    "VERL_PLATFORM": "cpu",
    # verl's FSDP engine is registered for "cuda" and "npu" only; it needs neither.
    "VERL_ENGINE_DEVICE": "cuda",
}


def environment(run_file: Path, *, device: str, root: Path) -> dict[str, str]:
    """Return the environment variables of the trainer's process and of all that it starts.

    Args:
        run_file: File of the run.
        device: `cpu` or `cuda`.
        root: Folder that holds the `afm` package.
    """
    common = _QUIET | {RUN_VARIABLE: str(run_file.resolve()), "PYTHONPATH": str(root)}
    if device == "cuda":
        return common
    cores = str(os.cpu_count() or 1)
    threads = {"OMP_NUM_THREADS": cores, "TQ_NUM_THREADS": cores}
    return common | _LEAN_RAY | _PATIENT_RAY | _VERL_ON_CPU | threads


def settings(run: DapoRun, *, device: str, devices: int) -> dict[str, Any]:
    """Return the overrides as nested plain data.

    Args:
        run: The run.
        device: `cpu` or `cuda`.
        devices: Accelerators of this machine; 1 on a CPU.
    """
    return {
        "algorithm": _algorithm(run, device=device),
        "data": _data(run),
        "actor_rollout_ref": {
            "actor": _actor(run, device=device),
            "model": _model(run, device=device),
            "rollout": _rollout(run, device=device),
        },
        # Rewards are computed in the agent loop, so verl's reward workers would only sit there.
        "reward": {"num_workers": 0},
        "trainer": _trainer(run, device=device, devices=devices),
        "transfer_queue": {
            "enable": True,
            "backend": {"SimpleStorage": {"num_data_storage_units": 1}},
        },
        "ray_kwargs": {"ray_init": _ray(run, device=device)},
    }


def one_forward_pass(run: DapoRun, *, device: str) -> bool:
    """Tell whether the update's own forward pass replaces the one before it.

    With one update per step, sampling and updated policy are the same. On a CPU their probabilities also agree to
    rounding, so the rollout's log-probabilities serve as the old ones, and the update compares them with its own.
    """
    return device == "cpu" and run.dapo.mini_batch_size == run.dapo.train_batch_size


def _algorithm(run: DapoRun, *, device: str) -> dict[str, Any]:
    return {
        "rollout_correction": {"bypass_mode": one_forward_pass(run, device=device)},
        "adv_estimator": "grpo",
        "norm_adv_by_std_in_grpo": True,
        "use_kl_in_reward": False,
        # Makes verl draw single rows; the filtering itself and its cap are our sampler's.
        "filter_groups": {"enable": run.dapo.dynamic_sampling, "metric": "acc"},
    }


def _data(run: DapoRun) -> dict[str, Any]:
    return {
        "train_files": str(run.queries),
        "val_files": str(run.queries),
        "train_batch_size": run.batch_size,
        "max_prompt_length": run.dapo.max_prompt_tokens,
        "max_response_length": run.max_response_tokens,
        "dataloader_num_workers": 0,
        # The stream is in its final, seeded order.
        "shuffle": False,
        "seed": run.dapo.seed,
        "custom_cls": {"path": f"{_OWN_PACKAGE}.stream", "name": "QueryStream"},
    }


def _actor(run: DapoRun, *, device: str) -> dict[str, Any]:
    dapo = run.dapo
    return {
        "strategy": "fsdp2",
        "ppo_mini_batch_size": run.mini_batch_size,
        "ppo_micro_batch_size_per_gpu": dapo.micro_batch_size,
        "ppo_epochs": 1,
        "data_loader_seed": _seed(run, "batches"),
        "clip_ratio": dapo.clip_ratio_low,
        "clip_ratio_low": dapo.clip_ratio_low,
        "clip_ratio_high": dapo.clip_ratio_high,
        "clip_ratio_c": dapo.clip_ratio_c,
        "loss_agg_mode": "token-mean",
        "use_kl_loss": False,
        "entropy_coeff": 0,
        "grad_clip": dapo.grad_clip,
        "optim": {
            "lr": dapo.lr,
            "lr_warmup_steps": dapo.warmup_steps,
            "weight_decay": dapo.weight_decay,
            "clip_grad": dapo.grad_clip,
        },
        "checkpoint": {"save_contents": ["model", "optimizer", "extra"]},
        **_engine(run, device=device),
    }


def _engine(run: DapoRun, *, device: str) -> dict[str, Any]:
    seed = _seed(run, "torch")
    if device == "cuda":
        longest = run.dapo.max_prompt_tokens + run.max_response_tokens
        offload = {"param_offload": True, "optimizer_offload": True, "seed": seed}
        return {
            "fsdp_config": offload,
            "use_dynamic_bsz": True,
            "ppo_max_token_len_per_gpu": longest,
        }
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    fsdp = {"model_dtype": "fp32", "mixed_precision": precision, "use_torch_compile": False}
    return {"fsdp_config": fsdp | {"seed": seed}, "use_torch_compile": False}


def _model(run: DapoRun, *, device: str) -> dict[str, Any]:
    on_gpu = device == "cuda"
    attention = {} if on_gpu else {"override_config": {"attn_implementation": "sdpa"}}
    return {
        "path": str(run.model),
        # Packing needs a variable-length attention kernel, which a CPU lacks; rows are sorted by length instead.
        "use_remove_padding": on_gpu,
        "enable_gradient_checkpointing": on_gpu,
        **attention,
    }


def _rollout(run: DapoRun, *, device: str) -> dict[str, Any]:
    common = {
        "n": run.dapo.group_size,
        "temperature": run.dapo.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "seed": _seed(run, "rollout"),
        "calculate_log_probs": True,
        "log_prob_micro_batch_size_per_gpu": run.dapo.micro_batch_size,
        "max_model_len": run.serve.max_model_len,
        "max_num_seqs": run.serve.max_num_seqs,
        "dtype": run.serve.dtype,
    }
    agent = {"agent_loop_config_path": str(agent_loops_file(run))}
    if device == "cuda":
        tensor_parallel = run.serve.tensor_parallel_size
        memory = run.serve.gpu_memory_utilization
        gpu = {"name": "vllm", "tensor_model_parallel_size": tensor_parallel}
        return common | gpu | {"gpu_memory_utilization": memory, "agent": agent}
    cpu = {"name": ROLLOUT_BACKEND, "tensor_model_parallel_size": 1, "load_format": "auto"}
    router = {"router_config_path": str(router_file(run))}
    return common | cpu | router | {"agent": agent | {"num_workers": 1}}


def _trainer(run: DapoRun, *, device: str, devices: int) -> dict[str, Any]:
    return {
        "device": device,
        "nnodes": 1,
        "n_gpus_per_node": devices,
        "total_epochs": _NO_EPOCH_LIMIT,
        "total_training_steps": run.dapo.total_steps,
        "save_freq": run.dapo.checkpoint_steps,
        "test_freq": -1,
        "val_before_train": False,
        "logger": [],
        "resume_mode": "auto",
        "default_local_dir": str(run.checkpoints.resolve()),
        "checkpoint_callback_class": "afm.training.verl.trainer.MarkComplete",
        "v1": {
            "trainer_mode": "sync",
            "sampler": {
                "custom_sampler": {"path": f"{_OWN_PACKAGE}.sampler", "name": "CappedSampler"}
            },
        },
    }


def _ray(run: DapoRun, *, device: str) -> dict[str, Any]:
    common = {"include_dashboard": False, "_temp_dir": str(run.ray_folder), "log_to_driver": True}
    if device == "cuda":
        return common
    logical = {"num_cpus": _LOGICAL_CPUS, "num_gpus": 1}
    return common | logical | {"object_store_memory": _OBJECT_STORE_BYTES}


def agent_loops_file(run: DapoRun) -> Path:
    """Return the file with verl's registry of agent loops."""
    return run.scratch / "agent_loops.yaml"


def router_file(run: DapoRun) -> Path:
    """Return the file that names verl's load balancer."""
    return run.scratch / "router.yaml"


def _seed(run: DapoRun, what: str) -> int:
    return derived_seed(run.dapo.seed, what) % 2**31
