"""Replies to programs and asserts, comparison and source of plain values, question files, prompts."""

import gzip
import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tasks
from tasks import (
    Hidden,
    Question,
    Test,
    call_key,
    coder_messages,
    equal,
    extract_program,
    extract_tests,
    from_source,
    holds,
    load_questions,
    make_solution,
    parse_assert,
    relabel,
    save_questions,
    to_source,
    top_names,
)

F = "`" * 3
CODE = "def inc(x):\n    return x + 1\n"
nan, inf = math.nan, math.inf


def fenced(code: str, tag: str = "python") -> str:
    return f"{F}{tag}\n{code.rstrip()}\n{F}\n"


# ---- programs ----

HEADERS = {
    "upper case": fenced(CODE, "Python"),
    "alias": fenced(CODE, "py"),
    "version": fenced(CODE, "python3"),
    "no tag": fenced(CODE, ""),
    "blank before the tag": fenced(CODE, " python"),
    "attributes": fenced(CODE, 'python title="inc.py" linenums'),
    "braces": fenced(CODE, "{.python .numberLines}"),
    "tildes": f"~~~python\n{CODE}~~~",
    "longer fence": f"`{F}python\n{CODE}`{F}",
    "longer closing fence": f"{F}python\n{CODE}`{F}",
    "CRLF": fenced(CODE).replace("\n", "\r\n"),
    "CR": fenced(CODE).replace("\n", "\r"),
    "in a list": "1. Code:\n   " + fenced(CODE).strip().replace("\n", "\n   ") + "\n2. Done.",
    "on the list's line": "- " + fenced(CODE).strip().replace("\n", "\n  "),
    "code on the fence's line": f"{F}def inc(x):\n    return x + 1\n{F}",
    "code behind the tag": f"{F}python def inc(x):\n    return x + 1\n{F}",
    "closed on the line of the code": f"{F}python\n{CODE.rstrip()}{F}\nThis adds one.",
    "byte order mark": "\ufeff" + CODE,
    "never closed": f"Sure:\n{F}python\n{CODE}",
    "trailing blanks": f"{F}python  \n{CODE}{F}  \nDone.",
    "bare": CODE,
}


@pytest.mark.parametrize("form", HEADERS)
def test_the_same_code_comes_out_of_every_kind_of_fence(form):
    assert extract_program(HEADERS[form], "inc").strip() == CODE.strip()


@pytest.mark.parametrize(
    "reply, program",
    [
        (fenced(CODE) + "Use it:\n" + fenced("print(inc(1))\n"), CODE),  # the example comes last, the code counts
        (fenced("def inc(x): pass\n") + "Better:\n" + fenced(CODE), CODE),  # a second thought replaces the first
        (fenced(CODE, "") + fenced("print(inc(1))\n"), CODE),  # the definition forgot its tag
        (fenced(CODE) + fenced("inc(1) -> 2\n", "text"), CODE),  # output in a block of its own
        (fenced("x = 1\n") + fenced("y = 2\n"), "y = 2\n"),  # no definition: the last Python block
        (fenced("def inc(x:\n") + fenced("x = 1\n", "text"), "def inc(x:\n"),  # a broken Python block is the answer
        (fenced("no code\n", "text") + fenced("x = 1\n", "text"), "x = 1\n"),  # no Python block: the last that parses
        (fenced("if True:\n    def inc(x):\n        return 1\n") + fenced("y = 2\n"), "if True:\n    def inc(x):"),
        (fenced("class A:\n    def inc(self): pass\n") + fenced("y = 2\n"), "y = 2\n"),  # a method is no entry point
        (fenced("inc = lambda x: x + 1\n") + fenced("y = 2\n"), "inc = lambda"),
        (f"`{F}markdown\n{fenced('y = 2' + chr(10))}`{F}\n{fenced(CODE)}", CODE),  # a fence shown inside a longer one
        (f"{F}python\nx = 1\n\n{F}python\n{CODE}{F}", CODE),  # the first block was never closed
        ("I cannot do that.", ""),
        ("", ""),
        (fenced(""), ""),
        ("   \n", ""),
    ],
)
def test_the_block_that_counts(reply, program):
    assert extract_program(reply, "inc").startswith(program)
    assert bool(extract_program(reply, "inc")) == bool(program)


def test_a_fence_shown_in_a_docstring_does_not_cut_the_program_short():
    code = f'def inc(x):\n    """Example:\n{F}\ninc(1)\n{F}\n    """\n    s = "{F}"\n    return x + 1\n'
    assert extract_program(fenced(code), "inc") == code
    assert extract_program(fenced(code.replace('"""', "'''")), "inc") == code.replace('"""', "'''")


def test_quotes_and_fences_in_comments_and_strings_do_not_move_the_end_of_a_block():
    """Taken for an opening quote, one in a comment or in a string runs on to the docstring of the next block."""
    for line in ('# """', "s = '\"\"\"'", 's = "\'\'\'"', f"# {F}", f's = "{F}"', f"s = '#{F}'"):
        code = f"def inc(x):\n    {line}\n    return x + 1\n"
        assert extract_program(fenced(code) + "Try:\n" + fenced('def g():\n    """It works."""\n'), "inc") == code


def test_lines_of_a_list_item_lose_no_more_than_its_indent():
    """Cut by the width of "10. ", a body of two blanks comes out at the margin: no Python any more."""
    code = "def inc(x):\n  return x + 1\n"
    assert extract_program(f"10. {fenced(code)}", "inc") == code
    text = 'def inc(x):\n    """Adds\none."""\n    return x + 1\n'
    indented = text.replace("def", "   def").replace("    ", "       ")
    assert extract_program(f"   {F}python\n{indented}   {F}", "inc") == text


PROMPT = (
    "from typing import List\ndef helper(n: int) -> int:\n    return n * 2\n\n"
    'def twice(xs: List[int]) -> List[int]:\n    """double each"""\n'
)
FULL = "def twice(xs: List[int]) -> List[int]:\n    return [helper(x) for x in xs]\n"


def question(prompt: str = PROMPT, entry_point: str = "twice") -> Question:
    return Question("q", prompt, entry_point, "", ())


def run(program: str) -> dict:
    names = {"__name__": "candidate"}
    exec(compile(program, "program", "exec"), names)
    return names


@pytest.mark.parametrize(
    "reply",
    [
        FULL,
        "    return [helper(x) for x in xs]\n",
        "return [helper(x) for x in xs]",
        "ys = xs\n    return [helper(x) for x in ys]",
        "ys = []\nfor x in xs:\n    ys.append(helper(x))\nreturn ys\n",
        "    for x in xs:\n        yield helper(x)\n",
        "    yield from map(helper, xs)\n",
        "\tys = map(helper, xs)\n\treturn list(ys)\n",
        "  ys = map(helper, xs)\n  return list(ys)\n",
        fenced("        ys = map(helper, xs)\n        return list(ys)\n"),
        fenced("    return [helper(x) for x in xs]\n"),
        fenced("return [helper(x) for x in xs]\n"),
        PROMPT + "    return [helper(x) for x in xs]\n",
        fenced(PROMPT + "    return [helper(x) for x in xs]\n"),
        "def twice(xs):\n    return [2 * x for x in xs]\n\nif __name__ == '__main__':\n    print(twice(input()))\n",
        "from __future__ import annotations\n" + FULL,
        '"""Doubling."""\nfrom __future__ import annotations\nimport os\n' + FULL,
    ],
)
def test_every_form_in_which_the_answer_to_a_stub_comes_back_works(reply):
    assert list(run(make_solution(question(), reply))["twice"]([1, 3])) == [2, 6]


def test_a_stub_without_a_docstring_takes_a_body_and_a_whole_function_too():
    prompt = "import math\n\n@staticmethod\ndef area(r):\n"
    for reply in ("    return math.pi * r * r\n", fenced("def area(r):\n    return math.pi * r * r\n")):
        program = make_solution(question(prompt, "area"), reply)
        assert run(program)["area"](1) == math.pi


def test_a_program_without_the_entry_point_is_not_saved_by_the_stub_of_the_prompt():
    """The stub is a function that returns None: in front of a program it would make any reply load."""
    for reply in (fenced("def double(xs):\n    return xs\n"), fenced("print(twice([1]))\n"), "x = 1\n"):
        program = make_solution(question(), reply)
        assert "twice" not in top_names(program) and "def helper" in program
    assert make_solution(question(), "I would double each, then return the list.") == ""
    assert make_solution(question(), "") == ""


def test_the_prompts_code_goes_in_front_unchanged_and_only_where_something_is_missing():
    assert make_solution(question(), FULL) == PROMPT[: PROMPT.index("def twice")] + "\n" + FULL
    whole = PROMPT + "    return [helper(x) for x in xs]\n"
    assert make_solution(question(), whole) == whole
    mine = "from typing import List\nhelper = abs\n" + FULL  # its own helper is not replaced
    assert make_solution(question(), mine) == mine
    assert make_solution(question(), fenced("def twice(xs:\n")) == "def twice(xs:\n"  # not Python: left alone


@pytest.mark.parametrize(
    "prompt", ["Double each number.", "Double", '"""\nDouble each.\nassert twice([1]) == [2]\n"""\n']
)
def test_prose_is_never_put_in_front(prompt):
    assert make_solution(question(prompt), fenced(FULL)) == FULL
    assert make_solution(question(prompt), "return 1") == "return 1"


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
    ("f(float('inf'), -math.inf, float('nan')) == set()", set(), [], "f(float('inf'), float('-inf'), float('nan'))"),
    ("f([0] * 3 + [1], 'ab' * 2) == 10**9 + 7", 1000000007, 7, "f([0, 0, 0, 1], 'abab')"),
    ("f(range(3), list(range(1, 3)), {3, 1}) == [0] * 2", [0, 0], [0], "f(range(0, 3), [1, 2], {1, 3})"),
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
f(1 & 3) == 3
f(1
""".strip().splitlines()


@pytest.mark.parametrize("text", MALFORMED)
def test_everything_else_is_malformed(text):
    assert parse_assert(f"assert {text}", "f") is None
    assert extract_tests(fenced(f"assert {text}\nassert f(1) == 2\n"), "f", 8) == [None, Test("f(1)", "2")]


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
    assert parse_assert("assert f({2, 1}) == {'b', 'a'}") == parse_assert("assert f({1, 2}) == {'a', 'b'}")


BOMBS = [  # those that do little harm come first: the first one that goes off ends the run
    "[0]*10**7", "list(range(10**6 * 3))", "sum(range(10**7))", "10**10**10", "9**9**9", "2**(2**40)",
    "*".join(["(2**40000)"] * 6), "-(10**99999)", "(-10)**99999", "[0]*10**9",
    "10**7*[0]", "[[[0]*9999]*9999]*9999", "'a'*10**10", "10**10*'ab'", "('a'*9999)*9999", "(1,)*10**8",
    "(1,)*10**7", "b'x'*10**8", "list(range(10**12))",
    "sorted(range(10**6 * 3))", "set(range(10**6))", "tuple(range(10**9))", "dict(range(10**9))", "len(range(10**30))",
    "list(range(10**30))", "str([[[0]*200]*200]*200)", "max(range(10**7))", "int('9' * 40000)", "str(2**49000)",
    "float(10**400)", "[" * 150 + "]" * 150, "[" * 5000 + "]" * 5000, "-" * 20000 + "1",
    "(" * 199 + "1" + ")" * 199 + "a",
    "+".join(["1"] * 9999), "1" * 10000, "'" + "a" * 60000 + "'", "complex(10**400)", "[" + "1," * 18000 + "]",
    "{" * 90 + "1" + ":1}" * 90, "round(1, -10**9)", "int('1', 10**30)", "[0]*-(10**9)*10**9 + [0]*10**7",
]  # fmt: skip
BOMB_SCRIPT = """
import json, resource, sys, time, tracemalloc
from tasks import Test, extract_tests, parse_assert
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
for bomb in json.load(sys.stdin):
    tracemalloc.start()
    start = time.process_time()
    tests = [parse_assert(f"assert f({bomb}) == 1", "f"), parse_assert(f"assert f(1) == {bomb}", "f")]
    tests += extract_tests(f"x = {bomb}\\nassert f(x) == 1\\nassert f(1) == 2\\n", "f", 8)
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if tests != [None, None, None, Test("f(1)", "2")] or seconds > 5 or peak > 4e7:
        sys.exit(f"{bomb[:40]}: {tests[:3]}, {seconds} s, {peak} bytes")
print("done")
"""


def test_an_expression_cannot_hurt_the_trainer():
    """Evaluated, most of these would take minutes or gigabytes: if one ever does, then in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", BOMB_SCRIPT],
        input=json.dumps(BOMBS),
        env=os.environ | {"PYTHONPATH": str(Path(tasks.__file__).parent)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "done\n", done.stdout + done.stderr


DEGENERATE = [
    " ", "\t", "\n", "`", "~", '"', "'", "(", "[", "{", "\\", "#", "9", '\\"', '\\"""\n', "\\'''\n", "\\\n", "```~",
    "``` ", "```\n", "assert ", "assert\n", "assert f(\n", "1 2\n", "@x\n", "f(", "-", "lambda:", "```\n)\n```\n", "- ",
    "f'{", "```\nassert f(\n" + "1 2\n" * 40 + "```\n",
]  # fmt: skip


@pytest.mark.parametrize("unit", DEGENERATE, ids=ascii)
def test_a_reply_that_goes_round_in_circles_does_not_keep_the_trainer_busy(unit):
    """A model that loses its way repeats a few characters up to its limit: read in quadratic time, that is minutes."""
    body = (unit * 200_000)[:200_000]
    start = time.process_time()
    opened = f"{F}python\n{body}"
    for reply in (body, f"{opened}\nx\n{F}\n", f"{opened}x", f"assert f(\n{body}x", f"~~~{body}{F}\n"):
        extract_program(reply, "f")
        extract_tests(reply, "f", 8)
    assert time.process_time() - start < 10


def test_large_but_honest_arguments_pass():
    assert parse_assert("assert f([1] * 10000) == 10000", "f").call == f"f([{', '.join(['1'] * 10000)}])"
    assert parse_assert("assert f('a' * 10**4, range(10**12), 10**12) == 1", "f").call.endswith(
        "', range(0, 1000000000000), 1000000000000)"
    )


def test_many_growing_values_in_one_reply_run_out_of_budget_soon():
    """Each statement is within the bound, together they would keep the trainer busy for minutes."""
    reply = "x = [0] * 40000\n" + "y = [x]\n" * 5000 + "assert f(1) == 2\n"
    start = time.process_time()
    assert extract_tests(reply, "f", 8) == [Test("f(1)", "2")]
    assert time.process_time() - start < 3.0


def test_a_bad_statement_costs_only_itself():
    reply = fenced(
        "assert f(1) == 2\nassert f(2 == 3\nassert f(3) == 4\n  assert f(4) == 5\nassert f(\n    5,\n) == [\n    6,\n"
        ']\nassert f("""a\nb""") == 7\nassert = 8\nxs = [\n    1,\n]\nassert f(xs) == 9\n'
        "this is prose\nassert f(10) == 11\n"
        "def test():\n    assert f(12) == 13\nassert f(14) == 15; assert f(16) == 17\n"
    )
    texts = [None if test is None else test.call for test in extract_tests(reply, "f", 99)]
    assert texts == [
        "f(1)", None, "f(3)", None, "f(5)", "f('a\\nb')", None, "f([1])", "f(10)", None, "f(14)", "f(16)",
    ]  # fmt: skip


def test_asserts_inside_other_statements_are_malformed_one_by_one():
    for head in ("def test():", "if True:", "try:", "for x in [1]:", "with a:", "class A:", "while True:"):
        tail = "\nexcept Exception:\n    pass" if head == "try:" else ""
        reply = f"{head}\n    assert f(1) == 2\n    assert f(2) == 3{tail}\nassert f(3) == 4\n"
        assert extract_tests(reply, "f", 9) == [None, None, Test("f(3)", "4")]


@pytest.mark.parametrize(
    "before",
    [
        "x = g(1)", "x = 1\nx = g(1)", "x = 1\nx += 1", "x = [1]\nx.append(2)", "x = [1]\nx[0] = 2", "x = 1\ndel x",
        "x = 1\nfor x in [2]:\n    pass", "x = 1\ndef x():\n    pass", "x = 1\nimport x", "x = 1\nfrom a import b as x",
        "x = f(1)", "x, y = 1, 2", "x = 1\nassert f(1) == (x := 2)", "x = [1]\nfor i in [1]:\n    x.append(i)",
        "x = 1\nclass x:\n    pass", "x = 1\ntry:\n    pass\nexcept E as x:\n    pass", "x: int", "x = lambda: 1",
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
        ("def f(x):\n    return 2\n", "f(1) == 2"),
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
    reply = fenced("def f(x):\n    return x\n") + fenced("import math\nfrom solution import f\nassert f(1) == 2\n")
    assert extract_tests(reply, "f", 9) == [Test("f(1)", "2")]


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


MANY = "import math\ndef f(x): pass\ndef f(a, b=2, /, c=[0, 0], *rest, d=math.inf, **more):\n    return a\n"


def test_spellings_of_one_call_have_one_key():
    """Whoever finds one call that breaks a program would earn as often as it can be spelt."""
    keys = {
        call_key(f"f({arguments})", MANY)
        for arguments in (
            "3", "3.0", "1 + 2", "3, 2", "3, True + 1", "3, 2, [0, 0]", "3, 2, [0] * 2", "3, c=[False, 0.0]",
            "3, d=float('inf')", "d=math.inf, c=[-0.0, 0j], a=3", "b=2, a=3", "3, 2, [0, 0], d=float('inf')",
        )
    }  # fmt: skip
    assert len(keys) == 1 and call_key("f(3)", MANY) in keys
    for same in (
        ["g(range(3))", "g([0, 1, 2])", "g([0] + [1, 2])", "g(list(range(0, 3, 1)))"],
        ["g({1: 2, 'a': {3.0}})", "g({'a': {3}, True: 2})"],
        ["g(float('nan'), x=(1,))", "g(-float('nan'), x=(1.0,))"],
        ["g(x=1, y=2)", "g(y=2, x=1)"],
        ["g(range(10**9))", "g(range(0, 10**9, 1))"],
    ):
        for reference in (MANY, "def g(*x, **y): pass", "def g(:"):
            assert len({call_key(call, reference) for call in same}) == 1


def test_different_calls_have_different_keys():
    calls = [
        "f()", "f(1)", "f(2)", "f('1')", "f(b'1')", "f([1])", "f((1,))", "f({1})", "f({1: 1})", "f(None)", "f(1.5)",
        "f(1j)", "f(1, 3)", "f(1, c=3)", "f(1, d=3)", "f(1, e=3)", "f(1, 2, 3, 4)", "f(1, 2, 3, 5)", "f(1, 2, 3, 4, 5)",
        "f(x)", "f('x')", "f(float('inf'))", "f(-math.inf)", "f(10**400)", "f([1, 2])", "f([2, 1])", "f([[1], 2])",
    ]  # fmt: skip
    for reference in (MANY, "f = abs", "def f(:"):
        assert len({call_key(call, reference) for call in calls}) == len(calls)


@pytest.mark.parametrize(
    "call", ["", "f(1", "x", "f.x(1)", "f(*[1])", "f(**{})", "f(1, a=1)", "f(a=1, a=2)", "\0", "\ud800"]
)
def test_what_is_no_call_of_a_known_form_is_its_own_key(call):
    assert call_key(call, MANY) == call


def test_a_key_takes_no_time():
    start = time.process_time()
    for arguments in (
        "[0] * 40000, " * 4000, "range(999), " * 8000, "-" * 40000 + "1", "[" * 190 + "]" * 190, "1, " * 9**6,
        "{" * 90 + "1" + ": 1}" * 90, ", ".join(f"a{i}=1" for i in range(9000)), "10**9**9", "9" * 40000, "1+" * 20000,
    ):  # fmt: skip
        assert call_key(f"f({arguments})", MANY)
    assert time.process_time() - start < 5


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
    assert again("abs(f(1) - 9000) < 90", 1) == "abs(f(1) - 1) < 0.1"  # a tolerance for thousands is none for 1
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
        for text in ("f(1) == 3", "f(1)", "len(f(1)) == 1", "str(f(1)) == '3'", "abs(f(1) - 3) < 0.1", "f(1) is True"):
            assert not holds(value, parse_assert(f"assert {text}", "f"))
        assert not equal(value, 3) and not equal([3], value) and not equal(value, value)
        with pytest.raises(ValueError):
            to_source(value)


def test_equal_hashes_do_not_keep_the_trainer_busy():
    """Multiples of one prime share a hash: a set of 50,000 of them takes a minute, and nothing else runs meanwhile."""
    prime, start = 2**61 - 1, time.process_time()
    for text in ("set(f(1)) == {0}", "len(set(f(1))) == 50000"):
        assert not holds([k * prime for k in range(50_000)], parse_assert(f"assert {text}", "f"))
    assert holds([0, 0.0, prime] * 50_000, parse_assert(f"assert set(f(1)) == {{0, {prime}}}", "f"))
    multiples = f"range(0, {50_000 * prime}, {prime})"
    listed = [k * prime for k in range(2_000)]
    for value in (
        f"set({multiples})", f"frozenset({multiples})", f"dict({[(k, 1) for k in listed]})", f"set({listed})",
        str({k: 1 for k in listed[:50] + listed[60:]}), str(set(listed)),
    ):  # fmt: skip
        assert parse_assert(f"assert f({value}) == 1", "f") is None
    assert time.process_time() - start < 5


def test_unknown_steps_and_expected_values_of_a_stored_test_fail():
    assert not holds([1], Test("f(1)", "[1]", ("__import__",)))
    assert not holds(1, Test("f(1)", "__import__('os')"))
    assert not holds(1, Test("f(1)", "1 +"))


def test_the_same_text_comes_out_under_every_hash_seed():
    """Sets of strings are iterated in another order in every process; calls and expected values must not change."""
    script = (
        "import tasks; print(tasks.parse_assert("
        "\"assert f({'a', 'b', 'c', 'd'}, {frozenset({'x', 'y'}): 1}) == {'p', 'q', 'r'}\"));"
        " print(tasks.holds({'b', 'a'}, tasks.parse_assert(\"assert sorted(f(1)) == ['a', 'b']\")));"
        "print(tasks.parse_assert(r\"assert f('\\d') == 1\"))"
    )
    outputs = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(tasks.__file__).parent)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        outputs.add((done.stdout, done.stderr))
    assert len(outputs) == 1 and outputs.pop()[1] == ""


# ---- plain values ----

SAME = [
    (1, 1.0), (1, True), (0, False), (0.1 + 0.2, 0.3), (1e12, 1e12 + 1), (0.0, 1e-7), (-0.0, 0.0), (nan, nan),
    (inf, inf),
    (3, 3.0000001), ([1.0, [2.0]], [1, [2.0000001]]), ({"a": nan}, {"a": nan}), ((nan,), (nan,)), (1 + 1e-9j, 1),
    (complex(nan, 1), complex(nan, 1)), (10**400, 10**400), ({0.1 + 0.2, 1}, {0.3, 1}),
    ({(0.1 + 0.2, "a")}, {(0.3, "a")}),
    ({0.1 + 0.2: "a"}, {0.3: "a"}), (frozenset({1}), {1.0}), ({nan}, {nan}), ({1: 2, 3: 4}, {3: 4, 1: 2}),
    (None, None), ("", ""),
    ({0.1 * 3, 0.2 * 3, 0.7}, {0.3, 0.6, 0.7}), ([[]], [[]]), (1e-9, 2e-9), (True, 1.0000001),
]  # fmt: skip
OTHER = [
    (1, 2), (1.0, 1.00001), (0.0, 1e-5), (1, "1"), ("a", b"a"), ([1], (1,)), ([1], [1, 1]), ([1], {1}), ({}, []),
    ({}, set()),
    (None, False), (None, 0), (0, ""), ((), ""), (nan, 1.0), (nan, None), (inf, -inf), (inf, 1e308), (10**400, 1.0),
    (10**400, inf),
    (10**400, 10**400 + 1), ({1: 2}, {1: 3}), ({1: 2}, {2: 2}), ({1: 2}, {1: 2, 3: 4}), ({1, 2}, {1, 3}),
    ({1.0}, {1.1}),
    ({"a": 1}, {1: "a"}), ({1, "a"}, {1, "b"}), ([[1], 2], [[1], 3]), (1j, 1), (1j, 2j), ({"a", 1.5}, {"b", 1.5}),
    (True, "True"),
    ({0.1: 1}, {0.1: 2}), ({(1,): 1}, {(2,): 1}), ({nan}, {1.0}), ([nan], [None]), (10**20, 10**20 + 1), ("a", "a "),
    (b"", ""),
]  # fmt: skip


@pytest.mark.parametrize("a, b", SAME, ids=str)
def test_equal_values(a, b):
    assert equal(a, b) is True and equal(b, a) is True


@pytest.mark.parametrize("a, b", OTHER, ids=str)
def test_different_values(a, b):
    assert equal(a, b) is False and equal(b, a) is False


def test_a_float_is_no_large_integer_but_within_a_millionth():
    """n / 2 would pass for n // 2, and math.sqrt for math.isqrt, as soon as a tester chooses large inputs."""
    n = 2_000_001
    assert not equal(n / 2, n // 2) and not equal([n // 2], [n / 2]) and not equal(math.sqrt(n * n + n), n)
    assert equal(2.9999999999999996, 3) and equal(math.sqrt(n * n), n) and equal(n * 1.0, n * 1.0 + 0.5)


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
        tasks.plain_size(loop, 1000)


def plain(rng: random.Random, depth: int = 3, hashable: bool = False):
    """A random plain value."""
    kinds = ["atom"] * 3 + (["tuple", "frozenset"] + [] if hashable else ["tuple", "list", "dict", "set", "frozenset"])
    kind = rng.choice(kinds) if depth else "atom"
    if kind == "atom":
        return rng.choice(
            [
                None, True, False, 0, -1, rng.randrange(-(10**20), 10**20), 7**4000, rng.uniform(-9, 9), 1e-300, -0.0,
                inf, -inf, nan,
                complex(rng.random(), -2), complex(nan, inf), "", "it's \"quoted\" \\ \n\r\t\0",
                "é\ud800\U0001f600\u2028", "{}", "',)",
                bytes(rng.randrange(256) for _ in range(5)), rng.choice("abc") * rng.randrange(4),
            ]
        )  # fmt: skip
    if kind == "dict":
        return {plain(rng, depth - 1, True): plain(rng, depth - 1) for _ in range(rng.randrange(4))}
    items = [plain(rng, depth - 1, hashable or kind in ("set", "frozenset")) for _ in range(rng.randrange(4))]
    return {"tuple": tuple, "list": list, "set": set, "frozenset": frozenset}[kind](items)


def shape(value) -> str:
    """Types and contents of a value as text, an independent account of identity (sets in a fixed order)."""
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
    ["", "x", "1 + 1", "[0] * 3", "f(1)", "range(3)", "list()", "__import__('os')", "float", "float('x')", "[1",
    "1\n2", "x := 1"]
    + ["lambda: 1", "[*()]", "'a' 'b' + 'c'", "{**{}}", "f''", "...", "\0", "inf", "sum([1])", "(1).real", "[1][0]"],
)  # fmt: skip
def test_only_sources_of_plain_values_are_read_back(text):
    with pytest.raises(ValueError):
        from_source(text)


# ---- files ----

HIDDEN = Hidden(("assert f(1) == 2",), ("def f(x): return 0\n",), "adding", "train")
QUESTIONS = [
    Question("a/1", 'Add "one" \\ to x.\né\ud800', "f", "def f(x):\n    return x + 1\n", ("assert f(1) == 2",), HIDDEN),
    Question("a/2", "p", "g", "from operator import add as g", ()),
]


@pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz"])
def test_questions_survive_the_file_and_the_file_is_the_same_every_time(tmp_path, name):
    save_questions(tmp_path / name, QUESTIONS)
    first = (tmp_path / name).read_bytes()
    assert load_questions(tmp_path / name) == QUESTIONS
    save_questions(str(tmp_path / name), iter(QUESTIONS))
    assert (tmp_path / name).read_bytes() == first and (first[:2] == b"\x1f\x8b") == name.endswith("gz")


def test_formats_of_the_benchmarks(tmp_path):
    human = {
        "task_id": "HumanEval/0", "prompt": "import math\n\ndef area(r):\n    '''Area.'''\n", "entry_point": "area",
        "canonical_solution": "\n    return math.pi * r\n",
        "test": "def check(candidate):\n    assert candidate(0) == 0, 0\n    assert candidate(1) > 3\n    assert 1\n",
    }  # fmt: skip
    mbpp = {
        "task_id": "Mbpp/2", "prompt": '"""\nShare.\n"""\n', "entry_point": "share", "base_input": [], "atol": 0,
        "canonical_solution": "\ndef share(a):\n    return a\n",
        "assertion": "\nimport math\nassert share((3,)) == (3,)\n",
    }  # fmt: skip
    ult = {
        "func_name": "h",
        "code": "def h():\n    return 1\n",
        "prompt": "One.",
        "task_id": "10",
        "test_list": ["assert h() == 2"],
    }
    with gzip.open(tmp_path / "q.jsonl.gz", "wt") as file:
        file.write(json.dumps(human) + "\n\n" + json.dumps(mbpp) + "\n")
    (tmp_path / "ult.json").write_text(json.dumps([ult]))
    area, share = load_questions(tmp_path / "q.jsonl.gz")
    assert area.reference == human["prompt"] + human["canonical_solution"] and area.tests == ("assert area(0) == 0",)
    assert share.reference == mbpp["canonical_solution"] and share.tests == ("assert share((3,)) == (3,)",)
    assert load_questions(str(tmp_path / "ult.json")) == [Question("10", "One.", "h", ult["code"], ())]


OWN = {"id": "1", "prompt": "p", "entry_point": "f", "reference": "def f(): pass", "tests": []}


@pytest.mark.parametrize(
    "name, text, reason",
    [
        ("q.jsonl", "", "no questions"),
        ("q.jsonl", "\n\n", "no questions"),
        ("q.json", "[]", "no questions"),
        ("q.jsonl", json.dumps(OWN) + "\n{", "record 2"),
        ("q.json", "[1", "q.json"),
        ("q.jsonl", json.dumps({k: v for k, v in OWN.items() if k != "reference"}),
        "record 1: the field 'reference' is missing"),
        ("q.jsonl", json.dumps(OWN | {"hidden": {"golden": []}}), "'mutants' is missing"),
        ("q.jsonl", json.dumps(OWN) + "\n" + json.dumps(OWN), "record 2: the id '1' is there twice"),
        ("q.jsonl", json.dumps({"question": "?", "answer": 1}), "not known, with the fields"),
        ("q.jsonl", "[1, 2]", "record 1"),
        ("q.json", json.dumps({"a": OWN}), "q.json"),
        ("q.json", json.dumps([OWN, "x"]), "record 2"),
        ("q.json", "3", "q.json"),
        ("q.jsonl", json.dumps(OWN | {"prompt": 3}), "record 1"),
        ("q.jsonl", json.dumps(OWN | {"tests": "assert f() == 1"}), "record 1"),
        ("q.jsonl", json.dumps(OWN | {"tests": [1]}), "record 1"),
        ("q.jsonl", json.dumps(OWN | {"entry_point": "g"}), "record 1: the reference does not define 'g'"),
        ("q.jsonl", json.dumps({"task_id": "x", "prompt": "p"}), "record 1: the field 'entry_point' is missing"),
        ("q.jsonl", json.dumps({"func_name": "x", "prompt": "p", "task_id": "1"}),
        "record 1: the field 'code' is missing"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_name_and_the_place(tmp_path, name, text, reason):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match="q.json") as error:
        load_questions(path)
    assert reason in str(error.value) and str(path) in str(error.value)


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_benchmark_files_load_and_their_references_define_the_entry_point(data):
    sizes = {
        "HumanEvalPlus.jsonl.gz": 164, "MbppPlus.jsonl.gz": 378, "ULT_Lite.json": 200, "BigCodeBench.jsonl.gz": 1140,
        "humanevalplus_check.jsonl.gz": 164, "mbppplus_check.jsonl.gz": 378,
    }  # fmt: skip
    for name, size in sizes.items():
        questions = load_questions(data / name)
        assert len(questions) == size == len({q.id for q in questions})
        for q in questions:
            compile(q.reference, q.id, "exec")
            assert q.entry_point in top_names(q.reference), q.id
            program = make_solution(q, fenced(q.reference))
            assert program.rstrip() == q.reference.replace("\r", "").rstrip()  # nothing is added to it


def test_nearly_all_asserts_of_the_benchmarks_have_a_meaning(data):
    with gzip.open(data / "MbppPlus.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    asserts = [(line, row["entry_point"]) for row in rows for line in row["assertion"].splitlines() if "assert" in line]
    good = [line for line, name in asserts if parse_assert(line, name)]
    print(f"{len(good)} of {len(asserts)} asserts of MBPP+ have a meaning")
    assert len(asserts) == 1174 and len(good) >= 1170
    tests = [test for q in load_questions(data / "HumanEvalPlus.jsonl.gz") for test in q.tests]
    print(f"{len(tests)} asserts of HumanEval have a meaning")
    assert len(tests) >= 1120


# ---- prompts ----


def test_prompts_carry_the_texts_unchanged():
    q = Question("1", "Add {k} {program} to x.\n{0} %s", "f", "", ())
    program = "def f(x):\n    return f'{x}{{}}'\n"
    for style in tasks.PROMPTS:
        for messages in (
            coder_messages(q, style),
            tasks.tester_messages(q, program, 5, style),
            tasks.tester_messages(q, None, 5, style),
        ):
            assert [message["role"] for message in messages] == ["user"] and q.prompt in messages[0]["content"]
        assert program in tasks.tester_messages(q, program, 5, style)[0]["content"]
    assert coder_messages(q, "plain")[0]["content"] == q.prompt
    assert tasks.tester_messages(q, program, 5, "plain")[0]["content"] == f"{q.prompt}\n{program}"
    assert tasks.tester_messages(q, None, 5, "plain")[0]["content"] == f"{q.prompt}\ntest"
    text = tasks.tester_messages(q, program, 5, "instruct")[0]["content"]
    assert "exactly 5 test assertions for `f`" in text and "assert f(" in text
    assert "`f`" in coder_messages(q, "instruct")[0]["content"]
    with pytest.raises(KeyError):
        coder_messages(q, "unheard")
