"""The trainer's process: the rollout server, Ray and verl's trainer, in one tree that the stage supervises.

`python -m afm.training.verl.main RUN_FILE`. What the stage must tell its user goes to the run's outcome file.
"""

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from afm.errors import ModelError, TrainerError, UserError
from afm.jsonl import write_json
from afm.training.verl.client import publish_address
from afm.training.verl.export import untied_copy
from afm.training.verl.run import DapoRun, current_run, training_rows
from afm.training.verl.settings import environment

PACKAGE_ROOT = Path(__file__).resolve().parents[3]
"""Folder that holds the `afm` package; Ray's workers import it from there."""
SERVER_LOG = "vllm.log"
_RAY_STARTS = 4
_NODES_S = 300.0
"""How long the nodes of a cluster may take to join it, once all of them have begun [s]."""


def main() -> int:
    """Train to the target step; returns 0, or 1 with the reason in the outcome file."""
    device, devices = _machine()
    os.environ.update(environment(Path(sys.argv[1]), device=device, root=PACKAGE_ROOT))
    if "RAY_ADDRESS" not in os.environ:
        # Else Ray writes a token of its own into the home folder, for every later cluster to share.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    run = current_run()
    try:
        check_prompts(run)
        with _rollout_server(run) if device == "cpu" else nullcontext():
            _train(run, device=device, devices=devices)
    except (UserError, TrainerError, ModelError) as error:
        write_json(run.outcome, {"kind": type(error).__name__, "message": str(error)})
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _machine() -> tuple[str, int]:
    """Return the device that verl trains on, and how many of it there are."""
    import torch

    return ("cuda", torch.cuda.device_count()) if torch.cuda.is_available() else ("cpu", 1)


def check_prompts(run: DapoRun) -> None:
    """Check every prompt before anything starts.

    Raises:
        UserError: a prompt is longer than `max_prompt_tokens`; verl would cut its head off.
    """
    from transformers import AutoTokenizer

    from afm.agents import user_message
    from afm.sessions import prompt_ids

    tokenizer = AutoTokenizer.from_pretrained(run.model)
    queries, fixtures = training_rows(run)
    for query in (*queries, *fixtures):
        params = run.agents[query.agent]  # type: ignore[index]
        text = user_message(query.agent, params, run.prompt, query.question)  # type: ignore[arg-type]
        ids = prompt_ids(tokenizer, text, max_model_len=run.serve.max_model_len)
        if len(ids) > run.dapo.max_prompt_tokens:
            raise UserError(
                f"query {query.query_id}: prompt of {len(ids)} tokens, more than "
                f"dapo.max_prompt_tokens {run.dapo.max_prompt_tokens}; raise it"
            )


@contextmanager
def _rollout_server(run: DapoRun) -> Iterator[None]:
    """Start the server beside verl, whose own start takes as long; its address appears in a file."""
    untied_copy(run.model, run.served)
    with ExitStack() as stack:
        starting = threading.Thread(target=_start_server, args=(run, stack.enter_context))
        starting.start()
        try:
            yield
        finally:
            starting.join()


def _start_server(run: DapoRun, enter: Callable[[Any], Any]) -> None:
    from afm.serving import serve

    try:
        server = serve(run.served, run.serve, log=run.scratch / SERVER_LOG, dev=True)
        endpoint = enter(server)
    except (ModelError, UserError) as error:
        publish_address(run.served, base_url=None, error=str(error))
        return
    publish_address(run.served, base_url=endpoint.base_url, model=endpoint.model)


def _train(run: DapoRun, *, device: str, devices: int) -> None:
    """Run verl's trainer in this process: one Python less to start than verl's own task runner."""
    import ray
    import transfer_queue as tq  # type: ignore[import-not-found]
    from omegaconf import OmegaConf

    from afm.training.verl.configure import compose
    from afm.training.verl.trainer import DapoTrainer

    joins = "RAY_ADDRESS" in os.environ
    nodes = int(os.environ.get("AFM_NODES", "1")) if joins else 1
    variables = environment(Path(sys.argv[1]), device=device, root=PACKAGE_ROOT)
    joining = variables if joins else None
    config = compose(run, device=device, devices=devices, nodes=nodes, joining=joining)
    ray_options: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    _start_ray(ray_options)
    wait_for_nodes(nodes)
    tq.init(config.transfer_queue)
    trainer = DapoTrainer(config, run)
    # With a server of its own, the agent loops' process starts beside the trainer's instead of after it.
    early = _agent_loops(config, trainer) if device == "cpu" else None
    trainer.init()
    trainer.fit(early or _agent_loops(config, trainer))
    tq.close()
    ray.shutdown()


def wait_for_nodes(count: int, timeout_s: float = _NODES_S) -> None:
    """Wait until the Ray cluster has all its nodes: verl asks for all GPUs at once, and but once.

    Raises:
        TrainerError: they did not come.
    """
    import ray

    deadline = time.monotonic() + timeout_s
    while (alive := sum(bool(node["Alive"]) for node in ray.nodes())) < count:
        if time.monotonic() > deadline:
            raise TrainerError(f"only {alive} of {count} nodes joined Ray within {timeout_s:.0f} s")
        time.sleep(0.5)


def _agent_loops(config: Any, trainer: Any) -> Any:
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ

    return AgentLoopManagerTQ.create(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=None,
        reward_loop_worker_handles=[],
    )


def _start_ray(options: dict[str, Any]) -> None:
    """Start Ray; on a machine that is busy its own limit of 30 s passes now and then."""
    import ray

    for attempt in range(1, _RAY_STARTS + 1):
        try:
            ray.init(**options)
        except Exception as error:
            if "timed out during startup" not in str(error) or attempt == _RAY_STARTS:
                raise
            print(f"Ray did not start in time (try {attempt} of {_RAY_STARTS})", file=sys.stderr)
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
