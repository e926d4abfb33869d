"""The tests guard the code: see guards.py."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def guards():
    spec = importlib.util.spec_from_file_location("guards", Path(__file__).with_name("guards.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_guard_names_a_source_that_stands_once_and_tests_that_exist(guards):
    for guard in guards.GUARDS:
        assert (ROOT / guard.file).read_text().count(guard.source) == 1, guard.name
        for test in guard.tests:
            file, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(), test


@pytest.mark.slow
def test_a_guard_of_each_module_turns_its_tests_red_when_it_is_taken_out(guards, capsys):
    """All of them take twenty minutes: `python tests/guards.py`."""
    first = {guard.file: guard.name for guard in reversed(guards.GUARDS)}
    assert len(first) >= 9
    assert guards.main(list(first.values())) == 0, capsys.readouterr().out
