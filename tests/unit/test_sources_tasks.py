import itertools

import pytest

from afm.sources import functions, reasoning
from afm.sources.function_templates import TEMPLATES, Template
from afm.sources.program import call, printed
from afm.sources.task import Family, Side

TRAIN = Side(seed=5, held_out=False, share=0.25)
HELD_OUT = Side(seed=5, held_out=True, share=0.25)


def test_a_program_prints_and_a_function_returns() -> None:
    assert printed("print(1)\nprint(2)") == "1\n2"
    assert call("def f(x):\n    return x + 1", "f", (2,)) == 3


@pytest.mark.parametrize("family", reasoning.FAMILIES, ids=lambda family: family.name)
def test_reference_programs_print_the_library_s_answer(family: Family) -> None:
    tasks = list(itertools.islice(family.make(TRAIN), 12))
    right = [printed(task.program) in task.answers for task in tasks]
    # Degenerate items ("0 = 0") have no answer that a program could find; they are dropped.
    assert sum(right) >= 11
    assert all(len(task.answers[0]) <= 60 and len(task.question) <= 300 for task in tasks)


@pytest.mark.parametrize("family", reasoning.FAMILIES, ids=lambda family: family.name)
def test_the_sides_of_a_family_draw_different_tasks(family: Family) -> None:
    train, held_out = (
        {task.question for task in itertools.islice(family.make(side), 12)}
        for side in (TRAIN, HELD_OUT)
    )
    assert train != held_out


@pytest.mark.parametrize("family", functions.FAMILIES, ids=lambda family: family.name)
def test_references_pass_their_own_tests(family: Family) -> None:
    tasks = list(family.make(TRAIN))
    for task in tasks:
        source = task.program[: task.program.rindex("print(")]
        for test in task.tests:
            assert test.arguments is not None and task.entry_point
            assert call(source, task.entry_point, test.arguments) == test.expected
    first = tasks[0]
    assert any(test.expected for test in first.tests), "tests that nothing could fail"


@pytest.mark.parametrize("family", functions.FAMILIES, ids=lambda family: family.name)
def test_held_out_parameters_and_wording_are_not_trained(family: Family) -> None:
    train, held_out = list(family.make(TRAIN)), list(family.make(HELD_OUT))
    assert not {t.program.split("\nprint")[0] for t in train} & {
        t.program.split("\nprint")[0] for t in held_out
    }
    assert {task.wording for task in train} == {"a", "b", "c"}
    assert "held" in {task.wording for task in held_out}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_unit_tests_refuse_the_function_with_any_other_parameter(template: Template) -> None:
    family = next(f for f in functions.FAMILIES if f.name == template.name)
    bodies = {template.body.format(k=k, c=c) for k in template.ks for c in template.cs}
    for task in itertools.islice(family.make(TRAIN), 6):
        own = task.program.split("return ")[1].split("\n")[0]
        assert own in bodies
        for body in bodies - {own}:
            other = f"def {template.name}({template.argument}):\n    return {body}\n"
            results = [call(other, template.name, test.arguments or ()) for test in task.tests]
            assert results != [test.expected for test in task.tests]


def test_there_are_enough_templates() -> None:
    assert 15 <= len(TEMPLATES) <= 25
    assert len({template.name for template in TEMPLATES}) == len(TEMPLATES)
