"""Evaluation: pass@k of a Code LLM, quality of a Test LLM, and their work together.

Of the paper this keeps the measures: pass@k and avg@n of programs, accuracy and mutation score of tests, best-of-N.
Every verdict is made by the sandbox or on plain values that came out of it; this module runs no foreign code.
All rates are percentages. `mean` of nothing is 0.0.

Run:  python eval.py --help
"""

import ast
import gzip
import json
import math
import re
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from model import Qwen2, Tokenizer, generate
from sandbox import Sandbox, SandboxError, Status, Value
from tasks import (
    Question,
    Test,
    coder_messages,
    extract_program,
    extract_tests,
    holds,
    load_questions,
    make_solution,
    relabel,
    save_questions,
    tester_messages,
    to_source,
)

MAX_MUTANTS = 40  # made for a question that brings none, evenly spaced over all that there are
Suite = list[Test | None]  # the asserts of one reply, None for a malformed one
LETHAL = (Status.FAIL, Status.ERROR, Status.TIMEOUT)

# ---- numbers ----


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate, in [0, 1], of P(at least one of k samples is right) from c right ones among n.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021). ValueError unless 0 <= c <= n and 1 <= k <= n: with fewer samples than
    k there is nothing to estimate from.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}: draw at least k samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def stderr(values: Sequence[float]) -> float:
    """Standard error of the mean; 0.0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1) / len(values))


def by_family(questions: Sequence[Question], values: Sequence[float | None]) -> dict[str, float]:
    """Mean of one value per question for each family; None is left out."""
    groups: dict[str, list[float]] = defaultdict(list)
    for question, value in zip(questions, values, strict=True):
        groups[question.hidden.family if question.hidden else "all"] += [] if value is None else [value]
    return {family: mean(group) for family, group in sorted(groups.items())}


# ---- programs of a coder ----


@dataclass(frozen=True)
class CoderReport:
    rate: float  # percent of sampled programs that pass every golden test, mean over questions
    stderr: float  # of the mean over questions, percent
    by_family: dict[str, float]
    n_questions: int


def replies(model: Qwen2, tokenizer: Tokenizer, chats: Sequence[list[dict]], n: int, **sampling) -> list[list[str]]:
    """n replies as text to each chat; `sampling` goes to `generate`."""
    prompts = [tokenizer.encode_chat(chat) for chat in chats]
    groups = generate(model, prompts, n=n, eos_ids=tokenizer.eos_ids, vocab_size=len(tokenizer), **sampling)
    return [[tokenizer.decode(sample.ids) for sample in group] for group in groups]


def golden_tests(question: Question) -> tuple[str, ...]:
    """The asserts that decide about a program: the hidden ones, else those that training may read."""
    tests = question.hidden.golden if question.hidden else question.tests
    if not tests:
        raise ValueError(f"question {question.id} has no tests to score a program with")
    return tests


def evaluate_coder(model: Qwen2, tokenizer: Tokenizer, questions: Sequence[Question], box: Sandbox, *, style: str,
                   n: int, temperature: float, top_p: float, max_new_tokens: int, seed: int,
                   greedy: bool = False) -> CoderReport:
    """Golden pass rate of n sampled programs per question (greedy: one at temperature 0, n is not read).

    A program passes if it loads and every golden assert of its question passes; equal programs of a question run once.
    """
    sampling = dict(temperature=0.0 if greedy else temperature, top_p=1.0 if greedy else top_p)
    texts = replies(model, tokenizer, [coder_messages(q, style) for q in questions], 1 if greedy else n,
                    max_new_tokens=max_new_tokens, seed=seed, **sampling)
    programs = [[make_solution(q, text) for text in group] for q, group in zip(questions, texts, strict=True)]
    keys = list(dict.fromkeys((i, program) for i, group in enumerate(programs) for program in group))
    jobs = [(program, questions[i].entry_point, list(golden_tests(questions[i]))) for i, program in keys]
    passed = {key: v.loads and all(s is Status.PASS for s in v.statuses)
              for key, v in zip(keys, box.judge(jobs), strict=True)}
    rates = [100 * mean([passed[i, program] for program in group]) for i, group in enumerate(programs)]
    return CoderReport(mean(rates), stderr(rates), by_family(questions, rates), len(questions))


# ---- suites of a tester ----


@dataclass(frozen=True)
class TesterReport:
    """Percentages, each the mean over questions of the mean over a question's suites."""

    suite_right: float  # suites whose K asserts all hold as written
    assert_accuracy: float  # asserts that hold as written, of the K asked for: a missing or malformed one does not hold
    kill: float  # mutants that the valid tests of one suite kill, their expected values from the ground truth
    mul: float  # assert_accuracy * kill / 100
    stderr: dict[str, float]  # of each of the four, over questions
    by_family: dict[str, dict[str, float]]  # figure -> family -> value


@dataclass(frozen=True)
class SuiteScore:
    """What the first K asserts of a suite are worth on a question's ground truth and mutants."""

    right: tuple[bool, ...]  # (K,) whether the assert holds as written
    kills: tuple[int, ...]  # (K,) mutants killed by the valid ones among the first 1, 2, ..., K asserts
    timeouts: int  # of kills[-1], those that only ran out of time
    mutants: int  # that load; the others are broken and not counted


def mutants_of(question: Question, limit: int | None = MAX_MUTANTS) -> list[str]:
    """The mutants that a question brings, else those that `mutants` makes of its reference, at most `limit` of them."""
    if question.hidden and question.hidden.mutants:
        return list(question.hidden.mutants)
    made = list(dict.fromkeys(mutant for group in mutants(question.reference).values() for mutant in group))
    step = max(1.0, len(made) / (limit or len(made) or 1))
    return [made[int(i * step)] for i in range(int(len(made) / step))]


def validate(questions: Sequence[Question], suites: Sequence[Sequence[Suite]],
             box: Sandbox) -> tuple[list[set[Test]], list[dict[Test, Test]]]:
    """Per question: the tests that hold as written, and the valid ones -> the same test with the ground truth's value.

    A test is valid if its call runs on the ground truth and gives a plain value there.
    """
    tests = [list(dict.fromkeys(test for suite in group for test in suite if test)) for group in suites]
    calls = [list(dict.fromkeys(test.call for test in group)) for group in tests]
    values = box.ground_truth(list(zip([q.reference for q in questions], calls, strict=True)))
    known = [dict(zip(cs, vs, strict=True)) for cs, vs in zip(calls, values, strict=True)]
    pairs = [[(test, truth[test.call].value) for test in group if truth[test.call].ok]
             for group, truth in zip(tests, known, strict=True)]
    right = [{test for test, value in group if holds(value, test)} for group in pairs]
    relabelled = [{test: relabel(test, value) for test, value in group} for group in pairs]
    return right, [{test: new for test, new in group.items() if new} for group in relabelled]


def score_suites(questions: Sequence[Question], suites: Sequence[Sequence[Suite]], k: int, box: Sandbox,
                 limit: int | None = MAX_MUTANTS) -> list[list[SuiteScore]]:
    """Scores suites[question][suite]; the first k asserts of each count, duplicates inside a suite add nothing.

    A mutant is killed by a valid test that fails, raises or runs out of time on it. One suite per question: a mutant
    that crashes or hangs is not run further; several: the sandbox's rule for such programs, tests not run kill nothing.
    """
    suites = [[suite[:k] for suite in group] for group in suites]
    right, valid = validate(questions, suites, box)
    tests = [list(dict.fromkeys(group.values())) for group in valid]
    jobs = [(i, mutant) for i, q in enumerate(questions) for mutant in mutants_of(q, limit)]
    resumes = {} if max(map(len, suites), default=0) > 1 else {"resumes": 0}
    verdicts = box.judge([(mutant, questions[i].entry_point, tests[i]) for i, mutant in jobs], **resumes)
    killers: list[list[dict[Test, Status]]] = [[] for _ in questions]  # per mutant that loads: lethal test -> status
    for (i, _), verdict in zip(jobs, verdicts, strict=True):
        if verdict.loads:
            killers[i].append({t: s for t, s in zip(tests[i], verdict.statuses, strict=True) if s in LETHAL})
    return [[score_suite([*suite, *[None] * (k - len(suite))], right[i], valid[i], killers[i]) for suite in group]
            for i, group in enumerate(suites)]


def score_suite(suite: Suite, right: set[Test], valid: dict[Test, Test],
                killers: list[dict[Test, Status]]) -> SuiteScore:
    kills, reasons = [], defaultdict(set)  # mutant -> the ways in which it died
    for test in suite:
        for m, lethal in enumerate(killers):
            if valid.get(test) in lethal:
                reasons[m].add(lethal[valid[test]])
        kills.append(len(reasons))
    timeouts = sum(kinds == {Status.TIMEOUT} for kinds in reasons.values())
    return SuiteScore(tuple(test in right for test in suite), tuple(kills), timeouts, len(killers))


def evaluate_tester(model: Qwen2, tokenizer: Tokenizer, questions: Sequence[Question], box: Sandbox, *, style: str,
                    suites: int, asserts: int, temperature: float, top_p: float, max_new_tokens: int, seed: int,
                    black_box: bool = False) -> TesterReport:
    """Quality of `suites` sampled suites of `asserts` asserts per question, the reference shown unless `black_box`.

    Kill is counted per suite and then averaged: first over the suites of a question, then over questions; questions
    without a mutant that loads are left out of it.
    """
    chats = [tester_messages(q, None if black_box else q.reference, asserts, style) for q in questions]
    texts = replies(model, tokenizer, chats, suites, temperature=temperature, top_p=top_p,
                    max_new_tokens=max_new_tokens, seed=seed)
    parsed = [[extract_tests(text, q.entry_point, asserts) for text in group]
              for q, group in zip(questions, texts, strict=True)]
    scores = score_suites(questions, parsed, asserts, box)
    suite_right = [100 * mean([all(s.right) for s in group]) for group in scores]
    accuracy = [100 * mean([mean(s.right) for s in group]) for group in scores]
    kill = [100 * mean([s.kills[-1] / s.mutants for s in group]) if group[0].mutants else None for group in scores]
    return tester_report(questions, suite_right, accuracy, kill)


def tester_report(questions: Sequence[Question], suite_right: list[float], accuracy: list[float],
                  kill: list[float | None]) -> TesterReport:
    counted = [(a, x) for a, x in zip(accuracy, kill, strict=True) if x is not None]
    a, x = mean(accuracy), mean([pair[1] for pair in counted])
    columns = {"suite_right": suite_right, "assert_accuracy": accuracy, "kill": kill}
    families = {name: by_family(questions, values) for name, values in columns.items()}
    families["mul"] = {f: families["assert_accuracy"][f] * families["kill"][f] / 100 for f in families["kill"]}
    errors = {name: stderr([v for v in values if v is not None]) for name, values in columns.items()}
    errors["mul"] = stderr([(x * pair[0] + a * pair[1]) / 100 for pair in counted])  # of the linearised product
    return TesterReport(mean(suite_right), a, x, a * x / 100, errors, families)


# ---- mutants ----

BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
          ast.RShift: ">>", ast.LShift: "<<", ast.BitOr: "|", ast.BitAnd: "&", ast.BitXor: "^"}  # fmt: skip
ORDER = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
COMPARE = {**ORDER, ast.Is: "is", ast.IsNot: "is not"}
BESIDE_NONE = {"==": ["is not"], "!=": ["is"], "is": ["is not"], "is not": ["is"]}  # what an operator becomes there
UNARY = {ast.UAdd: "+", ast.USub: "-", ast.Invert: "~", ast.Not: "not"}
GAP = r"(?:\s|\)|\\|#[^\n]*\n)*"  # what may stand between an operand and its operator
Edit = tuple[str, int, int, str]  # operator name, start and end in the source, new text


class Positions:
    """Offsets of a source's nodes; `ast` counts lines and UTF-8 bytes."""

    def __init__(self, source: str):
        self.text = source.encode()
        self.lines = [0] + [m.end() for m in re.finditer(rb"\n", self.text)]

    def start(self, node: ast.AST) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset

    def after(self, start: int, word: str) -> tuple[int, int]:
        """Where `word` stands behind a gap at `start`; (-1, -1) if it does not."""
        found = re.compile((GAP + "(" + re.escape(word) + ")").encode()).match(self.text, start)
        return found.span(1) if found else (-1, -1)


def _pair_edits(node: ast.AST, at: Positions) -> Iterator[Edit]:
    """Edits of what stands between two operands: binary operators, comparisons, and / or."""
    if isinstance(node, ast.BinOp):
        old = BINARY.get(type(node.op))
        for new in BINARY.values() if old else ():
            yield f"binary {old} {new}", *at.after(at.end(node.left), old), new
    if isinstance(node, ast.Compare):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            old = COMPARE.get(type(op))
            if old:
                is_none = isinstance(right, ast.Constant) and right.value is None
                is_number = isinstance(right, ast.Constant) and type(right.value) in (int, float, complex)
                allowed = BESIDE_NONE.get(old, []) if is_none else (ORDER if is_number else COMPARE).values()
                for new in allowed:
                    yield f"comparison {old} {new}", *at.after(at.end(left), old), f" {new}"
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left in node.values[:-1]:
            yield f"{old} {new}", *at.after(at.end(left), old), new


def _word_edits(node: ast.AST, at: Positions) -> Iterator[Edit]:
    """Edits of single words: unary operators, numbers, booleans, break / continue, decorators, exception names."""
    start, end = (at.start(node), at.end(node)) if hasattr(node, "lineno") else (0, 0)
    match node:
        case ast.UnaryOp(op=op):
            old = UNARY[type(op)]
            for new in [""] if old == "not" else ["+", "-", "~", "not ", ""]:
                if new != old and not (old == "+" and new == ""):  # x for +x changes nothing
                    yield f"unary {old} {new.strip()}", start, start + len(old), new
        case ast.Constant(value=bool()):
            yield f"{node.value} {not node.value}", start, end, str(not node.value)
        case ast.Constant(value=int() | float() | complex()):
            for new in (node.value + 1, node.value - 1):
                yield "number", start, end, f" {new}"
        case ast.Break():
            yield "break continue", start, end, "continue"
        case ast.Continue():
            yield "continue break", start, end, "break"
        case ast.ExceptHandler(type=ast.Name() | ast.Tuple() as kind):
            for name in kind.elts if isinstance(kind, ast.Tuple) else [kind]:
                yield "exception", at.start(name), at.end(name), "CosmicRayTestingException"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            for decorator in node.decorator_list:
                yield "decorator", at.text.rindex(b"@", 0, at.start(decorator)), at.end(decorator), ""


def _statement_edits(node: ast.AST, at: Positions) -> Iterator[Edit]:
    """`not` in front of a condition (the first of an if chain), and loops over nothing."""
    if isinstance(node, ast.If | ast.While | ast.Assert):
        word = type(node).__name__.lower()
        if at.text.startswith(word.encode(), at.start(node)):  # an elif is no statement of its own here
            yield "not", *[at.start(node) + len(word)] * 2, " not"
    if isinstance(node, ast.IfExp):
        yield "not", *[at.after(at.end(node.body), "if")[1]] * 2, " not"
    if isinstance(node, ast.For | ast.AsyncFor):
        yield "zero iterations", at.after(at.end(node.target), "in")[1], at.after(at.end(node.iter), ":")[0], " []"


def mutants(source: str) -> dict[str, list[str]]:
    """Operator name -> distinct mutants of a program, each with one edit, normalised by `ast.unparse`.

    The operators mean what cosmic-ray 8.7 does by default, and like there an edit changes the text: `a + b * c` with
    `**` for `+` is `(a ** b) * c`. Mutants that are no Python, and those equal to the program, are left out.
    SyntaxError if the program is no Python.
    """
    tree = ast.parse(source)
    at, original = Positions(source), ast.unparse(tree)
    found: dict[str, dict[str, None]] = {}
    for node in ast.walk(tree):
        for edits in (_pair_edits, _word_edits, _statement_edits):
            for name, start, end, new in edits(node, at):
                try:
                    mutant = ast.unparse(ast.parse(at.text[:start] + new.encode() + at.text[end:]))
                except (SyntaxError, ValueError):
                    continue
                if start >= 0 and mutant != original:
                    found.setdefault(name, {})[mutant] = None
    return {name: list(group) for name, group in sorted(found.items())}


# ---- benchmarks: tasks, and the verdict on a program ----


@dataclass(frozen=True)
class Task:
    """A question with its record in the file, which says how a program is judged."""

    question: Question
    row: dict

    @property
    def kind(self) -> str:
        """plus (EvalPlus inputs), unittest (BigCodeBench), script (`check(candidate)`), asserts (all others)."""
        if "base_input" in self.row:
            return "plus"
        return "unittest" if "libs" in self.row else "script" if "def check(" in self.row.get("test", "") else "asserts"

    @property
    def number(self) -> str:
        """The task's id in the way that the tables below name MBPP tasks; other tasks are not in them."""
        return self.question.id.removeprefix("Mbpp/")


@dataclass(frozen=True)
class Case:
    """One input of an EvalPlus task, with what the canonical solution makes of it."""

    args: list
    call: str
    expected: Any
    seconds: float  # that the canonical solution took

    @property
    def wall(self) -> float:
        """Seconds that a program may take."""
        return max(4.0, 4 * self.seconds)


def load_tasks(path: str, limit: int | None = None) -> list[Task]:
    """The first `limit` tasks of a questions file. ULT functions get the imports that they use and do not write."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        text = file.read()
    is_list = path.removesuffix(".gz").endswith(".json")
    rows = json.loads(text) if is_list else [json.loads(line) for line in text.split("\n") if line.strip()]
    tasks = [Task(question, row) for question, row in zip(load_questions(path), rows, strict=True)]
    return [with_imports(task) if "func_name" in task.row else task for task in tasks[:limit]]


ULT_IMPORTS = ("import os", "import re", "import math", "import numpy", "import random", "import string",
               "import warnings", "import datetime", "import traceback", "import numpy as np", "import pandas as pd",
               *(f"from typing import {name}" for name in "List Dict Any Optional Union Tuple Set FrozenSet Sequence "
                 "Iterable Generator Callable".split()))  # fmt: skip


def with_imports(task: Task) -> Task:
    """UnLeakedTestBench runs its functions behind a fixed block of imports; the lines that this one uses."""
    code = task.question.reference
    bound = {alias.asname or alias.name for node in ast.walk(ast.parse(code))
             if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)} - bound
    lines = [line for line in ULT_IMPORTS if line.split()[-1] in used]
    return Task(replace(task.question, reference="\n".join([*lines, code])), task.row) if lines else task


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _rows(value: list) -> list[tuple]:
    return [tuple(item) for item in value]


def _first(convert: Callable) -> Callable:
    return lambda args: [convert(args[0]), *args[1:]]


def _each(convert: Callable) -> Callable:
    return lambda args: [convert(arg) for arg in args]


CONVERSIONS = {  # JSON has no tuples, sets and complex numbers: MBPP+ tasks whose arguments are more than JSON
    "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809": _each(tuple),
    "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780": _each(_rows),
    "75 413 444 753": _first(_rows),
    "106 750": lambda args: [args[0], tuple(args[1])],
    "115": _first(lambda items: [set(item) if isinstance(item, list) and item else {} for item in items]),
    "124": lambda args: [float(args[0]), complex(args[1])],
    "250 307 405 446 617 720 763 808": _first(tuple),
    "259 401 445": _each(lambda rows: tuple(_rows(rows))),
    "278": _first(lambda items: tuple(tuple(item) if isinstance(item, list) else item for item in items)),
    "722": _first(lambda table: {key: tuple(value) for key, value in table.items()}),
    "252": _each(complex),
    "580 615 791": _tuples,
}  # fmt: skip
ANY_ORDER = "2 7 111 140 232 249 579 769".split()  # MBPP: two lists are compared as sets
NOT_NONE = "737 787 794".split()  # MBPP: the reference returns a match object, only whether it is None counts
ALSO_RIGHT = {  # MBPP tasks with a second answer; 164 takes any
    "164": lambda out, args, atol: True,
    "295": lambda out, args, atol: out == 0,
    "558": lambda out, args, atol: out == _digit_distance(*args),
    "581": lambda out, args, atol: abs(out - _pyramid_surface(*args)) <= atol,
}


def _digit_distance(a: int, b: int) -> int:
    width = max(len(str(a)), len(str(b)))
    return sum(abs(int(x) - int(y)) for x, y in zip(str(a).zfill(width), str(b).zfill(width), strict=True))


def _pyramid_surface(edge: float, height: float) -> int:
    """With the height taken from the centre of the base, not along a side."""
    return round(edge**2 + 2 * edge * math.hypot(edge / 2, height))


def arguments(task: Task, args: list) -> list:
    """The arguments of one recorded input with the types that the program is called with."""
    for numbers, convert in CONVERSIONS.items():
        if task.number in numbers.split():
            return list(convert(args))
    return args


def source(value: Any) -> str:
    try:
        return to_source(value)
    except ValueError:  # only for its size: the inputs are plain
        return repr(value)


def plus_cases(tasks: Sequence[Task], box: Sandbox) -> list[dict[str, list[Case]]]:
    """Per task its "base" and "plus" cases, expected values and times from the canonical solution.

    An input whose expected value is too large to leave the sandbox is left out: 1 of MBPP/255, with over 1 GB as text.
    """
    parts = [(task, part) for task in tasks for part in ("base", "plus")]
    inputs = [[arguments(task, args) for args in task.row[f"{part}_input"]] for task, part in parts]
    calls = [[f"{task.question.entry_point}({', '.join(map(source, args))})" for args in group]
             for (task, _), group in zip(parts, inputs, strict=True)]
    clock = "__import__('time').perf_counter()"
    timed = box.values([(task.question.reference, [f"({clock}, {call}, {clock})" for call in group])
                        for (task, _), group in zip(parts, calls, strict=True)])
    cases = []
    for (task, _), *columns in zip(parts, inputs, calls, timed, strict=True):
        rows = [(args, call, value.value) for args, call, value in zip(*columns, strict=True)
                if value.ok and type(value.value) is tuple]
        cases.append([Case(args, call, out is not None if task.number in NOT_NONE else out, end - start)
                      for args, call, (start, out, end) in rows])
    return [{"base": base, "plus": plus} for base, plus in zip(cases[::2], cases[1::2], strict=True)]


def all_floats(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else [value]
    return len(items) > 0 and all(isinstance(item, float) for item in items)


def close(out: Any, expected: Any, atol: float) -> bool:
    """numpy's allclose on values of one type and, for sequences, of one length; broadcasting within bounds."""
    if type(out) is not type(expected) or (isinstance(out, list | tuple) and len(out) != len(expected)):
        return False
    out, expected = np.asarray(out), np.asarray(expected)
    return np.broadcast(out, expected).size < 10**8 and bool(np.allclose(out, expected, rtol=1e-07, atol=atol))


def passes(task: Task, cases: list[Case], values: list[Value]) -> bool:
    """EvalPlus' verdict (version 0.3.1) on what a program returned for all cases of one part, as plain values.

    `==`, or the task's own oracle, or closeness within `atol`, which rises from 0 to 1e-6 for good with the first
    expected value of floats.
    """
    atol, number = task.row["atol"], task.number
    for case, value in zip(cases, values, strict=True):
        out, expected = value.value, case.expected
        try:
            if number == "HumanEval/32":
                right = abs(sum(c * math.pow(out, i) for i, c in enumerate(*case.args))) <= atol
            elif number in ANY_ORDER:
                right = set(out) == set(expected)
            elif number in NOT_NONE:
                right = (out if type(out) is bool else out is not None) == expected
            else:
                right = out == expected or (number in ALSO_RIGHT and ALSO_RIGHT[number](out, case.args, atol))
            if number != "HumanEval/32":
                atol = 1e-6 if atol == 0 and all_floats(expected) else atol
                right = right or (atol != 0 and close(out, expected, atol))
        except Exception:  # whatever a value of the wrong shape leads to
            return False
        if not (value.ok and right):
            return False
    return True


class Judge:
    """Verdicts on programs: columns -> passed. EvalPlus tasks have "base" and "plus", all others "pass"."""

    def __init__(self, tasks: Sequence[Task], box: Sandbox):
        self.box, self.cases = box, {}
        plus = [task for task in tasks if task.kind == "plus"]
        for task, cases in zip(plus, plus_cases(plus, box), strict=True):
            self.cases[task.question.id] = cases
        self.columns = ("base", "plus") if plus else ("pass",)

    def __call__(self, jobs: Sequence[tuple[Task, str]]) -> list[dict[str, bool]]:
        """[(task, program), ...]; equal jobs run once. "plus" is the verdict on the plus inputs alone."""
        distinct = {(task.question.id, program): task for task, program in jobs}
        with ThreadPoolExecutor(self.box.workers) as pool:
            verdicts = dict(zip(distinct, pool.map(self.one, distinct.values(), [p for _, p in distinct]), strict=True))
        return [verdicts[task.question.id, program] for task, program in jobs]

    def one(self, task: Task, program: str) -> dict[str, bool]:
        box, question = self.box, task.question
        if task.kind == "plus":
            verdict = {}
            for part, cases in self.cases[question.id].items():
                job = (program, [case.call for case in cases], [case.wall for case in cases])
                (values,) = box.timed_values([job], total=max(61.0, 4 * sum(case.seconds for case in cases)))
                verdict[part] = passes(task, cases, values)
            return verdict
        if task.kind == "script":
            return {"pass": box.check_script(program, task.row["test"], question.entry_point, 60) is Status.PASS}
        if task.kind == "unittest":
            return {"pass": not failures(task, program, box)}
        (verdict,) = box.judge([(program, question.entry_point, golden_tests(question))])
        return {"pass": verdict.loads and all(status is Status.PASS for status in verdict.statuses)}


SUITE_RUNNER = """
import sys, types, unittest
def failures(program, tests):
    module = sys.modules["__test__"] = types.ModuleType("__test__")
    exec(compile(program + "\\n" + tests, "__test__.py", "exec"), module.__dict__)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(module.TestCases).run(result)
    bad = result.failures + result.errors
    return [f"{case}: {text.strip().splitlines()[-1]}" for case, text in bad] or ([] if result.testsRun else ["no test"])
"""


def failures(task: Task, program: str, box: Sandbox) -> list[str]:
    """What fails of a BigCodeBench suite. The suite shares its process with the program, which could forge a pass."""
    call = f"failures({program!r}, {task.row['test']!r})"
    ((value,),) = box.timed_values([(SUITE_RUNNER, [call], [120.0])], total=121)
    return value.value if value.ok and isinstance(value.value, list) else [value.error or "no result"]


# ---- commands ----


class Journal:
    """One JSON line per finished task. A command that is started again goes on behind the last complete line."""

    def __init__(self, folder: Path, settings: dict):
        folder.mkdir(parents=True, exist_ok=True)
        self.path, known = folder / "tasks.jsonl", folder / "settings.json"
        if known.exists() and json.loads(known.read_text()) != settings:
            raise ValueError(f"{folder} holds a run with other settings ({known}): give another --out, or remove it")
        known.write_text(json.dumps(settings, indent=2))
        text = self.path.read_text() if self.path.exists() else ""
        text = text[: text.rfind("\n") + 1]  # without a line that was cut
        self.path.write_text(text)
        self.rows = {row["task_id"]: row for row in map(json.loads, text.split("\n")[:-1])}

    def add(self, rows: Sequence[dict]) -> None:
        with self.path.open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        self.rows |= {row["task_id"]: row for row in rows}

    def complete(self, tasks: Sequence[Task], batch: int, work: Callable[[int, list[Task]], list[dict]],
                 score: Callable[[list[dict]], str]) -> list[dict]:
        """A record for every task: work(seed, tasks of a batch) makes those that are not there yet. The batches are
        always the same ones, so an interrupted run ends with the records of an uninterrupted one."""
        done: list[dict] = []
        with tqdm(total=len(tasks), unit="task", desc=self.path.parent.name) as bar:
            for start in range(0, len(tasks), batch):
                part = list(tasks[start : start + batch])
                if any(task.question.id not in self.rows for task in part):
                    self.add([{"task_id": task.question.id, **row}
                              for task, row in zip(part, work(start, part), strict=True)])
                done += [self.rows[task.question.id] for task in part]
                bar.set_postfix_str(score(done))
                bar.update(len(part))
        return done


@lru_cache(maxsize=1)  # best-of has up to four models: one is in memory at a time
def load_model(path: str, device: str, dtype: str) -> tuple[Qwen2, Tokenizer]:
    return Qwen2.from_pretrained(path, dtype=getattr(torch, dtype), device=device), Tokenizer.from_pretrained(path)


def ask(path: str, args: Namespace, chats: Sequence[list[dict]], n: int, seed: int) -> list[list[str]]:
    sampling = dict(temperature=0.0, top_p=1.0) if args.greedy else dict(temperature=args.temperature, top_p=args.top_p)
    return replies(*load_model(path, args.device, args.dtype), chats, n, max_new_tokens=args.max_new_tokens,
                   seed=args.seed + seed, **sampling)


def settings(args: Namespace, **more: Any) -> dict:
    """What a run's results depend on."""
    skipped = ("run", "out", "workers", "device")
    return {k: v for k, v in vars(args).items() if k not in skipped} | more


def finish(folder: Path, result: dict, start: float) -> None:
    result["seconds"] = round(time.monotonic() - start, 1)  # of this start of the command
    (folder / "results.json").write_text(json.dumps(result, indent=2))
    print(json.dumps(result, indent=2))


def program_of(task: Task, reply: str) -> str:
    """BigCodeBench's calibrated form: the prompt's signature with an empty body, then what the model wrote."""
    if task.kind == "unittest":
        return f"{task.row['prompt_wo_doc']}\n    pass\n{extract_program(reply, task.question.entry_point)}"
    return make_solution(task.question, reply)


def sample_programs(model: str, tasks: Sequence[Task], judge: Judge, args: Namespace, folder: Path) -> list[dict]:
    """Per task its programs under "solutions", and for each column whether each passes (it and the columns before)."""
    given = defaultdict(list)
    for line in Path(args.samples).read_text().splitlines() if getattr(args, "samples", None) else ():
        row = json.loads(line)
        given[row["task_id"]].append(row["solution"])
    missing = [task.question.id for task in tasks if task.question.id not in given] if given else []
    if missing:
        raise ValueError(f"{args.samples} has no sample of {len(missing)} tasks ({', '.join(missing[:3])} ...)")

    def work(seed: int, part: list[Task]) -> list[dict]:
        if given:
            groups = [given[task.question.id] for task in part]
        else:
            texts = ask(model, args, [coder_messages(t.question, args.style) for t in part], args.n, seed)
            groups = [[program_of(t, text) for text in group] for t, group in zip(part, texts, strict=True)]
        verdicts = iter(judge([(t, program) for t, group in zip(part, groups, strict=True) for program in group]))
        rows = []
        for group in groups:
            found = [[next_verdict[c] for c in judge.columns] for next_verdict in islice(verdicts, len(group))]
            rows.append({"solutions": group} | {c: [all(v[: i + 1]) for v in found] for i, c in enumerate(judge.columns)})
        return rows

    def score(rows: list[dict]) -> str:
        return ", ".join(f"{c} {100 * mean([mean(row[c]) for row in rows]):.1f}" for c in judge.columns)

    return Journal(folder, settings(args, model=model)).complete(tasks, args.batch, work, score)


def run_code(args: Namespace) -> None:
    """Samples programs, or takes those of --samples, and reports avg@n and pass@k for every k up to n."""
    start, folder, tasks = time.monotonic(), Path(args.out), load_tasks(args.data, args.limit)
    here = [task for task in tasks if task.kind != "unittest" or all(map(find_spec, ast.literal_eval(task.row["libs"])))]
    with new_box(here, args) as box:
        judge = Judge(here, box)
        rows = sample_programs(args.model, here, judge, args, folder)
    samples = [{"task_id": row["task_id"], "solution": s} for row in rows for s in row["solutions"]]
    (folder / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    n = min(len(row["solutions"]) for row in rows)
    result: dict[str, Any] = {"tasks": len(rows), "skipped": len(tasks) - len(here), "n": n}
    for c in judge.columns:
        result[c] = {"avg": 100 * mean([mean(row[c]) for row in rows])} | {
            f"pass@{k}": 100 * mean([pass_at_k(len(row[c]), sum(row[c]), k) for row in rows]) for k in range(1, n + 1)}
    finish(folder, result, start)


def new_box(tasks: Sequence[Task], args: Namespace) -> Sandbox:
    """EvalPlus' 4 GiB and its own limits per call; for all others the limits of training."""
    plus = any(task.kind in ("plus", "unittest") for task in tasks)
    return Sandbox(args.workers, **(dict(timeout=10.0, memory_mb=4096) if plus else {}))


ANOTHER = "Write another test for `{}`, different from the ones before, that reaches other statements and branches."


def sample_suites(model: str, questions: Sequence[Question], args: Namespace, seed: int) -> list[Suite]:
    """One suite of args.asserts asserts per question: asked for at once (--suite), or one assert a round, the earlier
    ones in sight (as UnLeakedTestBench asks)."""
    k = args.asserts if args.suite else 1
    chats = [tester_messages(q, None if args.black_box else q.reference, k, args.style) for q in questions]
    suites: list[Suite] = [[] for _ in questions]
    for turn in range(args.asserts // k):
        texts = ask(model, args, chats, 1, seed * args.asserts + turn)
        for question, chat, suite, (text,) in zip(questions, chats, suites, texts, strict=True):
            suite += extract_tests(text, question.entry_point, k) or [None]
            chat += [{"role": "assistant", "content": text},
                     {"role": "user", "content": ANOTHER.format(question.entry_point)}]
    return suites


def run_tests(args: Namespace) -> None:
    """Quality of a Test LLM on functions with ground truth, by UnLeakedTestBench's definitions.

    pass@k: asserts that hold as written among the first k, over k times the functions. mut@k: of the functions whose
    asserts all hold, and of no others, the mean share of mutants that the first k asserts kill (its code: mutants run
    where the whole suite passes, and the survival rates are averaged over these functions). Mul = pass@K mut@K / 100.
    kill is ours: over all functions, by the valid asserts with the ground truth's values.
    """
    start, folder, k = time.monotonic(), Path(args.out), args.asserts
    tasks = load_tasks(args.data, args.limit)
    with new_box([], args) as box:

        def work(seed: int, part: list[Task]) -> list[dict]:
            questions = [task.question for task in part]
            suites = sample_suites(args.model, questions, args, seed)
            scores = score_suites(questions, [[suite] for suite in suites], k, box, limit=None)
            cover = coverage_of(questions, suites, box)
            return [{**asdict(s), "asserts": [t and t.source for t in suite], "coverage": c}
                    for (s,), suite, c in zip(scores, suites, cover, strict=True)]

        def score(rows: list[dict]) -> str:
            return f"pass@{k} {100 * mean([mean(row['right']) for row in rows]):.1f}"

        rows = Journal(folder, settings(args)).complete(tasks, args.batch, work, score)
    whole = [row for row in rows if all(row["right"]) and row["mutants"]]
    result = {"functions": len(rows), "asked": "suite" if args.suite else "rounds", "black_box": args.black_box,
              "whole_suites": len(whole), "mutants": sum(row["mutants"] for row in rows),
              "killed_by_timeout": sum(row["timeouts"] for row in rows)}
    for j in range(1, k + 1):
        result[f"pass@{j}"] = 100 * mean([mean(row["right"][:j]) for row in rows])
        result[f"mut@{j}"] = 100 * mean([row["kills"][j - 1] / row["mutants"] for row in whole])
    result["mul"] = result[f"pass@{k}"] * result[f"mut@{k}"] / 100
    result["kill"] = 100 * mean([row["kills"][-1] / row["mutants"] for row in rows if row["mutants"]])
    counts = [sum(column) for column in zip(*[row["coverage"] for row in rows if row["coverage"]], strict=True)]
    if counts:
        result["line_coverage"], result["branch_coverage"] = 100 * counts[0] / counts[1], 100 * counts[2] / counts[3]
    finish(folder, result, start)


COVERAGE = """
import coverage, json
def measure(program, calls):
    with open("covered.py", "w") as file:
        file.write(program)
    meter = coverage.Coverage(branch=True, data_file=None, include=["*covered.py"])
    space = {"__name__": "covered"}
    meter.start()
    exec(compile(program, "covered.py", "exec"), space)
    for call in calls:
        try:
            eval(call, space)
        except Exception:
            pass
    meter.stop()
    meter.json_report(outfile="report.json")
    totals = json.load(open("report.json"))["totals"]
    return [totals[key] for key in ("covered_lines", "num_statements", "covered_branches", "num_branches")]
"""


def coverage_of(questions: Sequence[Question], suites: Sequence[Suite], box: Sandbox) -> list[list[int] | None]:
    """Covered lines, lines, covered branches, branches of the ground truth under each suite; None without `coverage`."""
    if not find_spec("coverage"):
        return [None] * len(questions)
    jobs = [(COVERAGE, [f"measure({q.reference!r}, {[t.call for t in suite if t]!r})"], [60.0])
            for q, suite in zip(questions, suites, strict=True)]
    return [value.value if value.ok else None for (value,) in box.timed_values(jobs, total=60)]


def choose(programs: Sequence[str], tests: Sequence[Test], values: Sequence[Sequence[Value]], cure: bool) -> int:
    """Index of the program that passes most of the pooled tests.

    Ties: the largest group of programs that return the same on every call, then the shortest, then the first. `cure`
    is CURE's rule (Wang et al. 2025): the first with the most passes.
    """
    scores = [sum(v.ok and holds(v.value, t) for v, t in zip(row, tests, strict=True)) for row in values]
    if cure:
        return scores.index(max(scores))
    outputs = [tuple(source(v.value) if v.ok else v.error for v in row) for row in values]
    keys = [(score, outputs.count(out), -len(p)) for score, out, p in zip(scores, outputs, programs, strict=True)]
    return keys.index(max(keys))


def run_best_of(args: Namespace) -> None:
    """Test-time collaboration without ground truth: n programs, a suite of the tester for each, the pooled distinct
    tests choose one program. Reports first sample, choice and oracle (pass@n) for every pair of coder and tester."""
    start, folder, tasks = time.monotonic(), Path(args.out), load_tasks(args.data, args.limit)
    args.suite, result = True, {}
    with new_box(tasks, args) as box:
        judge = Judge(tasks, box)
        sampled = [sample_programs(coder, tasks, judge, args, folder / f"coder{i}") for i, coder in enumerate(args.coder)]
        for (i, programs), (j, tester) in product(enumerate(sampled), enumerate(args.tester)):
            by_id = {row["task_id"]: row for row in programs}

            def work(seed: int, part: list[Task], by_id=by_id, tester=tester) -> list[dict]:
                rows = [by_id[task.question.id] for task in part]
                shown = [replace(t.question, reference=p) for t, row in zip(part, rows, strict=True) for p in row["solutions"]]
                suites = iter(sample_suites(tester, shown, args, seed))
                pools = [list(dict.fromkeys(t for suite in islice(suites, args.n) for t in suite if t)) for _ in part]
                values = iter(box.values([(program, [t.call for t in pool]) for pool, row in zip(pools, rows, strict=True)
                                          for program in row["solutions"]]))
                picks = [choose(row["solutions"], pool, list(islice(values, args.n)), args.cure)
                         for row, pool in zip(rows, pools, strict=True)]
                passed = [row[judge.columns[-1]] for row in rows]
                return [{"first": p[0], "best": p[pick], "oracle": any(p), "tests": len(pool)}
                        for p, pick, pool in zip(passed, picks, pools, strict=True)]

            def score(rows: list[dict]) -> str:
                return ", ".join(f"{name} {100 * mean([row[name] for row in rows]):.1f}" for name in ("first", "best", "oracle"))

            rows = Journal(folder / f"pair{i}{j}", settings(args)).complete(tasks, args.batch, work, score)
            result[f"{args.coder[i]} + {tester}"] = {
                name: 100 * mean([row[name] for row in rows]) for name in ("first", "best", "oracle")}
    finish(folder, {"tasks": len(tasks), "n": args.n, "rule": "cure" if args.cure else "ours", "pairs": result}, start)


BROKEN = """
def _other(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, complex)):
        return value + 1
    if isinstance(value, float):
        return 2 * value + 1 if abs(value) < 1e300 else 0.0
    if isinstance(value, (str, bytes)):
        return value + ("x" if isinstance(value, str) else b"x")
    if isinstance(value, (list, tuple)):
        return value + type(value)(["x"])
    if isinstance(value, (set, frozenset)):
        return value | {"x"}
    if isinstance(value, dict):
        return {**value, "x": "x"}
    return "x" if value is None else None

_right = NAME
def NAME(*args, **kwargs):
    return _other(_right(*args, **kwargs))
"""


def broken(task: Task) -> str:
    """The reference, its returned value replaced by another of the same type (None and objects: of another type)."""
    if task.number == "164":  # any answer is right there
        return f"{task.question.reference}\n{task.question.entry_point} = lambda *args: 1 / 0\n"
    return task.question.reference + BROKEN.replace("NAME", task.question.entry_point)


def run_verify(args: Namespace) -> None:
    """Every reference must pass its own tests and a broken one must fail; exit status 1 otherwise."""
    tasks = load_tasks(args.data, args.limit)
    with new_box(tasks, args) as box:
        verdicts = Judge(tasks, box)([(t, t.question.reference) for t in tasks] + [(t, broken(t)) for t in tasks])
    passed = [all(verdict.values()) for verdict in verdicts]
    good, bad = passed[: len(tasks)], [not p for p in passed[len(tasks) :]]
    for task, is_good, is_bad in zip(tasks, good, bad, strict=True):
        if not (is_good and is_bad):
            print(f"{task.question.id}: {'the broken reference passes' if is_good else 'the reference fails'}")
    print(f"{sum(good)} of {len(tasks)} references pass, {sum(bad)} of {len(tasks)} broken ones fail")
    sys.exit(not all(good + bad))


def run_export(args: Namespace) -> None:
    """Asks the tester for one suite per question; its valid tests, with the ground truth's values, become the question's
    tests in a new file. Questions without a valid test are left out."""
    questions, args.suite = [task.question for task in load_tasks(args.data, args.limit)], True
    kept = []
    with new_box([], args) as box:
        for start in tqdm(range(0, len(questions), args.batch), unit="batch"):
            part = questions[start : start + args.batch]
            suites = sample_suites(args.tester, part, args, start)
            for question, tests in zip(part, validate(part, [[s] for s in suites], box)[1], strict=True):
                sources = tuple(dict.fromkeys(test.source for test in tests.values()))
                kept += [replace(question, tests=sources)] if sources else []
    save_questions(args.out, kept)
    print(f"{sum(len(q.tests) for q in kept)} tests of {len(kept)} of {len(questions)} questions in {args.out}")


HELP = """Score coders, testers and both together. Every command runs from any folder.

  eval.py code --model DIR --data MbppPlus.jsonl.gz -n 32 --temperature 0.7 --top-p 0.95     the paper's avg@32
  eval.py code --samples samples.jsonl --data HumanEvalPlus.jsonl.gz                         samples from elsewhere
  eval.py tests --model DIR --data ULT_Lite.json --greedy                                    pass@5, mut@5, Mul
  eval.py best-of --coder BASE TRAINED --tester BASE TRAINED --data HumanEvalPlus.jsonl.gz -n 8
  eval.py verify --data HumanEvalPlus.jsonl.gz                                               is the data sound here?
  eval.py export-tests --tester DIR --data questions.jsonl --out with_tests.jsonl

Data: EvalPlus' own files, `check(candidate)` files, HumanEval, ULT, BigCodeBench, or this project's questions; the
model: a folder in Hugging Face layout. `eval.py COMMAND --help` lists the options of a command.
"""
OPTIONS = {
    "--data": dict(required=True, help="questions file, .jsonl, .jsonl.gz or .json"),
    "--limit": dict(type=int, help="only the first so many tasks"),
    "--workers": dict(type=int, help="sandbox processes (default: one per core)"),
    "--out": dict(default="runs/eval", help="folder of tasks.jsonl, results.json; started again, a run goes on there"),
    "--style": dict(default="instruct", help="prompts: instruct, or plain for the embedded models"),
    "--temperature": dict(type=float, default=0.7),
    "--top-p": dict(type=float, default=0.95),
    "--greedy": dict(action="store_true", help="temperature 0"),
    "--max-new-tokens": dict(type=int, default=1024, help="limit of a reply"),
    "--seed": dict(type=int, default=0),
    "--batch": dict(type=int, default=8, help="tasks sampled together, and redone after an interruption"),
    "--device": dict(default="cuda" if torch.cuda.is_available() else "cpu"),
    "--dtype": dict(default="float32", help="float32 or bfloat16"),
    "--asserts": dict(type=int, default=5, help="k: asserts of a suite"),
    "--black-box": dict(action="store_true", help="hide the function under test"),
}
BOX, SAMPLE, SUITES = list(OPTIONS)[:3], list(OPTIONS)[3:13], list(OPTIONS)[13:]


def parser() -> ArgumentParser:
    top = ArgumentParser(prog="eval.py", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[Namespace], None], *options: str) -> ArgumentParser:
        sub = commands.add_parser(name, help=run.__doc__.split("\n")[0], description=run.__doc__)
        for option in options:
            sub.add_argument(option, **OPTIONS[option])
        sub.set_defaults(run=run)
        return sub

    code = command("code", run_code, *BOX, *SAMPLE)
    code.add_argument("--model", help="the coder")
    code.add_argument("--samples", help="score this file of {task_id, solution} instead of sampling")
    code.add_argument("-n", type=int, default=1, help="programs per task")
    tests = command("tests", run_tests, *BOX, *SAMPLE, *SUITES)
    tests.add_argument("--model", required=True, help="the tester")
    tests.add_argument("--suite", action="store_true", help="ask for k asserts at once, as training does")
    best = command("best-of", run_best_of, *BOX, *SAMPLE, *SUITES)
    best.add_argument("--coder", nargs="+", required=True, help="one or two models")
    best.add_argument("--tester", nargs="+", required=True, help="one or two models")
    best.add_argument("-n", type=int, default=8, help="programs per task")
    best.add_argument("--cure", action="store_true", help="CURE's rule: most passes, the first wins")
    command("verify", run_verify, *BOX)
    command("export-tests", run_export, *BOX, *SAMPLE, *SUITES).add_argument("--tester", required=True)
    return top


def main(argv: Sequence[str] | None = None) -> None:
    args = parser().parse_args(argv)
    try:
        args.run(args)
    except (ValueError, OSError, SandboxError) as error:
        sys.exit(f"eval.py: {error}")


if __name__ == "__main__":
    main()
