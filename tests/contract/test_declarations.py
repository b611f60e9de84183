"""Submit, planning and `afm` read stages' declarations; none may load the libraries that the stages compute with."""

import json
import subprocess
import sys

import pytest

from flows.identity import stage_names

ALLOWED = {
    *("afm", "stages"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"),
    *("yaml", "cython_runtime"),
}
"""Top-level packages beside the standard library: what reads params.yaml."""
LOADED = """\
import json, sys
before = {name.partition(".")[0] for name in sys.modules}
import stages.%s
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names))))
"""


@pytest.mark.parametrize("stage", stage_names())
def test_a_declaration_is_read_without_the_libraries_of_its_stage(stage: str) -> None:
    command = [sys.executable, "-c", LOADED % stage]
    loaded = set(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    assert "stages" in loaded
    assert {name for name in loaded - ALLOWED if not name.startswith("_")} == set()
