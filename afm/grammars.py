"""The transition rules of the three grammars, as tables (stated in the official prompts)."""

from afm.types import StepKind

_PLAN, _TOOL, _REFLECTION = StepKind.PLAN, StepKind.TOOL_CALL, StepKind.REFLECTION
_SUGGESTED, _CHECK, _ANSWER = (
    StepKind.SUGGESTED_ANSWER,
    StepKind.DOUBLE_CHECK,
    StepKind.ANSWER,
)

THINK_BEFORE: dict[str, frozenset[StepKind]] = {
    "six_functions": frozenset({_PLAN, _TOOL, _REFLECTION, _ANSWER}),
    "double_check": frozenset({_PLAN, _TOOL, _REFLECTION, _SUGGESTED, _CHECK}),
    "plan_first": frozenset({_TOOL, _ANSWER}),
}
"""Steps that a thought must precede, by grammar."""

NEXT: dict[str, dict[StepKind | None, frozenset[StepKind]]] = {
    "six_functions": {
        None: frozenset({_PLAN, _TOOL, _ANSWER}),
        _PLAN: frozenset({_TOOL, _ANSWER}),
        _TOOL: frozenset({_PLAN, _TOOL, _REFLECTION, _ANSWER}),
        _REFLECTION: frozenset({_PLAN, _TOOL, _ANSWER}),
    },
    "double_check": {
        None: frozenset({_PLAN, _TOOL}),
        _PLAN: frozenset({_TOOL, _SUGGESTED}),
        _TOOL: frozenset({_TOOL, _REFLECTION, _SUGGESTED}),
        _REFLECTION: frozenset({_PLAN, _TOOL, _SUGGESTED}),
        _SUGGESTED: frozenset({_CHECK}),
        _CHECK: frozenset({_PLAN, _TOOL, _ANSWER}),
    },
    # A missing reflection is left to the filter that looks for it; the official check ignores it too.
    "plan_first": {
        None: frozenset({_PLAN}),
        _PLAN: frozenset({_TOOL}),
        _TOOL: frozenset({_TOOL, _REFLECTION, _ANSWER}),
        _REFLECTION: frozenset({_TOOL, _ANSWER}),
    },
}
"""What may follow what, thoughts and observations aside, by grammar; None is the start."""
