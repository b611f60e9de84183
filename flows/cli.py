"""The `afm` command. A subcommand is one module and one line in `COMMANDS`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from afm.errors import UserError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """Where a subcommand lives; loaded only when it is the one that runs, since some load MLflow or Prefect."""

    module: str
    function: str
    """Takes the parsed arguments, returns the exit code."""
    arguments: str | None
    """Adds its arguments to a parser."""
    help: str


COMMANDS = {
    "demo": Command(
        "flows.demo", "demo_command", "add_run_arguments", "run all, then show results"
    ),
    "run": Command("flows.demo", "run_command", "add_run_arguments", "run the Prefect flow once"),
    "deploy": Command(
        "flows.commands.deploy", "run", "add_arguments", "the flows to a Prefect server"
    ),
    "ui": Command("flows.ui", "ui_command", "add_ui_arguments", "open the Prefect or MLflow UI"),
    "lineage": Command(
        "flows.lineage", "lineage_command", "add_lineage_arguments", "run records to MLflow"
    ),
    "status": Command("flows.commands.status", "run", "add_arguments", "jobs and finished results"),
    "compare": Command(
        "flows.commands.compare", "run", "add_arguments", "two runs of the pipeline, cell by cell"
    ),
    "doctor": Command(
        "flows.commands.doctor", "run", "add_arguments", "what is amiss here, and what to do"
    ),
    "audit": Command(
        "flows.commands.audit", "run", "add_arguments", "what made a model, and can it be proved?"
    ),
    "report": Command(
        "flows.commands.report",
        "run",
        "add_arguments",
        "one page: lineage, results, costs, settings",
    ),
    "judge": Command(
        "flows.commands.judge", "run", "add_arguments", "how good a judge is; two judges compared"
    ),
    "why": Command("flows.commands.why", "run", "add_arguments", "what makes a stage stale"),
    "cancel": Command(
        "flows.commands.cancel", "run", "add_arguments", "end active jobs on purpose"
    ),
    "accept": Command(
        "flows.commands.accept", "run", "add_arguments", "keep results when only comments changed"
    ),
    "gc": Command("flows.commands.gc", "run", "add_arguments", "free disk space; lists first"),
    "params": Command("flows.commands.params", "run", "add_arguments", "edit params.yaml, checked"),
    "smoke": Command(
        "flows.commands.smoke",
        "run",
        "add_arguments",
        "the whole pipeline at scale smoke, in a copy",
    ),
    "serve-tools": Command(
        "flows.commands.serve_tools", "run", "add_arguments", "the agents' tools over HTTP"
    ),
    "closure": Command(
        "flows.commands.closure", "run", "add_arguments", "code dependencies in dvc.yaml"
    ),
}


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run one subcommand and exit.

    Exit codes: 0 done; 2 something the user can mend; 130 interrupted; else the subcommand's own.
    """
    words = list(sys.argv[1:] if words is None else words)
    try:
        sys.exit(_run(words))
    except UserError as error:
        print(f"afm: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader, `head` perhaps, has seen enough
        sys.exit(0)


def _run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="afm", description="Run, inspect and maintain the pipeline of this checkout."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.help, description=command.help)
        if name == chosen:
            _load(sub, command)
    args = parser.parse_args(words)
    function = vars(args).pop("function")
    return int(function(args))


def _load(parser: argparse.ArgumentParser, command: Command) -> None:
    module = importlib.import_module(command.module)
    if command.arguments is not None:
        getattr(module, command.arguments)(parser)
    parser.set_defaults(function=getattr(module, command.function))


if __name__ == "__main__":
    main()
