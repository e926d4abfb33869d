"""How published benchmarks judge a program, and mutants: oracles, inputs, agreement with the published tools."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from verify import verify

from benchmarks import Case, Judge, Task, load_tasks, mutants, passes, plus_cases, seconds_for
from sandbox import Opaque, Sandbox, Status, Value
from tasks import Question, load_questions


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2, timeout=10.0, memory_mb=4096) as box:
        yield box


# ---- mutants ----


def test_an_edit_changes_the_text_as_cosmic_ray_does():
    source = "def f(a, b, c):\n    return a + b * c\n"
    assert "def f(a, b, c):\n    return a ** b * c" in mutants(source)["binary + **"]  # (a ** b) * c


def test_conditions_are_negated_at_their_start():
    source = "def f(a, b):\n    if (a) and b:\n        return 1\n    elif b:\n        return 2\n"
    assert mutants(source)["not"] == [ast.unparse(ast.parse(source.replace("if (a)", "if not (a)", 1)))]


def test_no_mutant_equals_the_program_or_another_one_and_all_are_python():
    loop = "    while x is not None and not -x < +2.5:\n        x = [x for x in (True, False)] or 1j\n"
    source = "def f(x):\n    # 1 + 1, é\n" + loop
    made = mutants(source)
    for group in made.values():
        assert len(set(group)) == len(group)
        assert ast.unparse(ast.parse(source)) not in group
    assert made["comparison is not is"] == [ast.unparse(ast.parse(source.replace("is not", "is")))]
    assert made["unary not "] and made["unary - +"] and made["number"] and made["True False"] and made["and or"]
    assert "binary + -" not in made  # only in the comment


# ---- EvalPlus' verdict on values ----


def plus_task(task_id, prompt="", solution="", entry="f", base=(), plus=(), atol=0):
    row = {"task_id": task_id, "prompt": prompt, "canonical_solution": solution, "entry_point": entry, "test": "",
           "base_input": list(base), "plus_input": list(plus), "atol": atol}  # fmt: skip
    return Task(Question(task_id, prompt, entry, prompt + solution, ()), row)


@pytest.mark.parametrize(("task_id", "atol", "args", "expected", "out", "wanted"), [
    ("Mbpp/3", 0, [], [1, 2], [1, 2], True),
    ("Mbpp/3", 0, [], [1, 2], (1, 2), False),
    ("Mbpp/3", 0, [], 1, True, True),  # == as Python has it
    ("Mbpp/3", 0, [], 0.3, 0.1 + 0.2, True),  # floats are close without being asked
    ("Mbpp/3", 0, [], 0.3, 0.3001, False),
    ("Mbpp/3", 0, [], 3.0, 3, True),
    ("Mbpp/3", 0, [], 3.0000001, 3, False),  # closeness wants the same type
    ("Mbpp/3", 0, [], [1.0, 2.0], [1.0 + 1e-9, 2.0], True),
    ("Mbpp/3", 0, [], ["a", 1.0], ["a", 1.0 + 1e-9], False),  # not a list of floats
    ("Mbpp/3", 1e-4, [], [1, [2]], [1], False),
    ("Mbpp/3", 1e-4, [], "a", "b", False),
    ("Mbpp/2", 0, [], [4, 5], [5, 4, 4], True),  # order and repetition do not count
    ("Mbpp/2", 0, [], [4, 5], [4], False),
    ("Mbpp/2", 0, [], [4, 5], 4, False),
    ("Mbpp/737", 0, [], True, Opaque("Match"), True),
    ("Mbpp/737", 0, [], True, None, False),
    ("Mbpp/737", 0, [], False, False, True),  # a bool is taken at its word
    ("Mbpp/3", 0, [], True, Opaque("Match"), False),
    ("Mbpp/164", 0, [], True, "anything", True),
    ("Mbpp/295", 0, [], 8, 0, True),
    ("Mbpp/558", 0, [1, 100], 5, 2, True),  # padded to one width: |0-1| + |0-0| + |1-0|
    ("Mbpp/581", 0, [3, 4], 33, 36, False),
    ("Mbpp/581", 0, [3, 4], 33, round(9 + 6 * 18.25**0.5), True),
    ("HumanEval/32", 1e-4, [[1, 2]], -0.5, -0.50001, True),  # a root of 1 + 2x, wherever
    ("HumanEval/32", 1e-4, [[1, 2]], -0.5, "x", False),
])  # fmt: skip
def test_oracles(task_id, atol, args, expected, out, wanted):
    case = Case(args, expected, 0.0)
    assert passes(plus_task(task_id, atol=atol), [case], [Value(True, out)]) is wanted


def test_the_tolerance_rises_with_the_first_floats_and_stays():
    # EvalPlus keeps the raised tolerance for the inputs that follow: a list with a float in it may then be close too.
    floats, mixed = Case([], 0.5, 0.0), Case([], [1.0, 2], 0.0)
    near = [Value(True, 0.5), Value(True, [1.0 + 1e-9, 2])]
    assert passes(plus_task("Mbpp/3"), [floats, mixed], near)
    assert not passes(plus_task("Mbpp/3"), [mixed, floats], near[::-1])


def test_a_call_that_did_not_return_fails_even_where_any_answer_is_right():
    assert not passes(plus_task("Mbpp/164"), [Case([], 1, 0.0)], [Value(False, None, "ValueError")])


def test_inputs_get_the_types_that_json_cannot_say(box):
    def calls(number, args):
        solution = "def f(*args):\n    return ', '.join(map(repr, args))\n"
        task = plus_task(f"Mbpp/{number}", solution=solution, base=[args])
        return [f"f({case.expected})" for (case,) in plus_cases(task, "base", box)]

    assert calls(2, [[1, 2], [3]]) == ["f((1, 2), (3,))"]
    assert calls(63, [[[1, 2], [3, 4]]]) == ["f([(1, 2), (3, 4)])"]
    assert calls(75, [[[1, 2]], 6]) == ["f([(1, 2)], 6)"]
    assert calls(106, [[1], [2]]) == ["f([1], (2,))"]
    assert calls(115, [[[1], []]]) == ["f([{1}, {}])"]
    assert calls(124, ["0", "1j"]) == ["f(0.0, 1j)"]
    assert calls(580, [[1, [2, [3]]]]) == ["f((1, (2, (3,))))"]
    assert calls(3, [[1, [2]]]) == ["f([1, [2]])"]


def test_a_program_that_fails_the_base_inputs_fails_plus(box):
    """In EvalPlus' tables plus means both parts: more inputs can never raise a score."""
    task = plus_task("Mbpp/3", solution="def f(n):\n    return n\n", base=[[1]], plus=[[2]])
    (verdict,) = Judge([task], box)([(task, "def f(n):\n    return 2\n")])
    assert verdict == {"base": False, "plus": False}


def test_a_large_value_has_time_to_leave_its_process():
    """EvalPlus compares where the program runs. Here a right list of a million numbers, made in 0.4 s,
    ran out of its 1.7 s on the way: the reference of HumanEval/130 failed on a slow machine."""
    assert [seconds_for(Case([], value, 0.01)) for value in (1, "ab", [])] == pytest.approx([1.0] * 3, abs=1e-4)
    assert seconds_for(Case([], [0] * 1_000_000, 0.4)) == pytest.approx(4.6)
    assert seconds_for(Case([], "a" * 20_000_000, 0.5)) == pytest.approx(5.0)


def test_values_that_are_too_large_together_are_compared_all_the_same(box):
    """The sandbox lets 64 MB out of a process, EvalPlus has no such limit: the rest would go unchecked."""
    solution, size = "def f(n):\n    return 'a' * n\n", 15_000_000
    task = plus_task("Mbpp/3", solution=solution, base=[[n] for n in (1, *range(size, size + 6), 2, 20 * size)])
    assert [len(group) for group in plus_cases(task, "base", box)] == [5, 3]
    judge = Judge([task], box)
    wrong = f"def f(n):\n    return 'a' * (n - (n == {size + 5}))\n"
    assert [verdict["base"] for verdict in judge([(task, solution), (task, wrong)])] == [True, False]
    assert judge.left_out == {"Mbpp/3": 1}  # 300 MB


# ---- real data, and the published tools ----


@pytest.mark.parametrize("name", ["HumanEvalPlus.jsonl.gz", "MbppPlus.jsonl.gz"])
def test_references_pass_and_broken_ones_fail(data, name, capsys):
    assert verify(str(data / name), limit=4)
    assert capsys.readouterr().out == "4 of 4 references pass, 4 of 4 broken ones fail\n"


def test_verify_tells_a_broken_benchmark(tmp_path, capsys):
    question = {"id": "q", "prompt": "", "entry_point": "f", "reference": "def f(x):\n    return x\n",
                "tests": ["assert f(1) == 2"]}  # fmt: skip
    (tmp_path / "e.jsonl").write_text(json.dumps(question))
    assert not verify(str(tmp_path / "e.jsonl"), workers=1)
    assert capsys.readouterr().out.splitlines()[:2] == ["q: the reference fails", "q: the broken reference passes"]


def test_functions_get_the_imports_that_their_benchmark_runs_them_with(data, box):
    path = str(data / "ULT_Lite.json")
    asserts = [task.row["test_list"] for task in load_tasks(path)]
    questions = load_questions(path), [task.question for task in load_tasks(path)]
    runs = [box.check([(q.reference, row) for q, row in zip(group, asserts, strict=True)]) for group in questions]
    bare, whole = [sum(status is Status.PASS for row in rows for status in row) for rows in runs]
    assert bare < 115 < 130 < whole < 150  # of 1,000: the file's own asserts are mostly wrong


@pytest.mark.slow
@pytest.mark.parametrize("argv", [("evalplus", "--part", "20"), ("mutants", "--functions", "12")])
def test_agreement_with_the_published_tools(data, argv):
    pytest.importorskip("evalplus", reason="the eval extra is not installed")
    pytest.importorskip("cosmic_ray", reason="the eval extra is not installed")
    script = Path(__file__).parent / "agreement.py"
    done = subprocess.run([sys.executable, str(script), *argv], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    print(done.stdout)
