"""Who only serves or asks a model does not depend on how models are trained."""

from pathlib import Path

import pytest

from stages._closure import closure

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("stage", ["evaluate", "screen"])
def test_no_change_of_training_code_reruns_it(stage: str) -> None:
    files = closure(ROOT, f"stages.{stage}")
    assert "afm/model_files.py" in files
    assert not [file for file in files if file.startswith("afm/training/")]


def test_the_stages_that_train_do_depend_on_it() -> None:
    for stage in ("base", "sft"):
        assert {"afm/model_files.py", "afm/training/packing.py"} <= set(
            closure(ROOT, f"stages.{stage}")
        )
