"""Programs and asserts out of replies, question files, prompts."""

import gzip
import json
import math
import time

import pytest

import tasks
from tasks import (
    Hidden,
    Question,
    Test,
    coder_messages,
    extract_program,
    extract_tests,
    load_questions,
    make_solution,
    parse_assert,
    save_questions,
    top_names,
)

F = "`" * 3
CODE = "def inc(x):\n    return x + 1\n"


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
        (
            fenced(CODE) + "Use it:\n" + fenced("print(inc(1))\n"),
            CODE,
        ),  # the example comes last, the code counts
        (
            fenced("def inc(x): pass\n") + "Better:\n" + fenced(CODE),
            CODE,
        ),  # a second thought replaces the first
        (fenced(CODE, "") + fenced("print(inc(1))\n"), CODE),  # the definition forgot its tag
        (fenced(CODE) + fenced("inc(1) -> 2\n", "text"), CODE),  # output in a block of its own
        (fenced("x = 1\n") + fenced("y = 2\n"), "y = 2\n"),  # no definition: the last Python block
        (
            fenced("def inc(x:\n") + fenced("x = 1\n", "text"),
            "def inc(x:\n",
        ),  # a broken Python block is the answer
        (
            fenced("no code\n", "text") + fenced("x = 1\n", "text"),
            "x = 1\n",
        ),  # no Python block: the last that parses
        (
            fenced("if True:\n    def inc(x):\n        return 1\n") + fenced("y = 2\n"),
            "if True:\n    def inc(x):",
        ),
        (
            fenced("class A:\n    def inc(self): pass\n") + fenced("y = 2\n"),
            "y = 2\n",
        ),  # a method is no entry point
        (fenced("inc = lambda x: x + 1\n") + fenced("y = 2\n"), "inc = lambda"),
        (
            f"`{F}markdown\n{fenced('y = 2' + chr(10))}`{F}\n{fenced(CODE)}",
            CODE,
        ),  # a fence shown inside a longer one
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
    code = f'def inc(x):\n    """Example:\n{F}\ninc(1)\n{F}\n    """\n    s = "{F}"\n'
    code += "    return x + 1\n"
    assert extract_program(fenced(code), "inc") == code
    assert extract_program(fenced(code.replace('"""', "'''")), "inc") == code.replace('"""', "'''")


def test_quotes_and_fences_in_comments_and_strings_do_not_move_the_end_of_a_block():
    """Taken for an opening quote, one of them runs on to the docstring of the next block."""
    for line in ('# """', 's = \'"""\'', "s = \"'''\"", f"# {F}", f's = "{F}"', f"s = '#{F}'"):
        code = f"def inc(x):\n    {line}\n    return x + 1\n"
        assert (
            extract_program(
                fenced(code) + "Try:\n" + fenced('def g():\n    """It works."""\n'), "inc"
            )
            == code
        )


DOUBLE = 'def f(x):\n    """Return x."""\n    return x\n'
LONE = [  # an earlier block, with a quote that is never closed
    fenced('put it in """', "text"),
    fenced('put it in """', ""),
    fenced('def f(x):\n    """Return'),
    fenced('def f(x):\n    return """x'),
    fenced("def f(x):\n    return '''x", "py"),
    fenced('  File "a.py", line 3\n    """Return x.\n    ^\nSyntaxError: unterminated', ""),
    fenced('>>> f("""\n...', ""),
]


@pytest.mark.parametrize("first", LONE)
def test_a_lone_triple_quote_does_not_swallow_the_blocks_behind_it(first):
    """The text of the program was then '', or one with the fences and the prose in it."""
    asserts = "assert f(1) == 1\nassert f(2) == 2\n"
    for quote in ('"""', "'''"):
        code = DOUBLE.replace('"""', quote)
        reply = f"See:\n{first}\nSo:\n{fenced(code)}"
        assert extract_program(reply, "f") == code
        assert extract_program(f"See:\n{fenced(code)}Not:\n{first}", "f") == code
        suite = f"See:\n{first}\nSo:\n{fenced(f'{quote}Tests.{quote}{chr(10)}{asserts}')}"
        assert extract_tests(suite, "f", 9) == [Test("f(1)", "1"), Test("f(2)", "2")]


def test_a_block_ends_at_the_first_fence_at_which_it_is_python():
    shown = f'def inc(x):\n    """Use:\n    {F}python\n    inc(1)\n    {F}\n    """\n    return x + 1\n'
    assert extract_program(fenced(shown), "inc") == shown
    around = f"{fenced('x = 1')}{fenced(shown)}{fenced('y = 2', 'text')}"
    assert extract_program(around, "inc") == shown
    behind = f"def inc(x):\n    y = x  # {F}\n    # not {F}\n    return y + 1\n"
    assert extract_program(fenced(behind), "inc") == behind
    assert extract_program(f"{F}python\n{shown}", "inc").rstrip() == shown.rstrip()  # never closed
    assert extract_program(fenced("def inc(x:") + "Try:\n" + fenced("z"), "inc") == "z\n"


STRAY = [F, f"{F}\n", f"{F}\nThis adds one.\n", f"{F}\n\n{fenced('2', 'text')}"]


@pytest.mark.parametrize("tail", STRAY)
def test_bare_code_before_a_stray_fence_is_a_program(tail):
    """A prompt that ends in an opening fence leaves the reply with the closing one alone."""
    assert extract_program(CODE + tail, "inc").strip() == CODE.strip()
    replies = [FULL] + ["    return [helper(x) for x in xs]\n"] * (tail is not STRAY[-1])
    for reply in replies:  # a body alone is known as one where no other block follows
        assert list(run(make_solution(question(), reply + tail))["twice"]([1, 3])) == [2, 6]


def test_lines_of_a_list_item_lose_no_more_than_its_indent():
    """Cut by the width of "10. ", a body of two blanks comes out at the margin: no Python."""
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
        "def twice(xs):\n    return [2 * x for x in xs]\n\n"
        "if __name__ == '__main__':\n    print(twice(input()))\n",
        "from __future__ import annotations\n" + FULL,
        '"""Doubling."""\nfrom __future__ import annotations\nimport os\n' + FULL,
    ],
)
def test_every_form_in_which_the_answer_to_a_stub_comes_back_works(reply):
    assert list(run(make_solution(question(), reply))["twice"]([1, 3])) == [2, 6]


def test_a_stub_without_a_docstring_takes_a_body_and_a_whole_function_too():
    prompt = "import math\n\n@staticmethod\ndef area(r):\n"
    for reply in (
        "    return math.pi * r * r\n",
        fenced("def area(r):\n    return math.pi * r * r\n"),
    ):
        program = make_solution(question(prompt, "area"), reply)
        assert run(program)["area"](1) == math.pi


def test_a_program_without_the_entry_point_is_not_saved_by_the_stub_of_the_prompt():
    """The stub is a function that returns None: in front of a program it makes any reply load."""
    for reply in (
        fenced("def double(xs):\n    return xs\n"),
        fenced("print(twice([1]))\n"),
        "x = 1\n",
    ):
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
    assert (
        make_solution(question(), fenced("def twice(xs:\n")) == "def twice(xs:\n"
    )  # not Python: left alone


@pytest.mark.parametrize(
    "prompt",
    ["Double each number.", "Double", '"""\nDouble each.\nassert twice([1]) == [2]\n"""\n'],
)
def test_prose_is_never_put_in_front(prompt):
    assert make_solution(question(prompt), fenced(FULL)) == FULL
    assert make_solution(question(prompt), "return 1") == "return 1"


# ---- asserts ----


DEGENERATE = [
    " ", "\t", "\n", "`", "~", '"', "'", "(", "[", "{", "\\", "#", "9", '\\"', '\\"""\n', "\\'''\n",
    "\\\n", "```~", "``` ", "```\n", "assert ", "assert\n", "assert f(\n", "1 2\n", "@x\n",
    "f(", "-", "lambda:",
    "```\n)\n```\n", "- ",
    "f'{", "```\nassert f(\n" + "1 2\n" * 40 + "```\n",
]  # fmt: skip


@pytest.mark.parametrize("unit", DEGENERATE, ids=ascii)
def test_a_reply_that_goes_round_in_circles_does_not_keep_the_trainer_busy(unit):
    """A model that loses its way repeats a few characters up to its limit.

    Read in quadratic time, that is minutes.
    """
    body = (unit * 200_000)[:200_000]
    start = time.process_time()
    opened = f"{F}python\n{body}"
    forms = body, f"{opened}\nx\n{F}\n", f"{opened}x", f"assert f(\n{body}x", f"~~~{body}{F}\n"
    for reply in forms:
        extract_program(reply, "f")
        extract_tests(reply, "f", 8)
    assert time.process_time() - start < 10


def test_asserts_before_a_stray_fence_are_read():
    """A prompt that ends in an opening fence leaves the reply with the closing one alone."""
    lines = "assert f(1) == 2\nassert f(3) == 4\n"
    tests = [Test("f(1)", "2"), Test("f(3)", "4")]
    for tail in (F, f"{F}\n", f"{F}\nThese are two asserts.\n", f"{F}\n{fenced('1', 'text')}"):
        assert extract_tests(lines + tail, "f", 9) == tests
    assert extract_tests(f"Sure\n{fenced(lines, '')}", "f", 9) == tests


# ---- files ----

HIDDEN = Hidden(("assert f(1) == 2",), ("def f(x): return 0\n",), "adding", "train")
QUESTIONS = [
    Question(
        "a/1",
        'Add "one" \\ to x.\né\ud800',
        "f",
        "def f(x):\n    return x + 1\n",
        ("assert f(1) == 2",),
        HIDDEN,
    ),
    Question("a/2", "p", "g", "from operator import add as g", ()),
]


@pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz"])
def test_questions_survive_the_file_and_the_file_is_the_same_every_time(tmp_path, name):
    save_questions(tmp_path / name, QUESTIONS)
    first = (tmp_path / name).read_bytes()
    assert load_questions(tmp_path / name) == QUESTIONS
    save_questions(str(tmp_path / name), iter(QUESTIONS))
    assert (tmp_path / name).read_bytes() == first and (first[:2] == b"\x1f\x8b") == name.endswith(
        "gz"
    )


def test_formats_of_the_benchmarks(tmp_path):
    human = {
        "task_id": "HumanEval/0", "prompt": "import math\n\ndef area(r):\n    '''Area.'''\n",
        "entry_point": "area",
        "canonical_solution": "\n    return math.pi * r\n",
        "test": "def check(candidate):\n    assert candidate(0) == 0, 0\n"
        "    assert candidate(1) > 3\n    assert 1\n",
    }  # fmt: skip
    mbpp = {
        "task_id": "Mbpp/2", "prompt": '"""\nShare.\n"""\n', "entry_point": "share",
        "base_input": [], "atol": 0,
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
    assert area.reference == human["prompt"] + human["canonical_solution"] and area.tests == (
        "assert area(0) == 0",
    )
    assert share.reference == mbpp["canonical_solution"] and share.tests == (
        "assert share((3,)) == (3,)",
    )
    assert load_questions(str(tmp_path / "ult.json")) == [
        Question("10", "One.", "h", ult["code"], ())
    ]


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
        ("q.jsonl", f"{json.dumps(OWN)}\n" * 2, "record 2: the id '1' is there twice"),
        ("q.jsonl", json.dumps({"question": "?", "answer": 1}), "not known, with the fields"),
        ("q.jsonl", "[1, 2]", "record 1"),
        ("q.json", json.dumps({"a": OWN}), "q.json"),
        ("q.json", json.dumps([OWN, "x"]), "record 2"),
        ("q.json", "3", "no list of questions"),
        ("q.json", "[1, 2]", "record 1: a question is a JSON object, not 1"),
        ("q.json", "[null]", "record 1: a question is a JSON object"),
        ("q.json", '["{}"]', "record 1: a question is a JSON object"),
        ("q.jsonl", '"id"', "record 1: a question is a JSON object"),
        ("q.jsonl", json.dumps(OWN) + '\n\n{"id": }', "line 3 is no JSON"),
        ("q.json", '[\n{"id": 1}\n,,]', "line 3 is no JSON"),
        ("q.jsonl", json.dumps(OWN | {"prompt": 3}), "record 1"),
        ("q.jsonl", json.dumps(OWN | {"tests": "assert f() == 1"}), "record 1"),
        ("q.jsonl", json.dumps(OWN | {"tests": [1]}), "record 1"),
        ("q.jsonl", json.dumps(OWN | {"entry_point": "g"}), "the reference does not define 'g'"),
        ("q.jsonl", json.dumps({"task_id": "x", "prompt": "p"}),
        "record 1: the field 'entry_point' is missing"),
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


@pytest.mark.parametrize("name", ["q.jsonl", "q.json", "q.jsonl.gz"])
def test_a_byte_order_mark_and_crlf_are_read(tmp_path, name):
    """Editors and Python's utf-8-sig write the mark; Windows ends lines in two characters."""
    text = "\r\n".join([json.dumps(OWN), json.dumps(OWN | {"id": "2"}), ""])
    text = json.dumps([OWN, OWN | {"id": "2"}]) if name == "q.json" else text
    raw = b"\xef\xbb\xbf" + text.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    assert [q.id for q in load_questions(tmp_path / name)] == ["1", "2"]


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_benchmark_files_load_and_their_references_define_the_entry_point(data):
    sizes = {
        "HumanEvalPlus.jsonl.gz": 164, "MbppPlus.jsonl.gz": 378, "ULT_Lite.json": 200,
        "BigCodeBench.jsonl.gz": 1140,
        "humanevalplus_check.jsonl.gz": 164, "mbppplus_check.jsonl.gz": 378,
    }  # fmt: skip
    for name, size in sizes.items():
        questions = load_questions(data / name)
        assert len(questions) == size == len({q.id for q in questions})
        for q in questions:
            compile(q.reference, q.id, "exec")
            assert q.entry_point in top_names(q.reference), q.id
            program = make_solution(q, fenced(q.reference))
            assert (
                program.rstrip() == q.reference.replace("\r", "").rstrip()
            )  # nothing is added to it


def test_nearly_all_asserts_of_the_benchmarks_have_a_meaning(data):
    with gzip.open(data / "MbppPlus.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    asserts = [
        (line, row["entry_point"])
        for row in rows
        for line in row["assertion"].splitlines()
        if "assert" in line
    ]
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
            assert [message["role"] for message in messages] == ["user"] and q.prompt in messages[
                0
            ]["content"]
        assert program in tasks.tester_messages(q, program, 5, style)[0]["content"]
    assert coder_messages(q, "plain")[0]["content"] == q.prompt
    assert tasks.tester_messages(q, program, 5, "plain")[0]["content"] == f"{q.prompt}\n{program}"
    assert tasks.tester_messages(q, None, 5, "plain")[0]["content"] == f"{q.prompt}\ntest"
    text = tasks.tester_messages(q, program, 5, "instruct")[0]["content"]
    assert "exactly 5 test assertions for `f`" in text and "assert f(" in text
    assert "`f`" in coder_messages(q, "instruct")[0]["content"]
    with pytest.raises(KeyError):
        coder_messages(q, "unheard")
