"""A pod's lines reach the log once, in order, also over broken streams and killed readers."""

from pathlib import Path

from flows.executors.cluster.logs import LogFile, LogFiles, clear_logs


def stamped(*rows: tuple[str, str]) -> list[str]:
    return [f"2026-01-01T00:00:{second}Z {text}" for second, text in rows]


def test_lines_that_come_again_are_dropped(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    lines = stamped(("01.1", "a"), ("01.25", "b"), ("02", "c"))
    for line in [*lines, *lines[1:]]:
        log.take("pod", line)
    assert (tmp_path / "log").read_text() == "a\nb\nc\n"


def test_equal_lines_of_different_moments_stay(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    for line in stamped(("01.1", "same"), ("01.2", "same"), ("01.2", "other")):
        log.take("pod", line)
    assert (tmp_path / "log").read_text() == "same\nsame\nother\n"


def test_a_second_without_a_fraction_comes_before_its_fractions(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    for line in stamped(("01", "first"), ("01.5", "second")):
        log.take("pod", line)
    assert (tmp_path / "log").read_text() == "first\nsecond\n"


def test_a_replacement_pod_adds_to_the_log(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.take("one", stamped(("05", "a"))[0])
    log.take("two", stamped(("04", "b"))[0])
    assert (tmp_path / "log").read_text() == "a\nb\n"


def test_a_killed_reader_between_two_files_loses_and_repeats_nothing(tmp_path: Path) -> None:
    first = LogFile(tmp_path / "log")
    lines = stamped(("01", "a"), ("02", "b"))
    first.take("pod", lines[0])
    with (tmp_path / "log.stamped").open("a") as stream:
        stream.write("pod 2026-01-01T00:00:02.000000000 b\npod 2026-01")  # killed in the next line
    again = LogFile(tmp_path / "log")
    assert (tmp_path / "log").read_text() == "a\nb\n"
    for line in [*lines, *stamped(("03", "c"))]:
        again.take("pod", line)
    assert (tmp_path / "log").read_text() == "a\nb\nc\n"


def test_ranks_have_logs_of_their_own_and_a_new_attempt_clears_all(tmp_path: Path) -> None:
    files = LogFiles(tmp_path / "log")
    files.of("0").take("p0", stamped(("01", "a"))[0])
    files.of("1").take("p1", stamped(("01", "b"))[0])
    assert (tmp_path / "log.1").read_text() == "b\n"
    clear_logs(tmp_path / "log")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.previous"]
