"""`afm serve-tools`: the agents' tools over HTTP, with the bodies of the official tool servers."""

import argparse
import ipaddress
import os
from pathlib import Path

from afm.errors import UserError
from afm.params.backends import ToolsParams
from afm.params.reading import cut, parse_section, read_tree

TOKEN_VARIABLE = "AFM_TOOLS_TOKEN"
DEFAULT_TOOLS = ("wiki_search", "web_search", "crawl_page")
DEFAULT_PORT = 9002
CACHE_ENTRIES = 100_000
"""Answers kept in memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm serve-tools`; none of them changes an answer but --params, --index and --top-k."""
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="has `tools`")
    parser.add_argument("--index", type=Path, help="folder that stage prepare made")
    parser.add_argument("--tool", action="append", help=f"default: {' '.join(DEFAULT_TOOLS)}")
    parser.add_argument("--top-k", type=int, default=3, help="passages where no request says")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, action="append", help="may be repeated; default 9002")
    parser.add_argument(
        "--token-variable",
        default=TOKEN_VARIABLE,
        help="environment variable with the token that clients send",
    )
    parser.add_argument("--concurrency", type=int, default=64, help="requests at backends per tool")
    parser.add_argument("--max-waiting", type=int, default=256, help="then 429, per tool")
    parser.add_argument("--timeout", type=float, default=60.0, help="of one request [s]")
    parser.add_argument("--cache", type=Path, help="folder for answers; default: in memory alone")
    parser.add_argument("--cache-ttl", type=float, default=3600.0, help="of an answer [s]")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from afm.tools.server.desk import Capacity
    from afm.tools.server.serving import ServerSettings, build_server, run_server

    tree = cut(read_tree(args.params), "tools", where=str(args.params))
    params = parse_section(tree, ToolsParams, where=f"{args.params}: tools")
    settings = ServerSettings(
        tools=tuple(args.tool or DEFAULT_TOOLS),
        top_k=args.top_k,
        capacity=Capacity(
            concurrency=args.concurrency, max_waiting=args.max_waiting, timeout_s=args.timeout
        ),
        cache_folder=args.cache,
        cache_ttl_s=args.cache_ttl,
        cache_entries=CACHE_ENTRIES,
        token=_token(args.token_variable, args.host),
    )
    app, _ = build_server(params, args.index, settings)
    run_server(app, args.host, args.port or [DEFAULT_PORT])
    return 0


def _token(variable: str, host: str) -> str | None:
    """Return the token that clients must send; only a server on loopback may do without."""
    token = os.environ.get(variable)
    if not token and not _is_loopback(host):
        raise UserError(
            f"environment variable {variable} is not set: a server on {host} needs a token, "
            "which clients send; or serve on 127.0.0.1"
        )
    return token or None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
