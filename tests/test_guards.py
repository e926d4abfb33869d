"""The tests guard the code: see guards.py."""

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_guard_turns_its_tests_red_when_it_is_taken_out(capsys):
    spec = importlib.util.spec_from_file_location("guards", Path(__file__).with_name("guards.py"))
    guards = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(guards)
    assert len(guards.GUARDS) >= 12
    bad = guards.main([])
    assert bad == 0, capsys.readouterr().out
