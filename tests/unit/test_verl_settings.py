"""What verl is told."""

from pathlib import Path
from typing import Any

import pytest

from afm.errors import UserError
from afm.params.root import read_params
from afm.training.verl.run import DapoRun
from afm.training.verl.settings import environment, settings


def make_run(scale: str, **changes: Any) -> DapoRun:
    params = read_params(Path("params.yaml"))
    chosen = params.scales[scale]
    scratch = Path("scratch")
    return DapoRun(
        agent="mhqa", scale="tiny", model=Path("m"), queries=Path("q.jsonl"), index=Path("i"), agents=params.agents,
        tools=params.tools, sandbox=params.sandbox, prompt=chosen.prompt, dapo=chosen.dapo.model_copy(update=changes),
        serve=chosen.serve, scratch=scratch, steps=scratch / "steps.jsonl",
    )  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_dapo_is_dapo(device: str) -> None:
    told = settings(make_run("tiny"), device=device, devices=1)
    actor = told["actor_rollout_ref"]["actor"]
    assert (actor["clip_ratio_low"], actor["clip_ratio_high"], actor["clip_ratio_c"]) == (
        0.2,
        0.28,
        10,
    )
    assert actor["loss_agg_mode"] == "token-mean"
    assert not actor["use_kl_loss"]
    assert not told["algorithm"]["use_kl_in_reward"]
    assert told["algorithm"]["adv_estimator"] == "grpo"
    assert told["algorithm"]["filter_groups"] == {"enable": True, "metric": "acc"}
    assert told["actor_rollout_ref"]["rollout"]["calculate_log_probs"]
    assert told["trainer"]["logger"] == []


def test_a_cpu_trains_in_fp32_against_a_server_and_a_gpu_colocated() -> None:
    cpu = settings(make_run("tiny"), device="cpu", devices=1)["actor_rollout_ref"]
    assert cpu["actor"]["fsdp_config"]["mixed_precision"]["param_dtype"] == "fp32"
    assert cpu["rollout"]["name"] == "vllm_http"
    told = settings(make_run("7b"), device="cuda", devices=8)
    gpu = told["actor_rollout_ref"]
    assert gpu["rollout"]["name"] == "vllm"
    assert gpu["rollout"]["tensor_model_parallel_size"] == 4
    assert "mixed_precision" not in gpu["actor"]["fsdp_config"]
    assert told["trainer"]["n_gpus_per_node"] == 8
    assert told["trainer"]["device"] == "cuda"


def test_the_environment_has_no_telemetry_and_no_cpu_plugin_on_a_gpu() -> None:
    cpu = environment(Path("run.json"), device="cpu", root=Path("/root"))
    gpu = environment(Path("run.json"), device="cuda", root=Path("/root"))
    assert cpu["RAY_USAGE_STATS_ENABLED"] == gpu["RAY_USAGE_STATS_ENABLED"] == "0"
    assert cpu["VERL_PLATFORM"] == "cpu"
    assert "VERL_PLATFORM" not in gpu


def test_fixtures_join_every_batch() -> None:
    run = make_run("smoke", fixture_agents=("web", "code"), train_batch_size=4, mini_batch_size=4)
    told = settings(run, device="cpu", devices=1)
    assert told["data"]["train_batch_size"] == 8
    assert told["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] == 8


def test_fixtures_need_one_mini_batch_per_step() -> None:
    run = make_run("smoke", fixture_agents=("web",), train_batch_size=4, mini_batch_size=2)
    with pytest.raises(UserError, match="mini_batch_size"):
        settings(run, device="cpu", devices=1)


def test_the_context_curriculum_switches_after_its_step() -> None:
    stages = make_run("tiny").dapo.response_schedule[0]
    later = stages.model_copy(update={"from_step": 40, "max_response_tokens": 2000})
    run = make_run("tiny", response_schedule=(stages, later))
    assert [run.response_tokens(step) for step in (1, 40, 41)] == [
        stages.max_response_tokens
    ] * 2 + [2000]
    assert run.max_response_tokens == 2000


def test_seeds_differ_by_purpose_and_ray_gets_a_short_folder() -> None:
    told = settings(make_run("tiny"), device="cpu", devices=1)
    actor = told["actor_rollout_ref"]["actor"]
    assert actor["data_loader_seed"] != told["actor_rollout_ref"]["rollout"]["seed"]
    assert len(told["ray_kwargs"]["ray_init"]["_temp_dir"]) < 30


def test_the_forward_pass_before_the_update_is_spared_only_where_it_repeats_it() -> None:
    def spared(device: str, **changes: int) -> bool:
        told = settings(make_run("tiny", **changes), device=device, devices=1)
        return bool(told["algorithm"]["rollout_correction"]["bypass_mode"])

    assert spared("cpu", train_batch_size=16, mini_batch_size=16)
    assert not spared("cpu", train_batch_size=16, mini_batch_size=8)
    assert not spared("cuda", train_batch_size=16, mini_batch_size=16)
