"""Math-Verify behind a pipe: one JSON request per line in, one JSON verdict per line out.

Runs as a script in the environment of Math-Verify and imports nothing of this project: that environment pins the
antlr4 that Math-Verify needs, beside which other packages silently break it.
"""

import json
import os
import re
import resource
import signal
import sys
from typing import Any

MEMORY_BYTES = 2 << 30
"""Address space of the worker: an answer such as 9**9**9 must not take the machine [bytes]."""
WRITTEN_OUT = re.compile(
    r"\s*[-+]?[\d.,]+\s*(?:\\?%|(?:\\times|\\cdot|\*|×)\s*10\s*(?:\^|\*\*)\s*\{?\s*[-+]?\d+\s*\}?)\s*"
)
"""Numerals that parse as arithmetic: percentages, and numbers with a power of ten."""


def main() -> None:
    """Answer requests until the pipe closes."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # Libraries print; the protocol keeps the pipe for itself.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        # Ends the process, not the call: nothing outlives a parent that was killed in the middle of a request.
        signal.setitimer(signal.ITIMER_REAL, request["deadline_s"])
        verdict = _verdict(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"id": request["id"], **verdict}), file=replies, flush=True)


def _verdict(request: dict[str, Any]) -> dict[str, Any]:
    from math_verify import parse, verify  # only in its environment

    # Timeouts off: theirs are signals inside the call; ours end the process. Errors end it as well, or an error
    # inside the library would come back as a wrong answer.
    gold = parse("\\boxed{" + request["gold"] + "}", parsing_timeout=None, raise_on_error=True)
    if not gold:
        return {"error": f"Math-Verify cannot parse the gold answer {request['gold']!r}"}
    answer = parse(request["answer"], parsing_timeout=None, raise_on_error=True)
    is_numeral = getattr(gold[0], "is_Number", False)
    if is_numeral and not any(WRITTEN_OUT.fullmatch(str(part)) for part in answer):
        answer = [part for part in answer if not _is_unevaluated(part)]
    return {"correct": bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))}


def _is_unevaluated(parsed: Any) -> bool:
    """Tell whether an answer leaves arithmetic to be done: the sum of the question is no answer to "What is 3 + 4?"."""
    # Only in its environment.
    from sympy import Basic, Equality, preorder_traversal  # type: ignore[import-untyped]

    if not isinstance(parsed, Basic):
        return False
    value = parsed.rhs if isinstance(parsed, Equality) else parsed
    parts = preorder_traversal(value)
    return any(getattr(part, "is_number", False) and not part.is_Number for part in parts)


if __name__ == "__main__":
    main()
