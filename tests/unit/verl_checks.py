"""Checks that need verl; run by test_verl_bridge.py with the Python of the rl environment, which has no pytest.

`python tests/unit/verl_checks.py RUN_FILE` prints one JSON object: check -> "ok" or what failed.
"""

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUN_FILE = Path(sys.argv[1])

from afm.training.verl.settings import environment  # noqa: E402

os.environ.update(environment(RUN_FILE, device="cpu", root=Path.cwd()))

import torch  # noqa: E402
from verl.protocol import DataProto  # noqa: E402
from verl.trainer.ppo.v1 import replay_buffer  # noqa: E402
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories  # noqa: E402

from afm.errors import TrainerError, UserError  # noqa: E402
from afm.jsonl import read_json  # noqa: E402
from afm.training.verl import sampler, trainer  # noqa: E402
from afm.training.verl.configure import compose  # noqa: E402
from afm.training.verl.journal import append_row  # noqa: E402
from afm.training.verl.run import JudgeSeat, current_run  # noqa: E402
from afm.training.verl.stream import QueryStream  # noqa: E402

RUN = current_run()


class Queue:
    """An in-memory TransferQueue with the calls that a replay buffer makes."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, Any]] = {}
        self.infos: dict[str, dict[str, Any]] = {}

    def add(self, uid: str, rewards: list[float | None], status: str = "finished") -> None:
        """Add a finished group; None is a rollout that failed and left nothing."""
        self.tags[uid] = {"is_prompt": True, "status": status, "global_steps": 1}
        for session, reward in enumerate(rewards):
            if reward is not None:
                key = f"{uid}_{session}_0"
                self.tags[key] = {"seq_len": 10, "global_steps": 1}
                info = {"acc": reward, "reward": reward, "agent": "mhqa", "policy_tokens": 7}
                info |= {"query_id": f"query of {uid}"}
                info |= {"observation_tokens": 3, "tool_calls": 1, "logprob": -1.0}
                self.infos[key] = {"reward_extra_info": info}

    def kv_list(self, *_: Any) -> dict[str, Any]:
        return {"train": dict(self.tags)}

    def kv_batch_get(self, *, keys: list[str], **_: Any) -> dict[str, Any]:
        return {"extra_fields": [self.infos[key] for key in keys]}

    def kv_clear(self, *, keys: list[str], **_: Any) -> None:
        for key in keys:
            self.tags.pop(key, None)


def make_sampler(queue: Queue, refill: Callable[[int], int], **dapo: Any) -> Any:
    sampler.tq = replay_buffer.tq = queue
    buffer = sampler.CappedSampler(
        trainer_mode="sync", trainer_config={}, max_off_policy_threshold=8, max_off_policy_strategy="drop",
        sampler_kwargs={}, refill_fn=refill,
    )  # fmt: skip
    settings = RUN.dapo.model_copy(update={"group_size": 3, "dynamic_sampling": True, **dapo})
    buffer.run = RUN.model_copy(update={"dapo": settings})
    return buffer


def refuse(_count: int) -> int:
    raise AssertionError("drew more queries than it needed")


def raises(kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def check_groups_without_gradient_are_dropped_and_replaced() -> None:
    queue, drawn = Queue(), []

    def refill(count: int) -> int:
        drawn.append(count)
        for i in range(count):
            queue.add(f"r{len(drawn)}{i}", [0.0, 1.0, 1.0])
        return count

    queue.add("b", [1.0, 0.0, 0.0])
    queue.add("a", [1.0, 1.0, 1.0])
    batch, metrics = make_sampler(queue, refill, max_gen_batches=3).sample(1, "train", 2)
    assert drawn == [2], drawn
    assert [key.split("_")[0] for key in batch.keys] == ["b"] * 3 + ["r10"] * 3, batch.keys
    assert (metrics["dapo/groups"], metrics["dapo/kept_groups"]) == (4, 3), metrics
    assert metrics["dapo/gen_batches"] == 2
    assert read_json(RUN.draws) == {
        "trained": ["query of b", "query of r10"],
        "surplus": ["query of r11"],
        "without_gradient": ["query of a"],
    }


def check_the_cap_stops_with_advice_when_nothing_is_informative() -> None:
    queue, drawn = Queue(), []

    def refill(count: int) -> int:
        drawn.append(count)
        queue.add(f"r{len(drawn)}", [0.0, 0.0, 0.0])
        return count

    queue.add("a", [0.0, 0.0, 0.0])
    buffer = make_sampler(queue, refill, max_gen_batches=3)
    raises(UserError, "dapo.max_gen_batches 3", lambda: buffer.sample(1, "train", 2))
    assert len(drawn) == 2, drawn


def check_the_cap_trains_on_what_there_is() -> None:
    queue = Queue()
    queue.add("a", [0.0, 1.0, 0.0])
    buffer = make_sampler(queue, refuse, max_gen_batches=1)
    batch, _ = buffer.sample(1, "train", 4)
    assert len(batch.keys) == 3


def check_a_failed_rollout_leaves_its_group() -> None:
    queue = Queue()
    queue.add("a", [1.0, None, 0.0])
    buffer = make_sampler(queue, refuse, max_gen_batches=1, max_failed_share=0.5)
    batch, metrics = buffer.sample(1, "train", 1)
    assert list(batch.keys) == ["a_0_0", "a_2_0"]
    assert (metrics["dapo/failed"], metrics["dapo/acc_mean"]) == (1, 0.5)


def check_too_many_failures_stop_the_stage() -> None:
    queue = Queue()
    queue.add("a", [1.0, None, 0.0])
    append_row(RUN.failures, {"step": 1, "uid": "a", "kind": "failed", "error": "index gone"})
    buffer = make_sampler(queue, refuse, max_failed_share=0.05)
    raises(TrainerError, "index gone", lambda: buffer.sample(1, "train", 1))


def check_an_unjudged_rollout_leaves_its_group_and_is_no_failure() -> None:
    queue = Queue()
    queue.add("u", [1.0, None, 0.0])
    append_row(RUN.failures, {"step": 1, "uid": "u", "kind": "unjudged", "error": "judge gone"})
    limits = {"max_failed_share": 0.0, "max_unjudged_share": 0.5, "max_gen_batches": 1}
    batch, metrics = make_sampler(queue, refuse, **limits).sample(1, "train", 1)
    assert list(batch.keys) == ["u_0_0", "u_2_0"]
    assert (metrics["dapo/failed"], metrics["dapo/unjudged"]) == (0, 1), metrics
    assert (metrics["dapo/acc_mean"], metrics["dapo/rollouts"]) == (0.5, 2), metrics


def check_a_broken_judge_stops_the_stage() -> None:
    queue = Queue()
    queue.add("v", [1.0, None, 0.0])
    append_row(RUN.failures, {"step": 1, "uid": "v", "kind": "unjudged", "error": "judge gone"})
    buffer = make_sampler(queue, refuse, max_unjudged_share=0.05)
    raises(UserError, "judge gone", lambda: buffer.sample(1, "train", 1))


def judged_run(base_url: str) -> Any:
    """Return the run with a judge at an address."""
    who = {"endpoint": "judge", "name": "policy", "revision": "r"}
    access = {"model": {"name": "policy", "revision": "r"}, "base_url": base_url, "timeout_s": 2.0}
    access |= {"api_key_variable": None, "concurrency": 4, "max_tries": 1, "max_total_tokens": None}
    access |= {"prompt_price": 0.0, "completion_price": 0.0}
    asking = {"prompt": "equivalence_v1", "max_answer_chars": 100, "max_tokens": 64, "max_asks": 1}
    asking |= {"decoy_check": True, "min_agreement": 0.9}
    seat = {"model": who, "asking": asking, "access": access, "base_url": base_url}
    judge = JudgeSeat.model_validate(seat | {"api_key_variable": None})
    agent = RUN.agents["mhqa"].model_copy(update={"reward": "llm_judge"})
    return RUN.model_copy(update={"judge": judge, "agents": {**RUN.agents, "mhqa": agent}})


def check_the_agent_loop_asks_the_judge_and_leaves_out_what_it_does_not_judge() -> None:
    import tests
    from afm.training.verl import agent_loop

    # Some package of that environment brings a `tests` of its own, which goes before a folder without __init__.
    tests.__path__ = [str(Path.cwd() / "tests")]
    from tests.unit.fake_server import listed, said, scripted_server
    from tests.unit.judge_world import data_of, honest
    from tests.unit.synthetic import good_parts, query, trajectory

    def judge(body: Any) -> Any:
        return said("INCORRECT") if data_of(body)["candidate"] == "?" else honest(body)

    asked = query()
    with scripted_server(listed(), reply=judge) as (endpoint, _):
        run = judged_run(endpoint.base_url)
        agent_loop.current_run = lambda: run
        agent_loop._judge.cache_clear()
        loop = object.__new__(agent_loop.PolicyLoop)
        loop.agent, loop.run_settings = "mhqa", run

        async def reward(text: str) -> Any:
            row = trajectory(asked, good_parts(text), policy="rl")
            verdict = await loop._verdict(row, asked)
            return loop._score(row, asked, 1, f"uid-{text}", verdict)

        async def rewards() -> list[Any]:
            return list(await asyncio.gather(*map(reward, ("oslo", "Bergen", "?"))))

        right, wrong, unjudged = asyncio.run(rewards())
    assert (right.acc, wrong.acc, unjudged) == (1.0, 0.0, None), (right, wrong, unjudged)
    assert sampler.unjudged_rollouts(run, "uid-?") == 1
    assert sampler.unjudged_rollouts(run, "uid-Bergen") == 0


def check_another_judge_is_another_run() -> None:
    one = judged_run("http://a/v1")
    moved = one.model_copy(
        update={"judge": one.judge.model_copy(update={"base_url": "http://b/v1"})}
    )
    model = one.judge.model.model_copy(update={"revision": "s"})
    other = one.model_copy(update={"judge": one.judge.model_copy(update={"model": model})})
    assert one.fingerprint() == moved.fingerprint() != other.fingerprint()
    assert one.fingerprint() != RUN.fingerprint()


def check_a_bug_in_the_agent_loop_stops_the_stage() -> None:
    queue = Queue()
    queue.add("a", [1.0, 0.0], status="failure")
    raises(TrainerError, "agent loop", lambda: make_sampler(queue, refuse).sample(1, "train", 1))


def check_without_dynamic_sampling_every_group_is_used() -> None:
    queue = Queue()
    queue.add("a", [1.0, 1.0, 1.0])
    batch, _ = make_sampler(queue, refuse, dynamic_sampling=False).sample(1, "train", 1)
    assert len(batch.keys) == 3


def check_the_advantage_is_grpo_over_the_rollouts_that_did_not_fail() -> None:
    rewards = {"a_0_0": 1.0, "a_2_0": 0.0, "a_3_0": 1.0, "b_0_0": 0.0, "b_1_0": 0.5}
    mask = torch.tensor([[1, 1, 0, 1]] * len(rewards))
    scores = torch.zeros(len(rewards), 4)
    scores[:, -1] = torch.tensor(list(rewards.values()))
    data = DataProto.from_dict(
        tensors={"token_level_rewards": scores, "response_mask": mask},
        non_tensors={"uid": [key[0] for key in rewards]},
    )
    config = compose(RUN, device="cpu", devices=1).algorithm
    out = compute_advantage_for_multi_trajectories(
        data,
        batch_keys=list(rewards),
        adv_estimator="grpo",
        norm_adv_by_std_in_grpo=True,
        config=config,
    )
    for name in ("a", "b"):
        values = torch.tensor([r for key, r in rewards.items() if key[0] == name])
        expected = (values - values.mean()) / (values.std() + 1e-6)
        rows = [i for i, key in enumerate(rewards) if key[0] == name]
        assert torch.allclose(out.batch["advantages"][rows, 0], expected, atol=1e-5)
        assert torch.all(out.batch["advantages"][rows, 2] == 0), (
            "an observation token has an advantage"
        )


def check_stale_weights_stop_the_stage() -> None:
    limit = RUN.dapo.max_probs_diff
    trainer.check_probs(limit / 2, RUN, 1)
    raises(TrainerError, "stale weights", lambda: trainer.check_probs(limit * 2, RUN, 1))
    raises(TrainerError, "stale weights", lambda: trainer.check_probs(float("nan"), RUN, 1))


def check_verl_accepts_the_settings_of_a_cpu_and_of_gpus() -> None:
    for device, devices in (("cpu", 1), ("cuda", 1)):
        config = compose(RUN, device=device, devices=devices)
        assert config.trainer.device == device
        assert config.actor_rollout_ref.actor.clip_ratio_c == RUN.dapo.clip_ratio_c
        assert config.actor_rollout_ref.actor.ppo_mini_batch_size == RUN.mini_batch_size


def check_a_cluster_that_is_there_is_joined_with_all_its_nodes() -> None:
    config = compose(RUN, device="cuda", devices=8, nodes=4, joining={"AFM_DAPO_RUN": "run.json"})
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (4, 8)
    started = config.ray_kwargs.ray_init
    assert set(started) == {"log_to_driver", "runtime_env"}, "Ray refuses what a node was told"
    assert started.runtime_env.env_vars["AFM_DAPO_RUN"] == "run.json"
    alone = compose(RUN, device="cuda", devices=8)
    assert alone.trainer.nnodes == 1
    assert "AFM_DAPO_RUN" not in alone.ray_kwargs.ray_init.runtime_env.env_vars


def check_the_stream_ends_every_batch_with_the_fixtures() -> None:
    stream = QueryStream()
    agents = [stream[i]["agent_name"] for i in range(RUN.batch_size)]
    assert agents.count("web") == agents.count("code") == 2, agents
    assert set(agents[: RUN.dapo.train_batch_size]) == {"mhqa"}, agents


def main() -> None:
    found = {name: f for name, f in globals().items() if name.startswith("check_")}
    results = {}
    for name, check in found.items():
        try:
            check()
            results[name] = "ok"
        except Exception:  # noqa: BLE001 - reported to the test that asked
            results[name] = traceback.format_exc()
    print(json.dumps(results))


main()
