"""What asserts mean, verdicts on values, calls as data, and the work that a value may cost."""

import json
import math
import os
import random
import resource
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import pytest

import asserts
from asserts import (
    Items,
    Opaque,
    Test,
    bound_call,
    equal,
    from_source,
    holds,
    parse_assert,
    relabel,
    same_argument,
    to_source,
)
from tasks import extract_tests

F = "`" * 3
PRIME = 2**61 - 1  # multiples of it have one hash
FOLDER = str(Path(asserts.__file__).parent)
nan, inf = math.nan, math.inf


def fenced(code: str, tag: str = "python") -> str:
    return f"{F}{tag}\n{code.rstrip()}\n{F}\n"


# ---- asserts ----

ACCEPTED = [  # assert, a value that passes, a value that does not, call
    ("f(1) == 2", 2, 3, "f(1)"),
    ("2 == f(1)", 2.0000001, 2.1, "f(1)"),
    ("f(1) == 2, 'message ' + str(f(1))", 2, 3, "f(1)"),
    ("f(1) is None", None, 0, "f(1)"),
    ("f(1) is True", True, 1, "f(1)"),
    ("False is f(1)", False, 0, "f(1)"),
    ("f(1)", [0], [], "f(1)"),
    ("not f(1)", "", "a", "f(1)"),
    ("f() == ()", (), [], "f()"),
    ("f(1, b='x', c=None) == {'a': [1]}", {"a": [1]}, {"a": (1,)}, "f(1, b='x', c=None)"),
    ("f(-1, +1, - 2.0) == +2.5", 2.5, -2.5, "f(-1, 1, -2.0)"),
    ("f(\"it's\\n\", b'\\0') == '\"\\\\'", '"\\', '"', "f(\"it's\\n\", b'\\x00')"),
    ("math.isclose(f(1), 0.5)", 0.5, 0.500001, "f(1)"),
    ("math.isclose(100, f(1), rel_tol=0.01)", 101, 101.1, "f(1)"),
    ("math.isclose(f(1), 0.0, abs_tol=1e-3)", 0.001, 0.0011, "f(1)"),
    ("abs(f(1) - 3.5) < 0.01", 3.505, 3.52, "f(1)"),
    ("abs(3.5 - f(1)) <= 0.5 / 8", 3.5625, 3.6, "f(1)"),
    ("abs(sum(f(1)) - 3) < 1e-6", [1, 2.0], [1], "f(1)"),
    ("sorted(f(1)) == [1, 2]", {2, 1}, [1], "f(1)"),
    ("len(f(1)) == 2", "ab", None, "f(1)"),
    ("set(f(1)) == {1, 2}", [1, 2, 1], [1], "f(1)"),
    ("list(f(1)) == [1, 2]", (1, 2), 12, "f(1)"),
    ("tuple(f(1)) == (1, 2)", [1, 2], [2, 1], "f(1)"),
    ("min(f(1)) == 1", [1, 2], [], "f(1)"),
    ("max(f(1)) == 2", [1, 2], [1], "f(1)"),
    ("round(f(1)) == 2", 2.4, 2.6, "f(1)"),
    ("round(f(1), 2) == 2.35", 2.3512, 2.36, "f(1)"),
    ("abs(f(1)) == 2", -2, "2", "f(1)"),
    ("str(f(1)) == '[1]'", [1], [2], "f(1)"),
    ("len(set(f(1))) == 1", [1, 1], [1, 2], "f(1)"),
    ("f(1)[0] == 2", [2], {1: 2}, "f(1)"),
    ("f(1)['{}'][-1] == 2", {"{}": [1, 2]}, {"{}": [2, 1]}, "f(1)"),
    ("not f(1)[0]", [0], [1], "f(1)"),
    ("bool(f(1)) == True", [0], 0, "f(1)"),
    ("f(-math.inf, float('nan')) == set()", set(), [], "f(float('-inf'), float('nan'))"),
    ("f([0] * 3 + [1], 'ab' * 2) == 10**9 + 7", 1000000007, 7, "f([0, 0, 0, 1], 'abab')"),
    ("f(range(3), list(range(1, 3)), {3, 1}) == 0", 0, 1, "f(range(0, 3), [1, 2], {1, 3})"),
    ("f(range(3, 9, 2)) == [0] * 2", [0, 0], [0], "f(range(3, 9, 2))"),
    ("f(1 << 31, 7 % 4, ~5) == 0b101 ^ 1", 4, 5, "f(2147483648, 3, -6)"),
    ("f(1 & 3, 6 | 9, -8 >> 1, 5.5 % 2) == 1", 1, 0, "f(1, 15, -4, 1.5)"),
    (
        "f({1, 2} | {3}, {1, 2} & {2}, {1, 2} - {2}) == {1: 2} | {3: 4}",
        {1: 2, 3: 4},
        {1: 2},
        "f({1, 2, 3}, {2}, {1})",
    ),
    (
        "f(sorted([2, 1]), dict([(1, 2)]), int('7'), complex(1, 2)) == 1 / 4",
        0.25,
        0,
        "f([1, 2], {1: 2}, 7, complex(1.0, 2.0))",
    ),
    ("f(2 ** 3000) == 0", 0, 1, f"f({hex(2**3000)})"),
    (
        "f((1,), frozenset([1]), frozenset(), {}) == [float('nan')]",
        [nan],
        [0],
        "f((1,), frozenset({1}), frozenset(), {})",
    ),
]


@pytest.mark.parametrize("text, good, bad, call", ACCEPTED, ids=[row[0] for row in ACCEPTED])
def test_an_assert_keeps_its_own_meaning(text, good, bad, call):
    test = parse_assert(f"assert {text}", "f")
    assert test is not None and test.call == call
    assert holds(good, test) and not holds(bad, test)
    assert parse_assert(test.source) == test, test.source  # what is exported says the same
    assert extract_tests(fenced(f"assert {text}\n"), "f", 1) == [test]


MALFORMED = """
True
1 == 1
f(1) != 2
f(1) < 2
2 > f(1)
f(1) >= 0
f(1) in [1, 2]
3 in f(1)
f(1) is not None
f(1) is 2
f(1) is [1]
not f(1) == 2
not not f(1)
f(1) == 2 == 2
f(1) == 2 and f(2) == 3
f(1) == 2 or True
f(1) == f(1)
f(f(1)) == 2
f(1) == f
f == f(1)
f(1) == g(1)
f(1) == g(1) - 1
f(1) == f(2) + 1
f(1) - 1 == 1
g(1) == 2
f(x) == 2
f(1) == x
f(1) == ...
f(...) == 1
(f(1), 'message')
[f(1)]
[f(1)] == [2]
len([f(1)])
bool([f(1)])
{f(1): 1}
f'{f(1)}'
(lambda: f(1))() == 2
(y := f(1)) == 2
f(1) == (y := 2)
f(y := 1) == 2
f(*[1]) == 2
f(**{'x': 1}) == 2
f(x for x in [1]) == 2
f([x for x in [1]]) == 2
f(lambda: 1) == 2
f(f) == 1
f(len) == 1
f(print('x')) == 1
f(open('x')) == 1
f(__import__('os').system('true')) == 1
f('a'.upper()) == 'A'
f([1, 2][0]) == 1
f(1).real == 2
f(1).sort() == None
f(1)[0:0] == []
f(1)[:] == [1]
await_(f(1)) == 2
type(f(1)) == int
isinstance(f(1), int)
int(f(1)) == 2
float(f(1)) == 2
dict(f(1)) == {}
range(f(1)) == 2
all(f(1))
any(f(1)) == True
hasattr(f(1), 'x')
len(f(1)) >= 0
len(str(f(1))) == 1
str(f(1))
not str(f(1))
len(str(f(1))[0]) == 1
max(f(1), 3) == 3
sorted(f(1), key=len) == []
sum([f(1)], 2) == 3
round(f(1), -400) == 0
round(f(1), -1) == 10
f(1) * 0 == 0
f(1) ** 0 == 1
f(1) if True else 1
abs(f(1) - f(1)) < 1
abs(f(1) - 2) < 1e9
abs(f(1) - 2) < float('inf')
abs(f(1) - 2) < float('nan')
abs(f(1) - 2) < 0
abs(f(1) - 2) < -1
abs(f(1) - 2) <= -1
abs(f(1) - 2) < 'a'
abs(f(1) - 'a') < 0.1
abs(f(1) - None) < 0.1
abs(f(1) - float('inf')) < 0.1
abs(f(1) - 2) > 0.1
abs(f(1) - 2) < 0.1 < 1
abs(f(1) - 2 - 1) < 0.1
abs(f(1) + 2) < 0.1
abs(f(1) - 2)
len(f(1) - 2) < 0.1
math.isclose(f(1), 2, rel_tol=1)
math.isclose(f(1), 2, abs_tol=1e9)
math.isclose(f(1), 2, abs_tol=float('nan'))
math.isclose(f(1), 2, rel_tol=-1)
math.isclose(f(1), 2, 0.1)
math.isclose(f(1), 2, tolerance=1)
math.isclose(f(1), 2, **{'abs_tol': 1})
math.isclose(f(1), f(1))
math.isclose(f(1))
math.isclose(1, 1)
math.isnan(f(1))
not math.isclose(f(1), 2)
numpy.isclose(f(1), 2)
f(1) == float('abc')
f(1) == 1 / 0
f(1) == [1] + (1,)
f(1) == {[]: 1}
f(1) == {**{}}
f(1) == [*[1]]
f(1) == range(3)
f([range(3)]) == 1
f(list({'a', 'b'})) == 1
f(str({'a'})) == 1
f(1, a=1, a=2) == 2
f(1 == 2) == 3
f(not 1) == 3
f(1 if 1 else 2) == 3
f('%d' % 1) == 3
f('%99999999d' % 1) == 3
f(1 << -1) == 3
f(1 << 10**9) == 3
f(1.5 | 2) == 3
f(~1.5) == 3
f(~'a') == 3
f(1) % 2 == 1
f(1) & 1 == 1
~f(1) == 1
+f(1) == 1
f(+'a') == 1
f('a' @ 'b') == 1
frozenset(f(1)) == set()
f(**{}) == 1
f(1
""".strip().splitlines()


@pytest.mark.parametrize("text", MALFORMED)
def test_everything_else_is_malformed(text):
    assert parse_assert(f"assert {text}", "f") is None
    reply = fenced(f"assert {text}\nassert f(1) == 2\n")
    assert extract_tests(reply, "f", 8) == [None, Test("f(1)", "2")]


def test_text_that_is_not_one_assert_is_malformed():
    for text in (
        "",
        "f(1) == 2",
        "assert f(1) == 2\nassert f(2) == 3",
        "x = 1",
        "assert",
        "assert f(1) == '\0'",
        "\ud800",
    ):
        assert parse_assert(text, "f") is None


def test_spellings_that_say_the_same_are_one_test():
    """A suite would fill up with duplicates that look new: 1 + 1, (2), x with x = 2."""
    reply = "x = [2]\n" + "".join(
        f"assert {text}\n"
        for text in (
            "f([2]) == 3",
            "f( [2,] )==3",
            "3 == f(x)",
            "f([1 + 1]) == 6 / 2 + 0",
            "f([2] * 1) == int('3')",
            "(f)([2]) == 3",
        )
    )
    assert set(extract_tests(reply, "f", 9)) == {Test("f([2])", "3"), Test("f([2])", "3.0")}
    swapped = parse_assert("assert f({2, 1}) == {'b', 'a'}")
    assert swapped == parse_assert("assert f({1, 2}) == {'a', 'b'}") is not None


BOMBS = [  # those that do little harm come first: the first one that goes off ends the run
    "[0]*10**7", "list(range(10**6 * 3))", "sum(range(10**7))", "10**10**10", "9**9**9",
    "2**(2**40)",
    "*".join(["(2**40000)"] * 6), "-(10**99999)", "(-10)**99999", "[0]*10**9",
    "10**7*[0]", "[[[0]*9999]*9999]*9999", "'a'*10**10", "10**10*'ab'", "('a'*9999)*9999",
    "(1,)*10**8",
    "(1,)*10**7", "b'x'*10**8", "list(range(10**12))",
    "sorted(range(10**6 * 3))", "set(range(10**6))", "tuple(range(10**9))", "dict(range(10**9))",
    "len(range(10**30))",
    "list(range(10**30))", "str([[[0]*200]*200]*200)", "max(range(10**7))", "int('9' * 40000)",
    "str(2**49000)",
    "float(10**400)", "[" * 150 + "]" * 150, "[" * 5000 + "]" * 5000, "-" * 20000 + "1",
    "(" * 199 + "1" + ")" * 199 + "a",
    "+".join(["1"] * 9999), "1" * 10000, "'" + "a" * 60000 + "'", "complex(10**400)",
    "[" + "1," * 18000 + "]",
    "{" * 90 + "1" + ":1}" * 90, "round(1, -10**9)", "int('1', 10**30)",
    "[0]*-(10**9)*10**9 + [0]*10**7",
    "1 << 10**10", "(1 << 49000) << 49000", "2**49000 * 2**49000 * 2**49000 * 2**49000 * 2**49000",
    "'%99999999d' % 1", "b'%99999999d' % 1", "|".join(f"{{{k * PRIME}}}" for k in range(2000)),
]  # fmt: skip
BOMB_SCRIPT = """
import json, resource, sys, time, tracemalloc
from tasks import Test, extract_tests, parse_assert
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
for bomb in json.load(sys.stdin):
    tracemalloc.start()
    start = time.process_time()
    tests = [parse_assert(f"assert f({bomb}) == 1", "f")]
    tests += [parse_assert(f"assert f(1) == {bomb}", "f")]
    tests += extract_tests(f"x = {bomb}\\nassert f(x) == 1\\nassert f(1) == 2\\n", "f", 8)
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if tests != [None, None, None, Test("f(1)", "2")] or seconds > 5 or peak > 4e7:
        sys.exit(f"{bomb[:40]}: {tests[:3]}, {seconds} s, {peak} bytes")
print("done")
"""


def test_an_expression_cannot_hurt_the_trainer():
    """Most would take minutes or gigabytes: if one ever does, then in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", BOMB_SCRIPT],
        input=json.dumps(BOMBS),
        env=os.environ | {"PYTHONPATH": FOLDER},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "done\n", done.stdout + done.stderr


def test_large_but_honest_arguments_pass():
    ones = ", ".join(["1"] * 10000)
    assert parse_assert("assert f([1] * 10000) == 10000", "f").call == f"f([{ones}])"
    test = parse_assert("assert f('a' * 10**4, range(10**12), 10**12) == 1", "f")
    assert test.call == f"f('{'a' * 10**4}', range(0, 1000000000000), 1000000000000)"
    assert parse_assert("assert f([0] * 3000 + [1] * 3000) == 1", "f") is not None


def test_many_growing_values_in_one_reply_run_out_of_budget_soon():
    """Each statement is within the bound, together they would keep the trainer busy for minutes."""
    reply = "x = [0] * 40000\n" + "y = [x]\n" * 5000 + "assert f(1) == 2\n"
    start = time.process_time()
    assert extract_tests(reply, "f", 8) == [Test("f(1)", "2")]
    assert time.process_time() - start < 3.0


def test_a_bad_statement_costs_only_itself():
    reply = fenced(
        "assert f(1) == 2\nassert f(2 == 3\nassert f(3) == 4\n  assert f(4) == 5\n"
        "assert f(\n    5,\n) == [\n    6,\n"
        ']\nassert f("""a\nb""") == 7\nassert = 8\nxs = [\n    1,\n]\nassert f(xs) == 9\n'
        "this is prose\nassert f(10) == 11\n"
        "def g():\n    assert f(12) == 13\nassert f(14) == 15; assert f(16) == 17\n"
    )
    texts = [None if test is None else test.call for test in extract_tests(reply, "f", 99)]
    assert texts == [
        "f(1)", None, "f(3)", None, "f(5)", "f('a\\nb')", None, "f([1])", "f(10)", None, "f(14)",
        "f(16)",
    ]  # fmt: skip


def test_lines_of_a_string_may_look_like_statements():
    """The third line is Python by itself: an assert that went on behind it used to be given up."""
    reply = 'assert f("""a\nb\nc""") == 1\nassert f(2 ==\n'
    assert extract_tests(fenced(reply), "f", 9) == [Test("f('a\\nb\\nc')", "1"), None]


def test_asserts_inside_other_statements_are_malformed_one_by_one():
    for head in (
        "def g():", "async def test():", "if True:", "if __name__ == '__main__':", "try:",
        "for x in [1]:", "with a:", "class A:", "while True:", "def test():\n  if True:",
        "def test():\n  def test():",
    ):  # fmt: skip
        tail = "\nexcept Exception:\n    pass" if head == "try:" else ""
        reply = f"{head}\n    assert f(1) == 2\n    assert f(2) == 3{tail}\nassert f(3) == 4\n"
        assert extract_tests(reply, "f", 9) == [None, None, Test("f(3)", "4")]


def test_asserts_in_functions_of_tests_count_with_the_names_bound_there():
    """Half of the models write their asserts as pytest would want them."""
    reply = fenced(
        "import pytest\nfrom solution import f\nxs = [1]\nn = 5\n\n"
        "def test_f():\n    xs = [2, 3]\n    assert f(xs) == 3\n    from solution import f\n"
        "    if True:\n        assert f(4) == 5\n    ys = 7\n    assert f(ys, n) == 8\n\n"
        "assert f(xs) == 9\nassert f(ys) == 10\n\n"
        "def test_g(n):\n    assert f(n) == 11\n"
        "@pytest.mark.parametrize('a, b', [(1, 2)])\ndef test_h(a, b):\n    assert f(a) == b\n"
    )
    assert extract_tests(reply, "f", 99) == [
        Test("f([2, 3])", "3"), None, Test("f(7, 5)", "8"), Test("f([1])", "9"), None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("body", ["xs.append(2)", "global xs; xs = 3", "for x in xs: xs.pop()"])
def test_what_a_function_may_change_outside_is_unknown_behind_it(body):
    for head in ("def test_f():", "def other():"):
        reply = f"xs = [1]\n{head}\n    {body}\nassert f(xs) == 1\nassert f(2) == 3\n"
        assert extract_tests(reply, "f", 9) == [None, Test("f(2)", "3")]


def test_one_broken_assert_in_a_function_of_tests_costs_only_itself():
    """A reply that is cut by the length limit ends in the middle of an assert."""
    lines = "    x = 2\n    assert f(x) == 1\n    assert f(3 == 4\n    assert f(5) == 6\n"
    for head in ("def test_f():", "def test_f() -> None:  # of f"):
        cut = f"{F}python\n{head}\n{lines}    assert f([1, 2"
        assert extract_tests(cut, "f", 9) == [Test("f(2)", "1"), None, Test("f(5)", "6"), None]
    assert extract_tests(fenced(f"class A:\n    def test_f():\n{lines}"), "f", 9) == [None] * 3


def test_a_copy_of_the_function_in_the_same_block_does_no_harm():
    """Many a tester repeats the function first; asserts behind it were all malformed."""
    copy = "def f(xs, sum=0, n=3):\n    max = 0\n    for x in xs: max += x\n    return max\n\n"
    asserted = "assert f([1]) == 1\nassert max(f([2])) == 2\n"
    expected = [Test("f([1])", "1"), Test("f([2])", "2", ("max",))]
    assert extract_tests(fenced(copy + asserted), "f", 9) == expected
    other = copy.replace("def f", "def g").replace("[1]", "g")
    assert extract_tests(fenced(other + asserted), "f", 9) == expected
    assert extract_tests(fenced(copy.replace("def f", "def max") + asserted), "f", 9)[1] is None
    named = "def test_same(x):\n    assert x\n    return x\n\nassert test_same(1) == 1\n"
    assert extract_tests(fenced(named), "test_same", 9) == [None, Test("test_same(1)", "1")]


@pytest.mark.parametrize(
    "before",
    [
        "x = g(1)", "x = 1\nx = g(1)", "x = 1\nx += 1", "x = [1]\nx.append(2)", "x = [1]\nx[0] = 2",
        "x = 1\ndel x",
        "x = 1\nfor x in [2]:\n    pass", "x = 1\ndef x():\n    pass", "x = 1\nimport x",
        "x = 1\nfrom a import b as x",
        "x = f(1)", "x, y = 1, 2", "x = 1\nassert f(1) == (x := 2)",
        "x = [1]\nfor i in [1]:\n    x.append(i)",
        "x = 1\nclass x:\n    pass", "x = 1\ntry:\n    pass\nexcept E as x:\n    pass", "x: int",
        "x = lambda: 1",
        "x = []\ny = g(x)",
        "x = 1\nwith a as x:\n    pass", "x = 1\nmatch 1:\n    case x:\n        pass",
    ],
)  # fmt: skip
def test_a_name_that_may_no_longer_be_its_literal_is_unknown(before):
    assert extract_tests(f"{before}\nassert f(x) == 2\n", "f", 9)[-1] is None


def test_names_bound_to_literals_carry_through_the_reply():
    reply = fenced("xs = [1, 2]\nn: int = 3\ny = z = 4\n") + fenced(
        "ys = xs\nassert f(xs, n) == ys\nassert f(ys) == n + 1\n"
    )
    assert extract_tests(reply, "f", 9) == [Test("f([1, 2], 3)", "[1, 2]"), Test("f([1, 2])", "4")]


@pytest.mark.parametrize(
    "before, text",
    [
        ("async def f(x):\n    return 2\n", "f(1) == 2"),
        ("f = 3\n", "f(1) == 2"),
        ("from other import g as f\n", "f(1) == 2"),
        ("class f:\n    pass\n", "f(1) == 2"),
        ("len = max\n", "len(f(1)) == 2"),
        ("def sorted(x):\n    return []\n", "sorted(f(1)) == []"),
        ("from evil import abs\n", "abs(f(1) - 2) < 0.1"),
        ("math = 1\n", "math.isclose(f(1), 2)"),
        ("import evil as math\n", "math.isclose(f(1), 2)"),
        ("range = 3\n", "f(range(3)) == 2"),
        ("float = str\n", "f(1) == float('inf')"),
        ("assert (len := 3)\n", "len(f(1)) == 2"),
    ],
)
def test_a_shadowed_name_has_no_meaning(before, text):
    assert extract_tests(f"assert {text}\n", "f", 9)[0] is not None
    assert extract_tests(f"{before}assert {text}\n", "f", 9)[-1] is None


def test_imports_of_the_program_and_a_copy_of_it_in_a_block_of_its_own_do_no_harm():
    asserted = "import math\nfrom solution import f\nassert f(1) == 2\n"
    reply = fenced("def f(x):\n    return x\n") + fenced(asserted)
    assert extract_tests(reply, "f", 9) == [Test("f(1)", "2")]


def test_a_name_of_a_type_costs_nothing():
    """Its name is a node and no text, unlike that of a class or a function."""
    for line in ("type test = int", "type f[T] = int", "type x = int; y: x = 1"):
        tests = extract_tests(fenced(f"{line}\nassert g(1) == 2\n"), "g", 9)
        assert tests == [Test("g(1)", "2")]


def test_an_entry_point_with_the_name_of_a_builtin_is_the_entry_point():
    assert parse_assert("assert sum([1, 2]) == 3", "sum") == Test("sum([1, 2])", "3")
    assert parse_assert("assert sum([1, 2]) == 3") == Test("sum([1, 2])", "3")
    assert parse_assert("assert f(sum([1, 2])) == 3", "sum") is None
    assert parse_assert("assert check([1]) == sorted([2])") == Test("check([1])", "[2]")
    assert parse_assert("assert g(f(1)) == 2") is None


def test_only_the_first_asserts_of_a_reply_count():
    reply = fenced("".join(f"assert f({i}) == {i}\nassert x\n" for i in range(50)))
    assert extract_tests(reply, "f", 3) == [Test("f(0)", "0"), None, Test("f(1)", "1")]
    assert extract_tests(reply, "f", 0) == []
    assert extract_tests(reply + reply, "f", 500) == extract_tests(reply, "f", 500) * 2


def test_asserts_are_read_from_python_blocks_or_from_a_reply_without_blocks():
    line = "assert f(1) == 2\n"
    for reply in (
        line,
        "Tests:\n" + line,
        fenced(line, ""),
        fenced(line, "Python"),
        line + fenced(line, "py"),
        "\r\n" + line,
    ):
        assert extract_tests(reply, "f", 9) == [Test("f(1)", "2")]
    for reply in (
        "",
        "Nothing comes to mind.",
        fenced(line, "json"),
        line + fenced("x\n", "text"),
        "I assert f(1) == 2",
    ):
        assert extract_tests(reply, "f", 9) == []


# ---- calls as data ----

ONE = [  # arguments of one row are one argument
    [1, 1.0, True, 1 + 0j], [0, -0.0, False, 0j, complex(-0.0, -0.0)], [nan, -nan, complex(nan, 0)],
    [complex(nan, 1), complex(nan, 1)], [complex(-0.0, 2), 2j], [1e300, int(1e300)],
    [[], (), {}, set(), frozenset(), "", b"", range(0), range(5, 5), range(3, 0)],
    [[[], 1], ("", 1), [set(), True]], [{"a": []}, {"a": ""}], [{(), ""}, {b"", frozenset()}],
    [[0, 1, 2], (0, 1, 2), range(3), range(0, 3, 1), [0.0, True, 2 + 0j]],
    [[7], (7.0,), range(7, 8), range(7, 99, 100), range(7, 0, -9)], [[5, 3, 1], range(5, 0, -2)],
    [range(10**18), range(0, 10**18, 1)], [range(0, 10, 3), range(0, 11, 3), [0, 3, 6, 9]],
    [[10**30, 10**30 + 1], range(10**30, 10**30 + 2)], [[[1, 2], 5], ((1, 2), 5)],
    [{1, 2}, frozenset({2.0, True})], [{1: 2, "a": (3,)}, {"a": [3.0], True: 2}],
    [{(1, 2): 3, (1, 2.5): 4}, {(1, 2.5): 4, (1.0, 2): 3}], [[3, 3], (3.0, 3)], ["ab"], [b"ab"],
    [None], ["1"], [b"1"], [1.5], [1j], ["nan"], [["nan"]], [{1}], [{1: 1}], [["a", "b"]], [[1, 2]],
    [[2, 1]], [[1, 2, 4]], [[1, 3]], [[0, 1, 3]], [[[1], 2]], [[1, [2]]], [[3, 3, 3]], [10**400],
    [inf], [-inf], [{(), 1}], [{1: 2}], [{2: 1}], [[None]], [[0, 1]], [{0, 1}], [[[0, 1], [2]]],
    [[[0], [1, 2]]], [range(10**18 + 1)], ["range"], [["range", 0, 1, 3]], [["empty"]], ["empty"],
]  # fmt: skip


def test_equal_arguments_have_one_key_and_others_have_their_own():
    """Whoever finds one call that breaks a program would earn as often as it can be spelt."""
    keys = [{bound_call("f", [value], {}).key for value in row} for row in ONE]
    assert [len(row) for row in keys] == [1] * len(ONE)
    assert all(a.isdisjoint(b) for a, b in combinations(keys, 2))
    for row, other in zip(ONE, ONE[1:], strict=False):
        assert all(same_argument(row[0], value) and same_argument(value, row[0]) for value in row)
        assert not same_argument(row[0], other[0])


def test_a_bound_call_is_written_in_one_way():
    call = bound_call("f", [[1, 2], range(0, 3), range(5, 0, -1)], {"b": 3.0, "a": {"y", "x"}})
    assert call.source == "f([1, 2], range(0, 3), range(5, 0, -1), a={'x', 'y'}, b=3.0)"
    assert call.key == bound_call("f", [(1, 2), [0, 1, 2], (5, 4, 3, 2, 1)],
                                  {"a": frozenset("xy"), "b": 3}).key  # fmt: skip
    assert parse_assert(f"assert {call.source} == 1", "f") == Test(call.source, "1")
    different = [([], {}), ([1], {}), ([1, 2], {}), ([1], {"a": 2}), ([], {"a": 1, "b": 2}),
                 ([], {"a": 2, "b": 1}), ([[1, 2]], {}), ([2, 1], {})]  # fmt: skip
    assert len({bound_call("f", args, named).key for args, named in different}) == len(different)
    assert bound_call("f", [1], {}).key != bound_call("g", [1], {}).key


def test_what_cannot_be_said_in_bounds_is_no_call():
    """Kept as a call with a key of its own, it would be one more spelling of a breaking call."""
    deep = eval("[" * 90 + "]" * 90)
    loop = []
    loop.append(loop)
    for value in (object(), [object()], Opaque("x"), Items("map", []), [range(3)], deep, loop, int,
                  "a" * 60_000, [1] * 60_000, {i: "a" * 99 for i in range(999)}, 1 << 300_000,
                  range(1 << 300_000), bytearray(b"a"), [[[0] * 999] * 999] * 999):  # fmt: skip
        for args, named in (([value], {}), ([1, value], {}), ([], {"a": value})):
            with pytest.raises(ValueError):
                bound_call("f", args, named)
        assert not same_argument(value, value) and not same_argument(1, value)
    for args, named in (([["a" * 999] * 9] * 9, {}), ([], {"a b": 1}), ([], {"": 1})):
        with pytest.raises(ValueError):
            bound_call("f", args, named)
    for text in ("[0] * 20000", "'a' * 49999 , 1", "[[0] * 9000] * 2", "1 << 49999, " * 5):
        assert parse_assert(f"assert f({text}) == 1", "f") is None


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does")
def test_a_key_takes_time_with_the_length_of_the_text_alone():
    """A range is not expanded, be it one of 10**18 items or be they thousands of 25,000."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), hard))  # one that is, is an error
    try:
        bind_what_could_take_long()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def bind_what_could_take_long():
    colliding = {(k // 50) + (k % 50) * PRIME for k in range(1_000)}
    start = time.process_time()
    for args in (
        [range(10**18)], [range(0, 10**600, 7)], [range(k, k + 25_000) for k in range(2_000)],
        [list(range(8_000))], [[k * 10**9 for k in range(3_000)]], [list(map(float, range(5_000)))],
        [[[]] * 12_000], [colliding], [{k: k for k in colliding}], [["ab"] * 8_000],
        [{(k, -1): [] for k in range(3_000)}],
    ):  # fmt: skip
        assert bound_call("f", args, {}).key == bound_call("f", list(args), {}).key
    for args in ([[1] * 2_000_000], [[[] for _ in range(2_000_000)]], ["ab" * 8_000_000],
                 [1 << 64_000_000], [["a" * 16] * 1_000_000], [0] * 2_000_000):  # fmt: skip
        with pytest.raises(ValueError):
            bound_call("f", args, {})
    assert time.process_time() - start < 3


# ---- verdicts ----


def test_relabel_keeps_the_form_and_takes_the_ground_truths_value():
    def again(text, value):
        test = relabel(parse_assert(f"assert {text}", "f"), value)
        return test and test.source.removeprefix("assert ")

    assert again("f(1) == 2", 3) == "f(1) == 3"
    assert again("not f(1)", [1]) == "bool(f(1)) == True"
    assert again("f(1) is True", False) == "f(1) is False"
    assert again("f(1) is True", 1) is None  # no boolean: the claim has no right answer of its form
    assert again("sorted(f(1)) == []", {"b", "a"}) == "sorted(f(1)) == ['a', 'b']"
    assert again("f(1)[0] == 2", []) is None  # raises on the ground truth
    assert again("abs(f(1) - 9000) < 90", 1) == "abs(f(1) - 1) < 0.1"  # for thousands, not for 1
    assert again("abs(f(1) - 2) < 0.1", "a") is None
    assert again("abs(f(1) - 2) < 0.1", nan) is None
    assert again("f(1) == 2", object()) is None
    assert again("f(1) == 2", "a" * 100_000) is None
    assert again("f(1) == 2", nan) == "f(1) == float('nan')"
    assert again("list(f(1)) == []", {"a"}) is None  # the order of a set is no answer


def test_values_of_foreign_types_pass_nothing_and_run_nothing():
    class Yes:
        def __eq__(self, other):
            raise SystemExit("its own code was run")

        __bool__ = __len__ = __iter__ = __hash__ = __abs__ = __eq__

    class Three(int):
        __eq__ = Yes.__eq__
        __hash__ = int.__hash__

    for value in (
        Yes(),
        [Yes()],
        {1: Yes()},
        Three(3),
        (Three(3),),
        {Three(3): 1},
        range(3),
        int,
        len,
        bytearray(b"a"),
    ):
        for text in (
            "f(1) == 3", "f(1)", "len(f(1)) == 1", "str(f(1)) == '3'", "abs(f(1) - 3) < 0.1",
            "f(1) is True",
        ):  # fmt: skip
            assert not holds(value, parse_assert(f"assert {text}", "f"))
        assert not equal(value, 3) and not equal([3], value) and not equal(value, value)
        with pytest.raises(ValueError):
            to_source(value)


def test_equal_hashes_do_not_keep_the_trainer_busy():
    """A set of 50,000 numbers of one hash takes a minute, and nothing else runs meanwhile."""
    prime, start = PRIME, time.process_time()
    for text in ("set(f(1)) == {0}", "len(set(f(1))) == 50000"):
        assert not holds([k * prime for k in range(50_000)], parse_assert(f"assert {text}", "f"))
    assert holds([0, 0.0, prime] * 50_000, parse_assert(f"assert set(f(1)) == {{0, {prime}}}", "f"))
    multiples = f"range(0, {50_000 * prime}, {prime})"
    listed = [k * prime for k in range(2_000)]
    for value in (
        f"set({multiples})", f"frozenset({multiples})", f"dict({[(k, 1) for k in listed]})",
        f"set({listed})",
        str({k: 1 for k in listed[:50] + listed[60:]}), str(set(listed)),
    ):  # fmt: skip
        assert parse_assert(f"assert f({value}) == 1", "f") is None
    assert time.process_time() - start < 5


def test_unknown_steps_and_expected_values_of_a_stored_test_fail():
    assert not holds([1], Test("f(1)", "[1]", ("__import__",)))
    assert not holds(1, Test("f(1)", "__import__('os')"))
    assert not holds(1, Test("f(1)", "1 +"))


def test_the_same_text_comes_out_under_every_hash_seed():
    """Sets of strings have another order in every process: calls and expected values have not."""
    script = (
        "import asserts; print(asserts.parse_assert("
        "\"assert f({'a', 'b', 'c', 'd'}, {frozenset({'x', 'y'}): 1}) == {'p', 'q', 'r'}\"));"
        "test = asserts.parse_assert(\"assert sorted(f(1)) == ['a', 'b']\");"
        "print(asserts.holds({'b', 'a'}, test));"
        "print(asserts.parse_assert(r\"assert f('\\d') == 1\"))"
    )
    outputs = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": FOLDER},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        outputs.add((done.stdout, done.stderr))
    assert len(outputs) == 1 and outputs.pop()[1] == ""


# ---- plain values ----

SAME = [
    (1, 1.0), (1, True), (0, False), (0.1 + 0.2, 0.3), (1e12, 1e12 + 1), (0.0, 1e-7), (-0.0, 0.0),
    (nan, nan),
    (inf, inf),
    (3, 3.0000001), ([1.0, [2.0]], [1, [2.0000001]]), ({"a": nan}, {"a": nan}), ((nan,), (nan,)),
    (1 + 1e-9j, 1),
    (complex(nan, 1), complex(nan, 1)), (10**400, 10**400), ({0.1 + 0.2, 1}, {0.3, 1}),
    ({(0.1 + 0.2, "a")}, {(0.3, "a")}),
    ({0.1 + 0.2: "a"}, {0.3: "a"}), (frozenset({1}), {1.0}), ({nan}, {nan}),
    ({1: 2, 3: 4}, {3: 4, 1: 2}),
    (None, None), ("", ""),
    ({0.1 * 3, 0.2 * 3, 0.7}, {0.3, 0.6, 0.7}), ([[]], [[]]), (1e-9, 2e-9), (True, 1.0000001),
]  # fmt: skip
OTHER = [
    (1, 2), (1.0, 1.00001), (0.0, 1e-5), (1, "1"), ("a", b"a"), ([1], (1,)), ([1], [1, 1]),
    ([1], {1}), ({}, []),
    ({}, set()),
    (None, False), (None, 0), (0, ""), ((), ""), (nan, 1.0), (nan, None), (inf, -inf), (inf, 1e308),
    (10**400, 1.0),
    (10**400, inf),
    (10**400, 10**400 + 1), ({1: 2}, {1: 3}), ({1: 2}, {2: 2}), ({1: 2}, {1: 2, 3: 4}),
    ({1, 2}, {1, 3}),
    ({1.0}, {1.1}),
    ({"a": 1}, {1: "a"}), ({1, "a"}, {1, "b"}), ([[1], 2], [[1], 3]), (1j, 1), (1j, 2j),
    ({"a", 1.5}, {"b", 1.5}),
    (True, "True"),
    ({0.1: 1}, {0.1: 2}), ({(1,): 1}, {(2,): 1}), ({nan}, {1.0}), ([nan], [None]),
    (10**20, 10**20 + 1), ("a", "a "),
    (b"", ""),
]  # fmt: skip


@pytest.mark.parametrize("a, b", SAME, ids=str)
def test_equal_values(a, b):
    assert equal(a, b) is True and equal(b, a) is True


@pytest.mark.parametrize("a, b", OTHER, ids=str)
def test_different_values(a, b):
    assert equal(a, b) is False and equal(b, a) is False


def test_a_float_is_no_large_integer_but_within_a_millionth():
    """n / 2 would pass for n // 2, and math.sqrt for math.isqrt, where inputs are large."""
    n = 2_000_001
    assert not equal(n / 2, n // 2) and not equal([n // 2], [n / 2])
    assert not equal(math.sqrt(n * n + n), n) and equal(math.sqrt(n * n), n)
    assert equal(2.9999999999999996, 3) and equal(n * 1.0, n * 1.0 + 0.5)


def test_values_without_end_or_bottom_are_compared_without_harm():
    loop = []
    loop.append(loop)
    deep, deeper = [], []
    for _ in range(100_000):
        deep, deeper = [deep], [deeper]
    for a, b in ((deep, deeper), (deep, 1)):
        assert equal(a, b) in (True, False)
    with pytest.raises(ValueError):
        to_source(deep)
    assert not holds(deep, parse_assert("assert str(f(1)) == 'a'"))
    with pytest.raises(ValueError):
        asserts.plain_size(loop, 1000)
    with pytest.raises(ValueError):
        asserts.plain_size(loop)


def plain(rng: random.Random, depth: int = 3, hashable: bool = False):
    """A random plain value."""
    boxes = ["tuple", "frozenset"] + ([] if hashable else ["list", "dict", "set"])
    kinds = ["atom"] * 3 + boxes
    kind = rng.choice(kinds) if depth else "atom"
    if kind == "atom":
        return rng.choice(
            [
                None, True, False, 0, -1, rng.randrange(-(10**20), 10**20), 7**4000,
                rng.uniform(-9, 9), 1e-300, -0.0,
                inf, -inf, nan,
                complex(rng.random(), -2), complex(nan, inf), "", "it's \"quoted\" \\ \n\r\t\0",
                "é\ud800\U0001f600\u2028", "{}", "',)",
                bytes(rng.randrange(256) for _ in range(5)), rng.choice("abc") * rng.randrange(4),
            ]
        )  # fmt: skip
    if kind == "dict":
        return {plain(rng, depth - 1, True): plain(rng, depth - 1) for _ in range(rng.randrange(4))}
    inner = hashable or kind in ("set", "frozenset")
    items = [plain(rng, depth - 1, inner) for _ in range(rng.randrange(4))]
    return {"tuple": tuple, "list": list, "set": set, "frozenset": frozenset}[kind](items)


def shape(value) -> str:
    """Types and contents of a value as text, an independent account of identity; sets in order."""
    if isinstance(value, dict):
        return f"dict{[(shape(k), shape(v)) for k, v in value.items()]}"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}{sorted(map(shape, value))}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}{[shape(item) for item in value]}"
    return f"{type(value).__name__}:{hex(value) if type(value) is int else value!r}"


def test_source_and_back_gives_the_same_value_of_the_same_types():
    rng = random.Random(0)
    for _ in range(1000):
        value = plain(rng)
        text = to_source(value)
        back = from_source(text)
        assert shape(back) == shape(value), text
        assert to_source(back) == text  # one text for one value
        compile(text, "text", "eval")
        test = parse_assert(f"assert f({text}, x={text}) == {text}", "f")
        assert test == Test(f"f({text}, x={text})", text)


def test_equality_agrees_with_python_where_no_float_is_near_and_is_symmetric():
    rng = random.Random(1)
    values = [plain(rng, 2) for _ in range(100)] + [[], [1], (1,), {1}, {1: 1}, 1, 1.0, True]
    for a in values:
        for b in values:
            near_or_nan = any(kind in shape(a) + shape(b) for kind in ("float", "complex"))
            assert equal(a, b) == equal(b, a)
            assert equal(a, b) == (a == b) or near_or_nan
        assert equal(a, from_source(to_source(a))) or "nan" in shape(
            a
        )  # NaN in a set beside other members has no order


@pytest.mark.parametrize(
    "text",
    ["", "x", "1 + 1", "[0] * 3", "f(1)", "range(3)", "list()", "__import__('os')", "float", "[1",
     "1\n2", "x := 1", "lambda: 1", "[*()]", "'a' 'b' + 'c'", "{**{}}", "f''", "...", "\0", "inf",
     "float('x')", "sum([1])", "(1).real", "[1][0]"],
)  # fmt: skip
def test_only_sources_of_plain_values_are_read_back(text):
    with pytest.raises(ValueError):
        from_source(text)


# ---- iterators and other values that are no plain data ----


def iterators(kind: str, items: list, passing: list[str], failing: list[str]) -> None:
    value = Items(kind, items)
    for text in passing:
        test = parse_assert(f"assert {text}", "f")
        assert holds(value, test) and relabel(test, value) == test, (kind, text)
    for text in failing:
        test = parse_assert(f"assert {text}", "f")
        assert not holds(value, test), (kind, text)


TAKEN = [
    "list(f(1)) == [2, 1]", "tuple(f(1)) == (2, 1)", "set(f(1)) == {1, 2}", "sum(f(1)) == 3",
    "sorted(f(1)) == [1, 2]", "min(f(1)) == 1", "max(f(1)) == 2", "len(list(f(1))) == 2",
    "list(f(1))[0] == 2", "f(1)", "abs(sum(f(1)) - 3) < 0.1",
]  # fmt: skip
REFUSED = [
    "f(1) == [2, 1]", "f(1) == (2, 1)", "f(1) is None", "f(1) is True", "str(f(1)) == '[2, 1]'",
    "abs(f(1)) == 2", "round(f(1)) == 2", "not f(1)",
]  # fmt: skip


def test_iterators_are_what_the_assert_makes_of_their_items():
    """A function that yields is asserted with list around it, and had no valid test at all."""
    sized, indexed = ["len(f(1)) == 2"], ["f(1)[0] == 2", "f(1)[-1] == 1"]
    for kind in ("generator", "map", "zip", "filter", "enumerate", "reversed", "list_iterator"):
        iterators(kind, [2, 1], TAKEN, REFUSED + sized + indexed)
    for kind in ("dict_keys", "dict_values", "dict_items"):
        iterators(kind, [2, 1], TAKEN + sized, REFUSED + indexed)
    for kind in ("range", "deque"):
        iterators(kind, [2, 1], TAKEN + sized + indexed, REFUSED)


def test_an_empty_iterator_is_true_and_an_empty_range_is_not():
    true, false = parse_assert("assert f(1)", "f"), parse_assert("assert not f(1)", "f")
    for kind in ("generator", "map", "zip"):
        assert holds(Items(kind, []), true) and not holds(Items(kind, []), false)
    for kind in ("range", "deque", "dict_keys", "dict_items"):
        assert holds(Items(kind, []), false) and not holds(Items(kind, []), true)


def test_a_value_with_an_iterator_in_it_equals_nothing_but_its_parts_can_be_reached():
    value = [1, Items("map", [2, 3])]
    assert not equal(value, value) and not equal([1, [2, 3]], value)
    assert not holds(value, parse_assert("assert f(1) == [1, [2, 3]]"))
    assert holds(value, parse_assert("assert list(f(1)[1]) == [2, 3]"))
    assert holds(value, parse_assert("assert len(f(1)) == 2"))
    assert holds(value, parse_assert("assert f(1)[0] == 1"))
    assert relabel(parse_assert("assert f(1) == [1, [2, 3]]"), value) is None
    assert relabel(parse_assert("assert sorted(f(1)) == 1"), [Items("map", [])] * 2) is None


@pytest.mark.parametrize("value", [Opaque("re.Match"), Items("generator", [1])], ids=repr)
def test_what_is_no_plain_data_equals_nothing_and_makes_no_test(value):
    assert (value == value) is False and value != [1] and len({value, value}) == 1
    assert not equal(value, value) and not equal([value], [value])
    for text in ("f(1) == 1", "f(1) == [1]", "f(1) is None", "f(1) is True", "not f(1)"):
        assert not holds(value, parse_assert(f"assert {text}"))
        assert not holds([value], parse_assert(f"assert {text}"))
    assert relabel(parse_assert("assert f(1) == 1"), value) is None
    with pytest.raises(ValueError):
        to_source(value)


def test_an_opaque_value_fails_whatever_is_around_it():
    assert repr(Opaque("re.Match")) == "Opaque('re.Match')"
    for text in (
        "f(1)",
        "len(f(1)) == 1",
        "bool(f(1)) == True",
        "f(1)[0] == 1",
        "list(f(1)) == []",
    ):
        test = parse_assert(f"assert {text}", "f")
        for value in (Opaque("x"), [Opaque("x")], [1, Opaque("x")], Items("map", [Opaque("x")])):
            assert not holds(value, test) and relabel(test, value) is None


# ---- time in the trainer ----


def nested(value: object, depth: int) -> object:
    for _ in range(depth):
        value = [value]
    return value


def colliding(count: int) -> list[int]:
    """Numbers of which 50 at a time share a hash, in no order."""
    numbers = [(k // 50) + (k % 50) * PRIME for k in range(count)]
    random.Random(0).shuffle(numbers)
    return numbers


def numbers(count: int) -> list:
    rng = random.Random(0)
    return [rng.random() if k % 2 else rng.randrange(99) for k in range(count)]


WORST = {  # as large as values arrive, and just below our own limits; before: up to an hour each
    "one huge integer and many ones": lambda: [1 << 8_000_000] + [1] * 50_000,
    "one integer of half the room": lambda: [1 << 3_000_000] + [1] * 150_000,
    "many digits in all": lambda: [1 << 300_000] + [1] * 3_000,
    "integers of 10,000 bits": lambda: [1 << 10_000 for _ in range(30_000)],
    "integer of 64 million bits": lambda: 1 << 64_000_000,
    "two million empty lists": lambda: [[] for _ in range(2_000_000)],
    "empty lists": lambda: [[] for _ in range(240_000)],
    "two million small integers": lambda: [k % 100 for k in range(2_000_000)],
    "numbers": lambda: numbers(240_000),
    "numbers that may be sorted": lambda: numbers(99_000),
    "a list of 50 per hash": lambda: colliding(240_000),
    "multiples of a prime": lambda: [k * PRIME for k in range(240_000)],
    "a set of 50 per hash": lambda: set(colliding(90_000)),
    "a dict of 50 per hash": lambda: dict.fromkeys(colliding(60_000), 1),
    "equal frozensets of one hash": lambda: [
        frozenset(k * PRIME for k in range(50)) for _ in range(4_500)
    ],
    "a chain of sets of one hash": lambda: [set(colliding(k + 1)) for k in range(500)],
    "equal dicts of one hash": lambda: [
        [dict.fromkeys((k * PRIME for k in range(50)), 0), -n] for n in range(2_200)
    ],
    "16 MB of text": lambda: "ab" * 8_000_000,
    "text": lambda: "ab" * 245_000,
    "texts that begin alike": lambda: ["a" * 16_000 + str(k) for k in range(1_000)],
    "short texts": lambda: [str(k * k)[-3:] for k in range(98_000)],
    "bytes": lambda: bytes(240_000),
    "lists of depth 98": lambda: [nested(-k, 98) for k in range(20_000)],
    "lists of depth 58": lambda: [nested(-k, 58) for k in range(4_000)],
    "lists of depth 6": lambda: [nested(-k % 7919, 6) for k in range(13_000)],
    "floats of long text": lambda: [1e-300 + k for k in range(24_000)],
}
AROUND = [
    (), ("sum",), ("min",), ("sorted",), ("set",), ("list",), ("len",), ("str",), ("abs",),
    ("bool",), ("list", "tuple", "sorted", "list", "set", "sum"),
]  # fmt: skip


@pytest.mark.parametrize("kind", WORST)
def test_no_value_holds_the_trainer_for_more_than_a_second(kind):
    """Adding one huge integer to 50,000 ones took 17 s inside C, in which no thread could run."""
    value = WORST[kind]()
    for via in AROUND:
        for expected in ("[1, 2, 3]",) if via else ("3", "[1, 2, 3]", "{1, 2, 3}", "'a'"):
            test, start = Test("f(1)", expected, via), time.process_time()
            assert not holds(value, test)
            middle = time.process_time()
            new = relabel(test, value)
            seconds = max(middle - start, time.process_time() - middle)
            assert seconds < 1, (via, expected, seconds)
            assert new is None or new.expected != expected


def test_adding_up_is_bounded_in_digits():
    """One huge integer and 50,000 ones took 17 s, in which no thread of the trainer could run."""
    test = parse_assert("assert sum(f(1)) == 3", "f")
    for large, ones in ((8_000_000, 50_000), (3_000_000, 100_000), (1_000_000, 100_000)):
        value, start = [1 << large] + [1] * ones, time.process_time()
        assert not holds(value, test) and relabel(test, value) is None
        assert time.process_time() - start < 1
    assert holds([1 << 3000] * 9 + [1], Test("f(1)", hex((1 << 3000) * 9 + 1), ("sum",)))


def test_a_set_of_deep_members_is_compared_in_no_time():
    """Members without a partner are sorted; to compare deep ones takes the square of the depth."""

    def deep(value: object) -> object:
        for _ in range(50):
            value = (value,)
        return value

    members = [deep(k) for k in range(2_400)]
    others = set(range(2_400))
    start = time.process_time()
    assert not equal(set(members), others)
    assert not holds(members, Test("f(1)", to_source(others), ("set",)))
    assert time.process_time() - start < 1
    assert equal({deep(0.1 + 0.2)}, {deep(0.3)})  # one needs no order


def test_lengths_are_compared_before_anything_else(monkeypatch):
    """Large sets were sorted, and lists walked, to find out that an item is missing."""
    looked = []
    for name in ("_in_order", "_close"):
        old = getattr(asserts, name)
        monkeypatch.setattr(asserts, name, lambda *x, old=old: looked.append(x) or old(*x))
    near = 0.1 + 0.2
    for a, b in (([near, 1], [0.3]), ({near, 1}, {0.3}), ({near: 1, 2: 3}, {0.3: 1})):
        assert not equal(a, b) and not equal(b, a) and looked == []
    for a, b in (([near], [0.3]), ({near}, {0.3}), ({near: 1}, {0.3: 1})):
        assert equal(a, b) and looked
        looked.clear()
