"""The shape of the code: imports go one way, functions are short, lines are not wide."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the ground up: a module imports those before it alone.
ROOMS = ["jail", "asserts", "model", "mistake_book", "tasks", "sandbox", "grpo", "benchmarks", "eval", "run", "codea1"]


def imports(name):
    nodes = list(ast.walk(ast.parse((ROOT / f"{name}.py").read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return (plain | {node.module for node in nodes if isinstance(node, ast.ImportFrom)}) & set(ROOMS)


def test_imports_go_one_way():
    """A module that could import everything was read only together with everything."""
    assert {path.stem for path in ROOT.glob("*.py")} == set(ROOMS)
    pairs = {(name, other) for name in ROOMS for other in imports(name)}
    assert pairs and all(ROOMS.index(other) < ROOMS.index(name) for name, other in pairs)
    assert not imports("jail") and not imports("asserts") and not imports("model")


@pytest.mark.parametrize("name", ROOMS)
def test_functions_are_short_and_lines_are_not_wide(name):
    text = (ROOT / f"{name}.py").read_text()
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in nodes if node.end_lineno - node.lineno >= 60] in ([], ["train"])
    assert [line for line in text.splitlines() if len(line) > 100] == []


def test_the_algorithm_fits_on_a_few_pages():
    """With `main`; nothing about flags, files, resume or logs is in it."""
    assert len((ROOT / "codea1.py").read_text()) <= 20_000
