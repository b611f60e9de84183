"""Math-Verify behind a pipe: one JSON request per line in, one JSON verdict per line out.

Runs as a script in the environment of Math-Verify and imports nothing of this project: that environment pins the
antlr4 that Math-Verify needs, beside which other packages silently break it.
"""

import json
import os
import resource
import signal
import sys
from typing import Any

MEMORY_BYTES = 2 << 30
"""Address space of the worker: an answer such as 9**9**9 must not take the machine [bytes]."""


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
    return {"correct": bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))}


if __name__ == "__main__":
    main()
