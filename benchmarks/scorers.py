"""Whether each benchmark's scorer accepts its gold answers and refuses those of other rows: one JSON line per figure.

`python -m benchmarks.scorers [FOLDER] [NAME ...]`: the folder of the files (default: AFM_BENCHMARKS, or
shared/data/benchmarks beside the project), and which of them. Every exception is listed on stderr. The files are not
part of the project.
"""

import json
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from afm.errors import JudgeError, UserError
from afm.params.root import read_params
from afm.params.tools import SandboxParams
from afm.rewards import grade_answer, validate
from afm.types import Query, make_query
from benchmarks._figures import Figure, at_most, print_figures

ROOT = Path(__file__).parents[1]
FOLDER_VARIABLE = "AFM_BENCHMARKS"
SCORERS = {
    "aime24.parquet": "math",
    "aime25.parquet": "math",
    "amc23.parquet": "math",
    "math500.parquet": "math",
    "OlympiadBench.parquet": "math",
    "nq_full.jsonl": "exact_match",
}
"""File -> the reward that scores it."""
MAX_REFUSED, MAX_ACCEPTED = 0.005, 0.01
SEED = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Oddity:
    """One row whose scorer does not do what it should."""

    file: str
    row: int
    answer: str
    golds: tuple[str, ...]
    why: str


def folder() -> Path:
    """Return where the files lie, if they do."""
    return Path(os.environ.get(FOLDER_VARIABLE) or ROOT.parent / "shared" / "data" / "benchmarks")


def read_benchmark(path: Path) -> list[Query]:
    """Read a file of the official repository: verl parquet, or JSON Lines of question and answers."""
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [_query(n, row["question"], row["answer"]) for n, row in enumerate(rows)]
    import pyarrow.parquet as pq

    models = pq.read_table(path, columns=["reward_model"]).to_pylist()
    return [
        _query(n, str(n), [row["reward_model"]["ground_truth"]]) for n, row in enumerate(models)
    ]


def _query(number: int, question: str, answers: list[str]) -> Query:
    return make_query(
        agent="code",
        question=f"{number}: {question}",
        answers=tuple(answers),
        source="benchmark",
        split="eval",
        hops=1,
        phrasing="",
        entities=(),
    )


def refused(path: Path, sandbox: SandboxParams) -> Iterator[Oddity]:
    """Yield the rows whose own gold answers are not accepted."""
    for number, query in enumerate(read_benchmark(path)):
        try:
            validate(SCORERS[path.name], query, sandbox)
        except (UserError, JudgeError) as error:
            gold = query.answers[0]
            yield Oddity(
                file=path.name, row=number, answer=gold, golds=query.answers, why=str(error)
            )


def accepted(path: Path, sandbox: SandboxParams) -> Iterator[Oddity]:
    """Yield the rows that accept a gold answer of another row; one that is written the same is not drawn."""
    queries = read_benchmark(path)
    for number, other in enumerate(drawn([query.answers for query in queries])):
        query, answer = queries[number], queries[other].answers[0]
        try:
            score = grade_answer(SCORERS[path.name], answer, query, sandbox)
        except JudgeError:
            continue  # unjudged is no score
        if score == 1.0:
            yield Oddity(
                file=path.name,
                row=number,
                answer=answer,
                golds=query.answers,
                why=f"gold answer of row {other}",
            )


def drawn(golds: list[tuple[str, ...]]) -> list[int]:
    """Return another row for each: the next in a seeded order whose first gold answer is none of the row's own."""
    order = random.Random(SEED).sample(range(len(golds)), len(golds))
    following = {row: [*order[at + 1 :], *order[:at]] for at, row in enumerate(order)}
    return [
        next(other for other in following[row] if golds[other][0] not in own)
        for row, own in enumerate(golds)
    ]


def figures(at: Path, names: list[str]) -> Iterator[Figure]:
    """Yield both figures of each file, and list the exceptions."""
    sandbox = read_params(ROOT / "params.yaml").sandbox
    for name in names:
        path = at / name
        total = len(read_benchmark(path))
        for kind, found, bar in (
            ("gold_refused", list(refused(path, sandbox)), MAX_REFUSED),
            ("shuffled_accepted", list(accepted(path, sandbox)), MAX_ACCEPTED),
        ):
            for one in found:
                print(
                    f"{kind} {one.file}:{one.row}: {one.answer!r} for {list(one.golds)}: {one.why}",
                    file=sys.stderr,
                )
            yield at_most(f"{kind}/{path.stem}", len(found) / total, bar, "share")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else folder()
    if not where.is_dir():
        print(f"no benchmark files in {where}: set {FOLDER_VARIABLE}", file=sys.stderr)
        sys.exit(0)
    print_figures(figures(where, sys.argv[2:] or list(SCORERS)))
