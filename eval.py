"""Evaluation: pass@k of a Code LLM, quality of a Test LLM, and their work together.

Of the paper this keeps the measures: pass@k and avg@n of programs, accuracy and mutation score of tests, best-of-N.
Verdicts are made here, on plain values that came out of the sandbox; this module runs no foreign code. EvalPlus' rules
(0.3.1), the meaning of cosmic-ray's operators (8.7) and UnLeakedTestBench's counting are written anew and checked
against those tools by tests/agreement.py. Rates are percentages; the mean of nothing is 0.

Run:  python eval.py --help
"""

import ast
import json
import math
import re
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import tasks as data
from model import Qwen2, Tokenizer, generate
from sandbox import Sandbox, SandboxError, Status, Value
from tasks import Question, Test, holds

MAX_MUTANTS = 40  # made for a question that brings none, evenly spaced over all that there are
LETHAL = (Status.FAIL, Status.ERROR, Status.TIMEOUT)
parse = partial(ast.parse, filename="<reply>")  # the name under which `tasks` silences the parser's remarks
Suite = list[Test | None]  # the asserts of one reply, None for a malformed one

# ---- numbers ----


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate, in [0, 1], of P(at least one of k samples is right) from c right ones among n.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021). ValueError unless 0 <= c <= n and 1 <= k <= n: with fewer samples than
    k there is nothing to estimate from.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}: draw at least k samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def percent(values: Iterable[float | None]) -> float:
    """100 times the mean of the values that are not None."""
    known = [value for value in values if value is not None]
    return 100 * sum(known) / len(known) if known else 0.0


def stderr(values: Iterable[float | None]) -> float:
    """Standard error of `percent`, in percent; 0.0 for fewer than two values."""
    known = [value for value in values if value is not None]
    return 100 * stdev(known) / math.sqrt(len(known)) if len(known) > 1 else 0.0


def by_family(questions: Sequence[Question], values: Sequence[float | None]) -> dict[str, float]:
    """`percent` of one value per question, for each family."""
    groups = defaultdict(list)
    for question, value in zip(questions, values, strict=True):
        groups[question.hidden.family if question.hidden else "all"].append(value)
    return {family: percent(group) for family, group in sorted(groups.items())}


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


def golden(pairs: Sequence[tuple[Question, str]], box: Sandbox) -> list[bool]:
    """Whether each program loads and passes every hidden assert of its question; none there: those training may read.

    Equal programs for a question run once.
    """
    jobs = {(q.id, program): (program, q.entry_point, q.hidden.golden if q.hidden else q.tests) for q, program in pairs}
    for (name, _), (*_, asserts) in jobs.items():
        if not asserts:
            raise ValueError(f"question {name} has no tests to score a program with")
    passed = [v.loads and set(v.statuses) == {Status.PASS} for v in box.judge(jobs.values())]
    verdicts = dict(zip(jobs, passed, strict=True))
    return [verdicts[q.id, program] for q, program in pairs]


def evaluate_coder(model: Qwen2, tokenizer: Tokenizer, questions: Sequence[Question], box: Sandbox, *, style: str,
                   n: int, temperature: float, top_p: float, max_new_tokens: int, seed: int,
                   greedy: bool = False) -> CoderReport:
    """`golden` rate of n sampled programs per question (greedy: one at temperature 0, n is not read)."""
    texts = replies(model, tokenizer, [data.coder_messages(q, style) for q in questions], 1 if greedy else n,
                    temperature=0.0 if greedy else temperature, top_p=top_p, max_new_tokens=max_new_tokens, seed=seed)
    pairs = [(q, data.make_solution(q, text)) for q, group in zip(questions, texts, strict=True) for text in group]
    passed = iter(golden(pairs, box))
    rates = [percent(islice(passed, len(group))) / 100 for group in texts]
    return CoderReport(percent(rates), stderr(rates), by_family(questions, rates), len(questions))


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

    @property
    def kill(self) -> float | None:
        return self.kills[-1] / self.mutants if self.mutants else None


def mutants_of(question: Question, limit: int | None = MAX_MUTANTS) -> list[str]:
    """The mutants that a question brings, else those that `mutants` makes of its reference, at most `limit` of them."""
    if question.hidden and question.hidden.mutants:
        return list(question.hidden.mutants)
    made = list(dict.fromkeys(mutant for group in mutants(question.reference).values() for mutant in group))
    count = min(len(made), limit or len(made))
    return [made[i * len(made) // count] for i in range(count)]


def validate(questions: Sequence[Question], suites: Sequence[Sequence[Suite]],
             box: Sandbox) -> list[tuple[set[Test], dict[Test, Test]]]:
    """Per question: the tests that hold as written; each valid one -> the same test with the ground truth's value.

    A test is valid if its call runs on the ground truth and gives a plain value there.
    """
    tests = [list(dict.fromkeys(test for suite in group for test in suite if test)) for group in suites]
    jobs = [(q.reference, q.entry_point, [test.call for test in group]) for q, group in zip(questions, tests, strict=True)]
    results = []
    for group, values in zip(tests, box.ground_truth(jobs), strict=True):
        known = [(test, t.value.value) for test, t in zip(group, values, strict=True) if t.value.ok]
        relabelled = {test: data.relabel(test, value) for test, value in known}
        results.append(({test for test, value in known if holds(value, test)},
                        {test: new for test, new in relabelled.items() if new}))
    return results


def score_suites(questions: Sequence[Question], suites: Sequence[Sequence[Suite]], k: int, box: Sandbox,
                 limit: int | None = MAX_MUTANTS) -> list[list[SuiteScore]]:
    """Scores suites[question][suite]; the first k asserts of each count, duplicates inside a suite add nothing.

    A mutant is killed by a valid test that fails, raises or runs out of time on it. One suite per question: a mutant
    that crashes or hangs is not run further; several: the sandbox's rule for such programs, tests not run kill nothing.
    """
    suites = [[[*suite[:k], *[None] * (k - len(suite))] for suite in group] for group in suites]
    known = validate(questions, suites, box)
    jobs = [(i, mutant, list(dict.fromkeys(known[i][1].values()))) for i, q in enumerate(questions)
            for mutant in mutants_of(q, limit)]
    resumes = {} if max(map(len, suites), default=0) > 1 else {"resumes": 0}
    verdicts = box.judge([(mutant, questions[i].entry_point, tests) for i, mutant, tests in jobs], **resumes)
    killers: list[list[dict[Test, Status]]] = [[] for _ in questions]  # per mutant that loads: lethal test -> status
    for (i, _, tests), verdict in zip(jobs, verdicts, strict=True):
        if verdict.loads:
            killers[i].append({t: s for t, s in zip(tests, verdict.statuses, strict=True) if s in LETHAL})
    return [[score_suite(suite, *known[i], killers[i]) for suite in group] for i, group in enumerate(suites)]


def score_suite(suite: Suite, holding: set[Test], valid: dict[Test, Test],
                killers: list[dict[Test, Status]]) -> SuiteScore:
    kills, reasons = [], defaultdict(set)  # mutant -> the ways in which it died
    for test in suite:
        for m, lethal in enumerate(killers):
            if valid.get(test) in lethal:
                reasons[m].add(lethal[valid[test]])
        kills.append(len(reasons))
    timeouts = sum(kinds == {Status.TIMEOUT} for kinds in reasons.values())
    return SuiteScore(tuple(test in holding for test in suite), tuple(kills), timeouts, len(killers))


def evaluate_tester(model: Qwen2, tokenizer: Tokenizer, questions: Sequence[Question], box: Sandbox, *, style: str,
                    suites: int, asserts: int, temperature: float, top_p: float, max_new_tokens: int, seed: int,
                    black_box: bool = False) -> TesterReport:
    """Quality of `suites` sampled suites of `asserts` asserts per question, the reference shown unless `black_box`.

    Kill is counted per suite and then averaged: first over the suites of a question, then over questions; questions
    without a mutant that loads are left out of it. stderr of mul: of the product's linear part.
    """
    chats = [data.tester_messages(q, None if black_box else q.reference, asserts, style) for q in questions]
    texts = replies(model, tokenizer, chats, suites, temperature=temperature, top_p=top_p,
                    max_new_tokens=max_new_tokens, seed=seed)
    parsed = [[data.extract_tests(text, q.entry_point, asserts) for text in group]
              for q, group in zip(questions, texts, strict=True)]
    scores = score_suites(questions, parsed, asserts, box)
    columns = {"suite_right": [percent(all(s.right) for s in group) / 100 for group in scores],
               "assert_accuracy": [percent(r for s in group for r in s.right) / 100 for group in scores],
               "kill": [percent(s.kill for s in group) / 100 if group[0].mutants else None for group in scores]}
    families = {name: by_family(questions, values) for name, values in columns.items()}
    families["mul"] = {f: families["assert_accuracy"][f] * kill / 100 for f, kill in families["kill"].items()}
    means = {name: percent(values) for name, values in columns.items()}
    means["mul"] = means["assert_accuracy"] * means["kill"] / 100
    columns["mul"] = [None if kill is None else (means["kill"] * right + means["assert_accuracy"] * kill) / 100
                      for right, kill in zip(columns["assert_accuracy"], columns["kill"], strict=True)]
    errors = {name: stderr(values) for name, values in columns.items()}
    return TesterReport(**means, stderr=errors, by_family=families)


# ---- mutants ----

BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
          ast.RShift: ">>", ast.LShift: "<<", ast.BitOr: "|", ast.BitAnd: "&", ast.BitXor: "^"}  # fmt: skip
ORDER = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
COMPARE = {**ORDER, ast.Is: "is", ast.IsNot: "is not"}
BESIDE_NONE = {"==": ["is not"], "!=": ["is"], "is": ["is not"], "is not": ["is"]}  # what an operator becomes there
UNARY = {ast.UAdd: "+", ast.USub: "-", ast.Invert: "~", ast.Not: "not"}
GAP = r"(?:\s|\)|\\|#[^\n]*\n)*"  # what may stand between an operand and its operator
Edit = tuple[str, int, int, str]  # operator name, start and end in the source, new text


class Places:
    """Offsets of a source's nodes; `ast` counts lines and UTF-8 bytes."""

    def __init__(self, source: str):
        self.text = source.encode()
        self.lines = [0] + [m.end() for m in re.finditer(rb"\n", self.text)]

    def start(self, node: ast.AST) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset

    def after(self, node: ast.AST, word: str) -> tuple[int, int]:
        """Where `word` stands behind a node and a gap; (-1, -1) if it does not (in some f-strings before 3.12)."""
        found = re.compile((GAP + "(" + re.escape(word) + ")").encode()).match(self.text, self.end(node))
        return found.span(1) if found else (-1, -1)


def compared(old: str | None, right: ast.expr) -> Iterable[str]:
    """What a comparison operator becomes in front of None, a number, or anything else."""
    constant = right.value if isinstance(right, ast.Constant) else ""
    if constant is None:
        return BESIDE_NONE.get(old, ())
    return (ORDER if type(constant) in (int, float, complex) else COMPARE).values() if old else ()


def edits(node: ast.AST, at: Places) -> Iterator[Edit]:
    """Every edit of a node that makes a mutant."""
    start, end = (at.start(node), at.end(node)) if hasattr(node, "lineno") else (0, 0)
    match node:
        case ast.BinOp(left=left, op=op) if type(op) in BINARY:
            old = BINARY[type(op)]
            yield from ((f"binary {old} {new}", *at.after(left, old), new) for new in BINARY.values())
        case ast.BoolOp(op=op, values=values):
            old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            yield from ((f"{old} {new}", *at.after(left, old), new) for left in values[:-1])
        case ast.Compare(left=leftmost, ops=ops, comparators=rights):
            for left, op, right in zip([leftmost, *rights], ops, rights, strict=False):
                for new in compared(old := COMPARE.get(type(op)), right):
                    yield f"comparison {old} {new}", *at.after(left, old), f" {new}"
        case ast.UnaryOp(op=op):
            old = UNARY[type(op)]
            for new in [""] if old == "not" else ["+", "-", "~", "not "] + [""] * (old != "+"):
                yield f"unary {old} {new.strip()}", start, start + len(old), new
        case ast.Constant(value=bool() as value):
            yield f"{value} {not value}", start, end, str(not value)
        case ast.Constant(value=int() | float() | complex() as value):
            yield from (("number", start, end, f" {new}") for new in (value + 1, value - 1))
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
        case ast.If() | ast.While() | ast.Assert():
            word = type(node).__name__.lower()
            if at.text.startswith(word.encode(), start):  # an elif is no statement of its own here
                yield "not", start + len(word), start + len(word), " not"
        case ast.IfExp(body=body):
            yield "not", at.after(body, "if")[1], at.after(body, "if")[1], " not"
        case ast.For(target=target, iter=items) | ast.AsyncFor(target=target, iter=items):
            yield "zero iterations", at.after(target, "in")[1], at.after(items, ":")[0], " []"


def mutants(source: str) -> dict[str, list[str]]:
    """Operator name -> distinct mutants of a program, each with one edit, normalised by `ast.unparse`.

    The operators mean what cosmic-ray's do, and like there an edit changes the text: `a + b * c` with `**` for `+` is
    `(a ** b) * c`. Mutants that are no Python, and those equal to the program, are left out. SyntaxError if the program
    is no Python.
    """
    tree = parse(source)
    at, original = Places(source), ast.unparse(tree)
    found: dict[str, dict[str, None]] = {}
    for name, start, end, new in (edit for node in ast.walk(tree) for edit in edits(node, at)):
        try:
            mutant = ast.unparse(parse(at.text[:start] + new.encode() + at.text[end:]))
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
        if "base_input" in self.row or "libs" in self.row:
            return "plus" if "base_input" in self.row else "unittest"
        return "script" if "def check(" in self.row.get("test", "") else "asserts"

    @property
    def number(self) -> str:
        """How the tables below name MBPP tasks; tasks of other benchmarks keep their whole id."""
        return self.question.id.removeprefix("Mbpp/")

    @property
    def libraries(self) -> list[str]:
        """What a BigCodeBench task and its suite import; in the published table "libs" is the text of a list."""
        libs = self.row.get("libs", [])
        named = ast.literal_eval(libs) if isinstance(libs, str) else libs
        return [*named, *re.findall(r"^\s*(?:import|from)\s+(\w+)", self.row["test"], re.M)] if libs else []


def load_tasks(path: str, limit: int | None = None) -> list[Task]:
    """The first `limit` tasks of a questions file. ULT functions get the imports that they use and do not write."""
    found = [Task(*record) for record in data.load_records(path)[:limit]]
    return [replace(task, question=with_imports(task.question)) if "func_name" in task.row else task for task in found]


ULT_IMPORTS = """os, re, math, numpy, random, string, warnings, datetime, traceback, numpy as np, pandas as pd"""
TYPING = "List Dict Any Optional Union Tuple Set FrozenSet Sequence Iterable Generator Callable".split()


def with_imports(question: Question) -> Question:
    """UnLeakedTestBench runs its functions behind a fixed block of imports: the lines of it that this one needs."""
    nodes = list(ast.walk(parse(question.reference)))
    bound = {a.asname or a.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for a in node.names}
    lines = [f"import {name}" for name in ULT_IMPORTS.split(", ")] + [f"from typing import {name}" for name in TYPING]
    used = {node.id for node in nodes if isinstance(node, ast.Name)} - bound
    return replace(question, reference="\n".join([*[x for x in lines if x.split()[-1] in used], question.reference]))


def tuples(value: Any) -> Any:
    return tuple(tuples(item) for item in value) if isinstance(value, list) else value


def rows_of(value: list) -> list[tuple]:
    return [tuple(item) for item in value]


CONVERSIONS = {  # MBPP+ tasks whose arguments JSON cannot say: it has no tuples, sets and complex numbers
    "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809": partial(map, tuple),
    "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780": partial(map, rows_of),
    "75 413 444 753": lambda args: [rows_of(args[0]), *args[1:]],
    "106 750": lambda args: [args[0], tuple(args[1])],
    "115": lambda args: [[set(item) if isinstance(item, list) and item else {} for item in args[0]]],
    "124": lambda args: [float(args[0]), complex(args[1])],
    "250 307 405 446 617 720 763 808": lambda args: [tuple(args[0]), *args[1:]],
    "259 401 445": lambda args: [tuple(rows_of(rows)) for rows in args],
    "278": lambda args: [tuple(tuple(item) if isinstance(item, list) else item for item in args[0])],
    "722": lambda args: [{key: tuple(value) for key, value in args[0].items()}, *args[1:]],
    "252": partial(map, complex),
    "580 615 791": tuples,
}
ANY_ORDER = "2 7 111 140 232 249 579 769".split()  # MBPP: two lists are compared as sets
NOT_NONE = "737 787 794".split()  # MBPP: the reference returns a match object, only whether it is None counts
ALSO_RIGHT = {  # MBPP tasks with a second answer; 164 takes any
    "164": lambda out, args, atol: True,
    "295": lambda out, args, atol: out == 0,
    "558": lambda out, args, atol: out == digit_distance(*map(str, args)),  # of numbers padded to one width
    "581": lambda out, args, atol: abs(out - pyramid_surface(*args)) <= atol,
}


def digit_distance(a: str, b: str) -> int:
    width = max(len(a), len(b))
    return sum(abs(int(x) - int(y)) for x, y in zip(a.zfill(width), b.zfill(width), strict=True))


def pyramid_surface(edge: float, height: float) -> int:
    """With the height measured from the centre of the base, not along a side."""
    return round(edge**2 + 2 * edge * math.hypot(edge / 2, height))


@dataclass(frozen=True)
class Case:
    """One input of an EvalPlus task, with what the canonical solution made of it."""

    args: list
    call: str
    expected: Any
    seconds: float  # that the canonical solution took


def plus_calls(task: Task, part: str) -> tuple[list[list], list[str]]:
    """The "base" or "plus" inputs of an EvalPlus task, as its own conversion makes them, and the call of each."""
    convert = next((f for numbers, f in CONVERSIONS.items() if task.number in numbers.split()), list)
    inputs = [list(convert(args)) for args in task.row[f"{part}_input"]]
    return inputs, [f"{task.question.entry_point}({', '.join(map(source, args))})" for args in inputs]


def plus_cases(task: Task, part: str, box: Sandbox) -> list[list[Case]]:
    """The "base" or "plus" cases of a task, expected values and times from the canonical solution.

    In groups, each to be run by one process: the values of one process have a limit, and where they are past it, the
    rest run each alone. An input whose value is too large even so is left out: five of MBPP/255, 30 MB to 1 GB.
    """
    inputs, calls = plus_calls(task, part)

    def cases(group: Sequence[int]) -> dict[int, Case]:
        clock = "__import__('time').perf_counter()"
        (values,) = box.values([(task.question.reference, [f"({clock}, {calls[i]}, {clock})" for i in group])])
        known = [(i, *v.value) for i, v in zip(group, values, strict=True) if v.ok and type(v.value) is tuple]
        return {i: Case(inputs[i], calls[i], out is not None if task.number in NOT_NONE else out, end - start)
                for i, start, out, end in known}

    together = cases(range(len(calls)))
    alone = [list(cases([i]).values()) for i in range(len(calls)) if i not in together]
    return [list(together.values()), *filter(None, alone)]


def source(value: Any) -> str:
    try:
        return data.to_source(value)
    except ValueError:  # too long for it: MBPP/301
        return repr(value)


def close(out: Any, expected: Any, atol: float) -> bool:
    """numpy's allclose for values of one type and, of sequences, one length; broadcasting within bounds."""
    if type(out) is not type(expected) or (isinstance(out, list | tuple) and len(out) != len(expected)):
        return False
    out, expected = np.asarray(out), np.asarray(expected)
    with np.errstate(all="ignore"):
        return np.broadcast(out, expected).size < 10**8 and bool(np.allclose(out, expected, rtol=1e-07, atol=atol))


def passes(task: Task, cases: Iterable[Case], values: Iterable[Value]) -> bool:
    """EvalPlus' verdict on what a program returned for all cases of one part.

    `==`, or the task's own oracle, or closeness within `atol`, which rises from 0 to 1e-6 for good with the first
    expected value of floats.
    """
    atol, number = task.row["atol"], task.number
    for case, value in zip(cases, values, strict=True):
        out, expected = value.value, case.expected
        try:
            if number == "HumanEval/32":
                accepted = abs(sum(c * math.pow(out, i) for i, c in enumerate(*case.args))) <= atol
            elif number in ANY_ORDER:
                accepted = len(out) < 3000 and set(out) == set(expected)  # bounded: hashes can be made to collide
            elif number in NOT_NONE:
                accepted = (out if type(out) is bool else out is not None) == expected
            else:
                accepted = out == expected or (number in ALSO_RIGHT and ALSO_RIGHT[number](out, case.args, atol))
            if number != "HumanEval/32":
                items = expected if type(expected) in (list, tuple) else [expected]
                atol = 1e-6 if atol == 0 and items and all(isinstance(item, float) for item in items) else atol
                accepted = accepted or (atol != 0 and close(out, expected, atol))
        except Exception:  # whatever a value of the wrong shape leads to
            return False
        if not (value.ok and accepted):
            return False
    return True


class Judge:
    """Verdicts on programs: column -> passed. EvalPlus tasks have "base" and "plus", all others "pass"."""

    def __init__(self, tasks: Sequence[Task], box: Sandbox):
        self.box, self.columns = box, ("base", "plus") if tasks[0].kind == "plus" else ("pass",)
        parts = [(task, part) for task in tasks if task.kind == "plus" for part in self.columns]
        with ThreadPoolExecutor(box.workers) as pool:
            cases = pool.map(lambda pair: plus_cases(*pair, box), parts)
            self.cases = {(task.question.id, part): found for (task, part), found in zip(parts, cases, strict=True)}
        self.left_out: Counter[str] = Counter()  # task id: inputs that no program is called with
        for task, part in parts:
            groups = self.cases[task.question.id, part]
            self.left_out[task.question.id] += len(task.row[f"{part}_input"]) - sum(map(len, groups))

    def __call__(self, jobs: Sequence[tuple[Task, str]]) -> list[dict[str, bool]]:
        """[(task, program), ...]; equal jobs run once. "plus" is the verdict on the plus inputs alone."""
        distinct = {(task.question.id, program): task for task, program in jobs}
        with ThreadPoolExecutor(self.box.workers) as pool:
            found = pool.map(self.one, distinct.values(), [program for _, program in distinct])
            verdicts = dict(zip(distinct, found, strict=True))
        return [verdicts[task.question.id, program] for task, program in jobs]

    def one(self, task: Task, program: str) -> dict[str, bool]:
        if task.kind == "plus":
            return {part: self.plus(task, program, self.cases[task.question.id, part]) for part in self.columns}
        if task.kind == "script":
            status = self.box.check_script(program, task.row["test"], task.question.entry_point, 4.0)
            return {"pass": status is Status.PASS}
        if task.kind == "unittest":
            return {"pass": not failures(task, program, self.box)}
        return {"pass": golden([(task.question, program)], self.box)[0]}

    def plus(self, task: Task, program: str, groups: list[list[Case]]) -> bool:
        """EvalPlus' limits: max(4 s, 4 times the reference's time) a call, 61 s for all (here more, if the reference
        itself needs more than a quarter of it)."""
        jobs = [(program, [case.call for case in group], [max(4.0, 4 * case.seconds) for case in group])
                for group in groups]
        cases = list(chain.from_iterable(groups))
        values = self.box.timed_values(jobs, total=max(61.0, 4 * sum(case.seconds for case in cases)))
        return passes(task, cases, chain.from_iterable(values))


SUITE_RUNNER = """
import sys, types, unittest
def failures(program, tests):
    module = sys.modules["__test__"] = types.ModuleType("__test__")
    exec(compile(program + "\\n" + tests, "__test__.py", "exec"), module.__dict__)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(module.TestCases).run(result)
    bad = result.failures + result.errors
    said = [f"{case}: {text.strip().splitlines()[-1]}" for case, text in bad]
    return said or ([] if result.testsRun else ["no test"])
"""


def failures(task: Task, program: str, box: Sandbox) -> list[str]:
    """What fails of a BigCodeBench suite. The suite shares its process with the program, which could forge a pass."""
    call = f"failures({program!r}, {task.row['test']!r})"
    ((value,),) = box.timed_values([(SUITE_RUNNER, [call], [120.0])], total=121)
    return value.value if value.ok and isinstance(value.value, list) else [value.error or "no result"]


# ---- commands ----


class Journal:
    """One JSON line per finished task. A command that is started again goes on behind the last complete line."""

    def __init__(self, folder: Path, args: Namespace, **more: Any):
        settings = {k: v for k, v in vars(args).items() if k not in ("run", "out", "workers", "device")} | more
        folder.mkdir(parents=True, exist_ok=True)
        self.path, known = folder / "tasks.jsonl", folder / "settings.json"
        if known.exists() and json.loads(known.read_text()) != settings:
            raise ValueError(f"{folder} holds a run with other settings ({known}): give another --out, or remove it")
        known.write_text(json.dumps(settings, indent=2))
        text = self.path.read_text() if self.path.exists() else ""
        self.path.write_text(text[: text.rfind("\n") + 1])  # without a line that was cut
        self.rows = {row["task_id"]: row for row in map(json.loads, self.path.read_text().splitlines())}

    def complete(self, tasks: Sequence[Task], batch: int, work: Callable[[int, list[Task]], list[dict]],
                 shown: Sequence[str]) -> list[dict]:
        """A record for every task: work(seed, tasks of a batch) makes those that are not there yet. The batches are
        always the same ones, so an interrupted run ends with the records of an uninterrupted one."""
        with tqdm(total=len(tasks), unit="task", desc=self.path.parent.name, disable=None) as bar:
            for start in range(0, len(tasks), batch):
                part = list(tasks[start : start + batch])
                if any(task.question.id not in self.rows for task in part):
                    made = {t.question.id: row for t, row in zip(part, work(start, part), strict=True)}
                    new = {name: {"task_id": name, **row} for name, row in made.items() if name not in self.rows}
                    with self.path.open("a") as file:
                        file.writelines(json.dumps(row) + "\n" for row in new.values())
                    self.rows |= new
                done = [self.rows[task.question.id] for task in tasks[: start + batch]]
                bar.set_postfix({name: f"{rate(done, name):.1f}" for name in shown})
                bar.update(len(part))
        return [self.rows[task.question.id] for task in tasks]


def rate(rows: Sequence[dict], name: str) -> float:
    """Percent of what the records say under a name: one bool each, or a list of them."""
    return percent(percent(row[name]) / 100 if isinstance(row[name], list | tuple) else row[name] for row in rows)


def finish(args: Namespace, started: float, **result: Any) -> None:
    result["seconds"] = round(time.monotonic() - started, 1)  # of this start of the command
    (Path(args.out) / "results.json").write_text(json.dumps(result, indent=2))
    print(json.dumps(result, indent=2))


@lru_cache(maxsize=1)  # best-of has up to four models: one is in memory at a time
def load_model(path: str, device: str, dtype: str) -> tuple[Qwen2, Tokenizer]:
    return Qwen2.from_pretrained(path, dtype=getattr(torch, dtype), device=device), Tokenizer.from_pretrained(path)


def ask(path: str, args: Namespace, chats: Sequence[list[dict]], n: int, seed: int) -> list[list[str]]:
    if path is None:
        raise ValueError("give --model, or --samples")
    return replies(*load_model(path, args.device, args.dtype), chats, n, top_p=args.top_p, seed=args.seed + seed,
                   temperature=0.0 if args.greedy else args.temperature, max_new_tokens=args.max_new_tokens)


def open_box(args: Namespace, tasks: Sequence[Task]) -> Sandbox:
    """Benchmarks with limits of their own get EvalPlus' 4 GiB; all others have the limits of training."""
    if not tasks:
        raise ValueError("no task is left: --limit is 0, or the libraries that the tasks need are not installed")
    own_limits = tasks[0].kind in ("plus", "unittest")
    return Sandbox(args.workers, timeout=10.0, memory_mb=4096) if own_limits else Sandbox(args.workers)


def program_of(task: Task, reply: str) -> str:
    """The solution in a reply; for BigCodeBench in its calibrated form: the prompt's signature with an empty body, then
    what the model wrote."""
    if task.kind == "unittest":
        return f"{task.row['prompt_wo_doc']}\n    pass\n{data.extract_program(reply, task.question.entry_point)}"
    return data.make_solution(task.question, reply)


def given_solutions(path: str, tasks: Sequence[Task]) -> dict[str, list[str]]:
    """Task id -> what a samples file has for it; ValueError if there is a task without any."""
    found = defaultdict(list)
    for number, line in enumerate(Path(path).read_text().split("\n"), start=1):
        try:
            row = json.loads(line or "null")
            if row is not None:
                found[row["task_id"]].append(row["solution"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}: a sample has a task_id and a solution") from None
    missing = [task.question.id for task in tasks if task.question.id not in found]
    if missing:
        raise ValueError(f"{path} has no sample of {len(missing)} tasks ({missing[0]} ...): --limit cuts the data")
    return found


def sample_programs(model: str, tasks: Sequence[Task], judge: Judge, args: Namespace, folder: Path) -> list[dict]:
    """Per task its programs under "solutions", and for each column whether each passes (it and the columns before).

    "runs": False where even the reference fails, as it needs what the sandbox refuses (processes, network).
    """
    given = given_solutions(args.samples, tasks) if getattr(args, "samples", None) else {}

    def work(seed: int, part: list[Task]) -> list[dict]:
        groups = [given[t.question.id] for t in part if given]
        if not given:
            n = 1 if args.greedy else args.n  # all greedy ones are the same
            texts = ask(model, args, [data.coder_messages(t.question, args.style) for t in part], n, seed)
            groups = [[program_of(t, text) for text in group] for t, group in zip(part, texts, strict=True)]
        verdicts = iter(judge([(t, program) for t, group in zip(part, groups, strict=True) for program in group]))
        alone = judge([(t, t.question.reference) for t in part if t.kind == "unittest"])
        runs = [verdict["pass"] for verdict in alone] or [True] * len(part)
        rows = []
        for group, run in zip(groups, runs, strict=True):
            found = [list(verdict.values()) for verdict in islice(verdicts, len(group))]
            columns = {name: [all(values[: i + 1]) for values in found] for i, name in enumerate(judge.columns)}
            rows.append({"solutions": group, **columns, "runs": run})
        return rows

    return Journal(folder, args, model=model).complete(tasks, args.batch, work, judge.columns)


def run_code(args: Namespace) -> None:
    """avg@n and pass@k of a coder's programs, sampled or taken from --samples.

    Writes OUT/samples.jsonl, which evalplus.evaluate reads; OUT/tasks.jsonl with the verdicts; OUT/results.json.
    BigCodeBench tasks whose libraries are not installed, or whose reference fails here, are skipped and counted.
    """
    started, everything = time.monotonic(), load_tasks(args.data, args.limit)
    tasks = [task for task in everything if all(map(find_spec, task.libraries))]
    with open_box(args, tasks) as box:
        judge = Judge(tasks, box)
        rows = sample_programs(args.model, tasks, judge, args, Path(args.out))
    samples = [json.dumps({"task_id": row["task_id"], "solution": text}) for row in rows for text in row["solutions"]]
    (Path(args.out) / "samples.jsonl").write_text("\n".join(samples) + "\n")
    rows = [row for row in rows if row["runs"]]
    if not rows:
        raise ValueError("no task is left: the references of all need what the sandbox refuses")
    n = min(len(row["solutions"]) for row in rows)
    scores = {c: {"avg": rate(rows, c), **{f"pass@{k}": percent(pass_at_k(len(row[c]), sum(row[c]), k) for row in rows)
                                           for k in range(1, n + 1)}} for c in judge.columns}
    finish(args, started, tasks=len(rows), skipped=len(everything) - len(rows), n=n, **scores)


ANOTHER = "Write another test for `{}`, different from the ones before, that reaches other statements and branches."


def sample_suites(model: str, questions: Sequence[Question], args: Namespace, seed: int,
                  at_once: bool) -> list[tuple[Suite, list[str]]]:
    """Per question a suite of args.asserts asserts, and the replies that it was read from: all asked for at once, as
    training does, or one in each round, the earlier ones in sight, as UnLeakedTestBench does."""
    k = args.asserts if at_once else 1
    chats = [data.tester_messages(q, None if args.black_box else q.reference, k, args.style) for q in questions]
    found: list[tuple[Suite, list[str]]] = [([], []) for _ in questions]
    for turn in range(args.asserts // k):
        texts = ask(model, args, chats, 1, seed * args.asserts + turn)
        for question, chat, (suite, said), (text,) in zip(questions, chats, found, texts, strict=True):
            said.append(text)
            suite += data.extract_tests(text, question.entry_point, k) or [None]
            chat += [{"role": "assistant", "content": text},
                     {"role": "user", "content": ANOTHER.format(question.entry_point)}]
    return found


def run_tests(args: Namespace) -> None:
    """pass@k, mut@k, Mul and coverage of a tester's suites on functions with ground truth.

    As UnLeakedTestBench counts: pass@k is the share of the first k asserts that hold as written. mut@k is the share of
    mutants that the first k asserts kill, its mean over those functions only whose asserts all hold (its code runs
    mutants where the whole suite passes). Mul = pass@K mut@K / 100. "kill" is ours: over all functions, by the valid
    asserts with the ground truth's values.
    """
    started, tasks = time.monotonic(), load_tasks(args.data, args.limit)
    with Sandbox(args.workers) as box:

        def work(seed: int, part: list[Task]) -> list[dict]:
            questions = [task.question for task in part]
            suites, said = zip(*sample_suites(args.model, questions, args, seed, args.suite), strict=True)
            scores = score_suites(questions, [[suite] for suite in suites], args.asserts, box, limit=None)
            covered = [coverage_of(q, suite, box) for q, suite in zip(questions, suites, strict=True)]
            return [{**asdict(score), "kill": score.kill, "asserts": [test and test.source for test in suite],
                     "covered": counts, "replies": texts}
                    for (score,), suite, counts, texts in zip(scores, suites, covered, said, strict=True)]

        rows = Journal(Path(args.out), args).complete(tasks, args.batch, work, ("right", "kill"))
    whole = [row for row in rows if all(row["right"])]
    result = {"functions": len(rows), "asked": "at once" if args.suite else "in rounds", "black_box": args.black_box,
              "whole_suites": len(whole), "mutants": sum(row["mutants"] for row in rows),
              "killed_by_timeout": sum(row["timeouts"] for row in rows), "kill": rate(rows, "kill")}
    for k in range(1, args.asserts + 1):
        result[f"pass@{k}"] = percent(right for row in rows for right in row["right"][:k])
        result[f"mut@{k}"] = percent(row["kills"][k - 1] / row["mutants"] for row in whole if row["mutants"])
    result["mul"] = result[f"pass@{k}"] * result[f"mut@{k}"] / 100
    counts = [sum(column) for column in zip(*[row["covered"] for row in rows if row["covered"]], strict=True)]
    if counts:
        result["line_coverage"] = 100 * counts[0] / counts[1]
        result["branch_coverage"] = 100 * counts[2] / counts[3] if counts[3] else 100.0  # no branch is missed
    finish(args, started, **result)


COVERAGE = """
import contextlib, coverage, json, pathlib
def measure(program, calls):
    pathlib.Path("covered.py").write_text(program)
    meter, space = coverage.Coverage(branch=True, data_file=None, include=["*covered.py"]), {"__name__": "covered"}
    meter.start()
    exec(compile(program, "covered.py", "exec"), space)
    for call in calls:
        with contextlib.suppress(Exception):
            eval(call, space)
    meter.stop()
    meter.json_report(outfile="report.json")
    totals = json.loads(pathlib.Path("report.json").read_text())["totals"]
    return [totals[key] for key in ("covered_lines", "num_statements", "covered_branches", "num_branches")]
"""


def coverage_of(question: Question, suite: Suite, box: Sandbox) -> list[int] | None:
    """Covered lines, lines, covered branches, branches of the ground truth under a suite; None without `coverage`."""
    if not find_spec("coverage"):
        return None
    call = f"measure({question.reference!r}, {[test.call for test in suite if test]!r})"
    ((value,),) = box.timed_values([(COVERAGE, [call], [60.0])], total=60)
    return value.value if value.ok else None


def choose(programs: Sequence[str], tests: Sequence[Test], values: Sequence[Sequence[Value]],
           cure: bool = False) -> int:
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
    """Test-time collaboration: a tester's tests choose among a coder's n programs, without ground truth.

    The tester writes a suite for each program; the distinct tests of all suites are the pool. Reports the first sample,
    the chosen one and the oracle (pass@n), for every pair of a coder and a tester.
    """
    started, tasks, pairs, names = time.monotonic(), load_tasks(args.data, args.limit), {}, ("first", "best", "oracle")
    with open_box(args, tasks) as box:
        judge = Judge(tasks, box)

        def work(programs: dict[str, dict], tester: str, seed: int, part: list[Task]) -> list[dict]:
            rows = [programs[task.question.id] for task in part]
            shown = [replace(task.question, reference=program)
                     for task, row in zip(part, rows, strict=True) for program in row["solutions"]]
            suites = iter(sample_suites(tester, shown, args, seed, at_once=True))
            results = []
            for row in rows:
                own = islice(suites, len(row["solutions"]))
                pool = list(dict.fromkeys(test for suite, _ in own for test in suite if test))
                values = box.values([(program, [test.call for test in pool]) for program in row["solutions"]])
                passed = row[judge.columns[-1]]
                best = passed[choose(row["solutions"], pool, values, args.cure)]
                results.append({"first": passed[0], "best": best, "oracle": any(passed), "tests": len(pool)})
            return results

        for i, coder in enumerate(args.coder):
            rows = sample_programs(coder, tasks, judge, args, Path(args.out) / f"coder{i}")
            programs = {row["task_id"]: row for row in rows}
            for j, tester in enumerate(args.tester):
                found = Journal(Path(args.out) / f"pair{i}{j}", args).complete(
                    tasks, args.batch, partial(work, programs, tester), names)
                pairs[f"{coder} + {tester}"] = {name: rate(found, name) for name in names}
    finish(args, started, tasks=len(tasks), n=args.n, rule="cure" if args.cure else "agreement", pairs=pairs)


BROKEN = """
def _other(value):
    for kind, change in {bool: lambda v: not v, int: lambda v: v + 1, complex: lambda v: v + 1, str: lambda v: v + "x",
                         float: lambda v: 2 * v + 1 if abs(v) < 1e300 else 0.0, bytes: lambda v: v + b"x",
                         list: lambda v: [*v, "x"], tuple: lambda v: (*v, "x"), set: lambda v: {*v, "x"},
                         frozenset: lambda v: v | {"x"}, dict: lambda v: {**v, "x": "x"}}.items():
        if isinstance(value, kind):
            return change(value)
    return "x" if value is None else None
_right = NAME
def NAME(*args, **kwargs):
    return _other(_right(*args, **kwargs))
"""
RAISING = "\nNAME = lambda *args, **kwargs: 1 / 0\n"
# Oracles that take any answer: the scripts of 737, 787 and 794 compare without an assert, 797 subtracts two answers.
ANY_VALUE = ("Mbpp/164", "MBPP/164", "MBPP/737", "MBPP/787", "MBPP/794", "MBPP/797")


def run_verify(args: Namespace) -> None:
    """Every reference must pass its own tests, and a broken one must fail; else the exit status is 1.

    Broken: its value replaced by another of the same type; where any value is accepted, by an exception.
    """
    everything = load_tasks(args.data, args.limit)
    tasks = [task for task in everything if all(map(find_spec, task.libraries))]
    names = [task.question.id for task in tasks]
    references = [task.question.reference for task in tasks]
    broken = [reference + (RAISING if name in ANY_VALUE else BROKEN).replace("NAME", task.question.entry_point)
              for task, name, reference in zip(tasks, names, references, strict=True)]
    with open_box(args, tasks) as box:
        judge = Judge(tasks, box)
        passed = [all(verdict.values()) for verdict in judge(list(zip(tasks * 2, references + broken, strict=True)))]
        good, bad = passed[: len(tasks)], [not passes for passes in passed[len(tasks) :]]
        for name, count in (+judge.left_out).items():
            print(f"{name}: {count} inputs are left out, their values are too large")
        for task, reference_passes, broken_fails in zip(tasks, good, bad, strict=True):
            if not reference_passes:
                reasons = failures(task, task.question.reference, box) if task.kind == "unittest" else []
                print(f"{task.question.id}: the reference fails", *reasons[:1])
            if not broken_fails:
                print(f"{task.question.id}: the broken reference passes")
    if len(tasks) < len(everything):
        print(f"{len(everything) - len(tasks)} tasks are skipped, their libraries are not installed")
    print(f"{sum(good)} of {len(tasks)} references pass, {sum(bad)} of {len(tasks)} broken ones fail")
    sys.exit(not all(good + bad))


def run_export(args: Namespace) -> None:
    """A questions file whose tests were written by a tester, for training with static tests.

    Each tester is asked for one suite per question; the valid asserts, with the ground truth's values, become the
    question's tests. Questions without a valid one are left out.
    """
    questions, kept = [task.question for task in load_tasks(args.data, args.limit)], []
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    open(args.out, "ab").close()  # one that cannot be written is an error now, not after hours of sampling
    with Sandbox(args.workers) as box:
        for start in tqdm(range(0, len(questions), args.batch), unit="batch", disable=None):
            part = questions[start : start + args.batch]
            found = [sample_suites(tester, part, args, start, at_once=True) for tester in args.tester]
            suites = [[suite for suite, _ in group] for group in zip(*found, strict=True)]
            for question, (_, valid) in zip(part, validate(part, suites, box), strict=True):
                if valid:
                    kept.append(replace(question, tests=tuple(dict.fromkeys(test.source for test in valid.values()))))
    data.save_questions(args.out, kept)
    print(f"{sum(len(q.tests) for q in kept)} tests of {len(kept)} of {len(questions)} questions in {args.out}")


HELP = """Score coders, testers, and both together.

  eval.py code --model DIR --data MbppPlus.jsonl.gz -n 32 --temperature 0.7 --top-p 0.95     the paper's avg@32
  eval.py code --samples samples.jsonl --data HumanEvalPlus.jsonl.gz                         samples from elsewhere
  eval.py tests --model DIR --data ULT_Lite.json --greedy                                    pass@5, mut@5, Mul
  eval.py best-of --coder BASE TRAINED --tester BASE TRAINED --data HumanEvalPlus.jsonl.gz   the four pairs, n = 8
  eval.py verify --data HumanEvalPlus.jsonl.gz                                               do references pass here?
  eval.py export-tests --tester DIR --data questions.jsonl --out with_tests.jsonl

DIR: a model in Hugging Face layout. --data: EvalPlus' files, `check(candidate)` files, HumanEval, UnLeakedTestBench,
BigCodeBench, or questions of this project. `eval.py COMMAND --help` lists the options of a command.
"""
OPTIONS: dict[str, dict] = {
    "--data": dict(required=True, help="questions: .jsonl, .jsonl.gz or .json"),
    "--limit": dict(type=int, help="only the first so many tasks"),
    "--workers": dict(type=int, help="sandbox processes (default: one per core); no result depends on it"),
    "--out": dict(default="runs/eval", help="what is written; a folder with an unfinished run is gone on with"),
    "--out FILE": dict(required=True, metavar="FILE", help="the questions file to be written: .jsonl or .jsonl.gz"),
    "--style": dict(default="instruct", choices=list(data.PROMPTS), help="prompts; plain: the embedded models"),
    "--temperature": dict(type=float, default=0.7, help="default 0.7"),
    "--top-p": dict(type=float, default=0.95, help="default 0.95"),
    "--greedy": dict(action="store_true", help="temperature 0"),
    "--max-new-tokens": dict(type=int, default=1024, help="limit of a reply (default 1024)"),
    "--seed": dict(type=int, default=0, help="default 0"),
    "--batch": dict(type=int, default=8, help="tasks sampled together, lost by an interruption (default 8)"),
    "--device": dict(default="cuda" if torch.cuda.is_available() else "cpu", help="default: cuda, if it is there"),
    "--dtype": dict(default="float32", choices=["float32", "bfloat16"]),
    "--asserts": dict(type=int, default=5, help="k, the asserts of a suite (default 5)"),
    "--black-box": dict(action="store_true", help="hide the function under test"),
    "--suite": dict(action="store_true", help="ask for the k asserts at once; default: one a round"),
    "--model": dict(help="the coder, or the tester"),
    "--samples": dict(help="score this file of {task_id, solution} instead of sampling"),
    "-n": dict(type=int, default=8, help="programs per task (default 8)"),
    "--coder": dict(nargs="+", required=True, help="one or more models"),
    "--tester": dict(nargs="+", required=True, help="one or more models"),
    "--cure": dict(action="store_true", help="CURE's rule: the first with the most passes"),
}
BOX, SAMPLING, SUITES = list(OPTIONS)[:3], list(OPTIONS)[5:14], ["--asserts", "--black-box"]
COMMANDS = {
    "code": (run_code, [*BOX, "--out", *SAMPLING, "--model", "--samples", "-n"]),
    "tests": (run_tests, [*BOX, "--out", *SAMPLING, *SUITES, "--suite", "--model"]),
    "best-of": (run_best_of, [*BOX, "--out", *SAMPLING, *SUITES, "--coder", "--tester", "-n", "--cure"]),
    "verify": (run_verify, BOX),
    "export-tests": (run_export, [*BOX, "--out FILE", *SAMPLING, *SUITES, "--tester"]),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(prog="eval.py", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (run, options) in COMMANDS.items():
        sub = commands.add_parser(name, help=run.__doc__.split("\n")[0], description=run.__doc__)
        for option in options:
            sub.add_argument(option.split()[0], **OPTIONS[option])
        sub.set_defaults(run=run)
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except (ValueError, OSError, SandboxError) as error:
        sys.exit(f"eval.py: {error}")


if __name__ == "__main__":
    main()
