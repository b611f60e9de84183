"""Readiness of a vLLM server: it completes one token.

`/health` also answers while the engine behind it hangs; a completion goes the whole way. Under full load an answer may
be late: then this pod gets no new requests, and is not restarted, for that is what `/health` decides.
"""

import json
import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 25.0
"""Below the probe's own timeout, so that the reason gets into the event [s]."""


def main() -> None:
    """Ask for one token; exit with the reason where none comes."""
    port = os.environ.get("PORT", "8000")
    body = {
        "model": os.environ["SERVED_MODEL_NAME"],
        "prompt": "1",
        "max_tokens": 1,
        "temperature": 0,
    }
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            tokens = json.load(answer)["usage"]["completion_tokens"]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"no completion: {error}")
    if tokens != 1:
        sys.exit(f"asked for 1 token, got {tokens}")


if __name__ == "__main__":
    main()
