"""What agents are told, and where their generation pauses."""

from pathlib import Path

import pytest

from afm.agents import AGENTS, stop_strings, user_message
from afm.errors import UserError
from afm.params.root import read_params
from afm.tags import NEXT, TOOL_NAMES

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml").agents


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_short_instructions_are_short(name: str) -> None:
    message = user_message(name, PARAMS[name], "short", " Why? ")  # type: ignore[index]
    instructions, question = message.split("\n\n")
    assert len(instructions.split()) <= 25
    assert question == "Question: Why?"


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_full_instructions_explain_each_function_and_no_other(name: str) -> None:
    params = PARAMS[name]  # type: ignore[index]
    for grammar in AGENTS[name].grammars:
        changed = params.model_copy(update={"grammar": grammar})
        message = user_message(name, changed, "full", "Why?")
        used = {kind for kinds in NEXT[grammar].values() for kind in kinds}
        for kind in used - {"tool_call"}:
            assert f"- {kind}: " in message
        for tool in TOOL_NAMES:
            assert (f"- {tool}: " in message) == (tool in params.tools)
        assert ("- double_check: " in message) == (grammar == "double_check")
        assert f"at most {params.max_tool_calls} tool calls" in message
        assert message.endswith("\n\nQuestion: Why?")


def test_stop_strings_are_the_tools_and_the_answer() -> None:
    expected = ("</web_search>", "</crawl_page>", "</answer>")
    assert stop_strings(PARAMS["web"]) == expected


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mhqa", {"tools": ("code",)}, r"agents.mhqa.tools.*'code'.*allowed.*wiki_search"),
        ("mhqa", {"grammar": "plan_first"}, r"agents.mhqa.grammar.*plan_first.*six_functions"),
        ("nobody", {}, r"unknown agent 'nobody'; there are \['code', 'mhqa', 'web'\]"),
    ],
)
def test_wrong_combinations_name_what_is_allowed(
    name: str, change: dict[str, object], message: str
) -> None:
    params = PARAMS["mhqa"].model_copy(update=change)
    with pytest.raises(UserError, match=message):
        user_message(name, params, "short", "Why?")
