"""What set-up does ahead of the first run, so that no submit has to."""

import ast
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from flows.identity import known_mentions
from flows.precompile import precompile
from stages._closure import code_hashes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "afm/__init__.py": "",
        "afm/work.py": "VALUE = 1\n",
        "stages/__init__.py": "",
        "stages/one.py": "from afm.work import VALUE\n",
        "flows/tool.py": "VALUE = 2\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_nothing_is_left_to_compile_or_to_parse(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precompile(root)
    for path in root.glob("*/*.py"):
        assert Path(cache_from_source(str(path))).is_file(), path

    def parse(*_: object, **__: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(ast, "parse", parse)
    assert "afm/work.py" in code_hashes(root, "stages.one", known_mentions(root))


def test_a_stage_that_is_broken_is_told_and_the_others_are_done(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "stages" / "another.py").write_text("def\n")
    precompile(root)
    assert "stages/another.py:1: not Python" in capsys.readouterr().err
    assert len(known_mentions(root)) == 4
