"""`afm ui`: the Prefect or MLflow page on what this checkout has run."""

import argparse
import signal
import sys
from pathlib import Path

from flows.servers import mlflow_server, prefect_server

ROOT = Path(__file__).resolve().parent.parent
PORTS = {"prefect": 4200, "mlflow": 5000}


def add_ui_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm ui`."""
    parser.add_argument("page", choices=sorted(PORTS))
    parser.add_argument("--port", type=int, help="default: 4200 for Prefect, 5000 for MLflow")


def ui_command(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    port = args.port or PORTS[args.page]
    server = prefect_server(ROOT, port) if args.page == "prefect" else mlflow_server(ROOT, port)
    with server:
        print(f"http://127.0.0.1:{port}  (Ctrl-C ends it)", file=sys.stderr, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0
