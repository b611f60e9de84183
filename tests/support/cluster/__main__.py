"""The double as a program: `python -m tests.support.cluster --state FOLDER [--config FILE] [--kubeconfig FILE]`.

SIGTERM and Ctrl-C end it with every pod; after SIGKILL pods go on, and the next start with the same folder finds them.
"""

import argparse
import asyncio
import dataclasses
import signal
from pathlib import Path

from tests.support.cluster.config import CONFIG, Config
from tests.support.cluster.double import Double
from tests.support.cluster.handle import Handle


async def serve(arguments: argparse.Namespace, config: Config) -> None:
    double = Double(config, arguments.state)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner, port = await double.serve(arguments.port)
    if arguments.kubeconfig is not None:
        handle = Handle(arguments.state, config)
        handle.port = port
        namespace = next(iter(config.namespaces), "default")
        await asyncio.to_thread(handle.kubeconfig, arguments.kubeconfig, namespace=namespace)
    print(f"the double answers at http://127.0.0.1:{port}", flush=True)
    waiting = [asyncio.create_task(stop.wait()), asyncio.create_task(double.failed())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await double.stop()
    await runner.cleanup()
    double.kubelets.close()
    if double.failure is not None:
        raise double.failure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.cluster", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="folder of the cluster's state")
    parser.add_argument(
        "--config", type=Path, help="a Config as JSON; by default one node with 8 GPUs"
    )
    parser.add_argument("--port", type=int, default=0, help="by default a free one")
    parser.add_argument(
        "--kubeconfig", type=Path, help="where to write the administrator's kubeconfig"
    )
    parser.add_argument("--time-scale", type=float, help="goes before the one of --config")
    arguments = parser.parse_args()
    config = CONFIG.validate_json(arguments.config.read_bytes()) if arguments.config else Config()
    if arguments.time_scale is not None:
        config = dataclasses.replace(config, time_scale=arguments.time_scale)
    asyncio.run(serve(arguments, config))


if __name__ == "__main__":
    main()
