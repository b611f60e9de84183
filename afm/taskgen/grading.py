"""Trying the graders of queries on their own gold answers, before any stage relies on them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from afm.errors import JudgeError, UserError
from afm.params.tools import SandboxParams
from afm.progress import Progress
from afm.rewards import REWARDS, validate
from afm.types import Query

NUM_THREADS = 4
"""Golds that are tried at a time; most of the time a program waits for its sandbox."""


def require_graders(
    files: Mapping[str, Sequence[Query]], *, agent: str, reward: str, sandbox: SandboxParams
) -> None:
    """Check that the agent's reward accepts what each query itself calls right.

    Args:
        files: Rows by the name of their file.
        agent: Name of the agent.
        reward: Params `agents.<agent>.reward`.
        sandbox: Limits of programs.

    Raises:
        UserError: it refuses one, or gives no verdict; names the first such row.
    """
    rows = [
        (f"{file}:{number}", query)
        for file, queries in files.items()
        for number, query in enumerate(queries, start=1)
    ]
    progress = Progress(len(rows), "graders tried")
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        problems = pool.map(lambda row: _problem(row[1], reward, sandbox), rows)
        for (where, _), problem in zip(rows, problems, strict=True):
            if problem is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                raise UserError(f"{where}: {problem}; {_remedy(agent)}")
            progress.advance()


def golds(query: Query) -> tuple[str, ...]:
    """Return what is right: the accepted answers, or the reference program where tests decide."""
    if not query.tests:
        return query.answers
    return tuple(step.argument for step in query.solution if step.tool == "code")


def _problem(query: Query, reward: str, sandbox: SandboxParams) -> str | None:
    try:
        validate(reward, query, sandbox, golds(query))
    except (UserError, JudgeError) as error:
        return str(error)
    return None


def _remedy(agent: str) -> str:
    return (
        f"agents.{agent}.reward may be one of {sorted(REWARDS)}: choose one that fits the answers, "
        "mend the source, or leave the query out with prepare.exclude.query_ids"
    )
