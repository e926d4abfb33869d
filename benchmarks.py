"""How published benchmarks judge a program, and mutants of programs.

Of EvalPlus (0.3.1) the inputs, oracles, tolerances and limits, of UnLeakedTestBench the imports, of
cosmic-ray (8.7) the operators; tests/agreement.py compares. Verdicts are made here, on plain values
that came out of the sandbox, except BigCodeBench's: its suite shares a process with the program,
which could forge a pass. It is for evaluation only, never for rewards.
"""

import ast
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

import tasks as data
from asserts import Opaque, parse_assert
from sandbox import Sandbox, Status, Value, data_call
from tasks import Question

MAX_MUTANTS = 40  # made for a question that brings none, evenly spaced over all that there are
parse = partial(ast.parse, filename="<reply>")  # `tasks` silences the parser's remarks on this name

# ---- mutants ----

BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.RShift: ">>", ast.LShift: "<<", ast.BitOr: "|", ast.BitAnd: "&",
    ast.BitXor: "^",
}
ORDER = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
COMPARE = {**ORDER, ast.Is: "is", ast.IsNot: "is not"}
BESIDE_NONE = {"==": ["is not"], "!=": ["is"], "is": ["is not"], "is not": ["is"]}
UNARY = {ast.UAdd: "+", ast.USub: "-", ast.Invert: "~", ast.Not: "not"}
GAP = r"(?:\s|\)|\\|#[^\n]*\n)*"  # what may stand between an operand and its operator


class Edit(NamedTuple):
    """One change of a source: the bytes from start to end become `new`."""

    operator: str
    start: int  # -1: there is no such place
    end: int
    new: str


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
        """Where `word` stands behind a node and a gap; (-1, -1) if it does not, as in some
        f-strings before 3.12."""
        pattern = re.compile(f"{GAP}({re.escape(word)})".encode())
        found = pattern.match(self.text, self.end(node))
        return found.span(1) if found else (-1, -1)


def compared(old: str | None, right: ast.expr) -> Iterable[str]:
    """What a comparison operator becomes in front of None, a number, or anything else."""
    constant = right.value if isinstance(right, ast.Constant) else ""
    if constant is None:
        return BESIDE_NONE.get(old, ())
    if old is None:
        return ()
    return (ORDER if type(constant) in (int, float, complex) else COMPARE).values()


def edits(node: ast.AST, at: Places) -> Iterator[Edit]:
    """Every edit of a node that makes a mutant."""
    start, end = (at.start(node), at.end(node)) if hasattr(node, "lineno") else (0, 0)
    match node:
        case ast.BinOp(left=left, op=op) if type(op) in BINARY:
            old = BINARY[type(op)]
            for new in BINARY.values():
                yield Edit(f"binary {old} {new}", *at.after(left, old), new)
        case ast.BoolOp(op=op, values=values):
            old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            for left in values[:-1]:
                yield Edit(f"{old} {new}", *at.after(left, old), new)
        case ast.Compare(left=leftmost, ops=ops, comparators=rights):
            for left, op, right in zip([leftmost, *rights], ops, rights, strict=False):
                old = COMPARE.get(type(op))
                for new in compared(old, right):
                    yield Edit(f"comparison {old} {new}", *at.after(left, old), f" {new}")
        case ast.UnaryOp(op=op):
            old = UNARY[type(op)]
            for new in [""] if old == "not" else ["+", "-", "~", "not "] + [""] * (old != "+"):
                yield Edit(f"unary {old} {new.strip()}", start, start + len(old), new)
        case ast.Constant(value=bool() as value):
            yield Edit(f"{value} {not value}", start, end, str(not value))
        case ast.Constant(value=int() | float() | complex() as value):
            yield Edit("number", start, end, f" {value + 1}")
            yield Edit("number", start, end, f" {value - 1}")
        case ast.Break():
            yield Edit("break continue", start, end, "continue")
        case ast.Continue():
            yield Edit("continue break", start, end, "break")
        case ast.ExceptHandler(type=ast.Name() | ast.Tuple() as kind):
            for name in kind.elts if isinstance(kind, ast.Tuple) else [kind]:
                yield Edit("exception", at.start(name), at.end(name), "CosmicRayTestingException")
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            for decorator in node.decorator_list:
                sign = at.text.rindex(b"@", 0, at.start(decorator))
                yield Edit("decorator", sign, at.end(decorator), "")
        case ast.If() | ast.While() | ast.Assert():
            word = type(node).__name__.lower()
            if at.text.startswith(word.encode(), start):  # an elif is no statement of its own here
                yield Edit("not", start + len(word), start + len(word), " not")
        case ast.IfExp(body=body):
            place = at.after(body, "if")[1]
            yield Edit("not", place, place, " not")
        case ast.For(target=target, iter=items) | ast.AsyncFor(target=target, iter=items):
            yield Edit("zero iterations", at.after(target, "in")[1], at.after(items, ":")[0], " []")


def mutants(source: str) -> dict[str, list[str]]:
    """Operator name -> distinct mutants of a program, one edit each, as `ast.unparse` writes them.

    As in cosmic-ray an edit changes the text: `a + b * c` with `**` for `+` is `(a ** b) * c`.
    Mutants that are no Python or equal to the program are left out. SyntaxError if the program is
    no Python.
    """
    tree = parse(source)
    at, original = Places(source), ast.unparse(tree)
    found: dict[str, dict[str, None]] = {}
    for node in ast.walk(tree):
        for edit in edits(node, at):
            text = at.text[: edit.start] + edit.new.encode() + at.text[edit.end :]
            try:
                mutant = ast.unparse(parse(text))
            except (SyntaxError, ValueError):
                continue
            if edit.start >= 0 and mutant != original:
                found.setdefault(edit.operator, {})[mutant] = None
    return {operator: list(group) for operator, group in sorted(found.items())}


def mutants_of(question: Question, limit: int | None = MAX_MUTANTS) -> list[str]:
    """The mutants that a question brings, else at most `limit` of those of its reference."""
    if question.hidden and question.hidden.mutants:
        return list(question.hidden.mutants)
    made = list(dict.fromkeys(chain.from_iterable(mutants(question.reference).values())))
    count = min(len(made), limit or len(made))
    return [made[i * len(made) // count] for i in range(count)]


# ---- tasks ----


@dataclass(frozen=True)
class Task:
    """A question with its record in the file, which says how a program is judged."""

    question: Question
    row: dict

    @property
    def kind(self) -> str:
        """plus (EvalPlus' inputs), unittest (BigCodeBench), asserts (all others)."""
        if "base_input" in self.row:
            return "plus"
        return "unittest" if "libs" in self.row else "asserts"

    @property
    def only_script(self) -> bool:
        """Whether a `check(candidate)` of which no assert can be read is all that judges it."""
        script = "def check(" in self.row.get("test", "")
        return self.kind == "asserts" and script and not self.question.tests

    @property
    def number(self) -> str:
        """How the tables below name MBPP tasks; tasks of other benchmarks keep their whole id."""
        return self.question.id.removeprefix("Mbpp/")

    @property
    def libraries(self) -> list[str]:
        """What a BigCodeBench task and its suite import; "libs" may be the text of a list."""
        libs = self.row.get("libs", [])
        named = ast.literal_eval(libs) if isinstance(libs, str) else libs
        imports = r"^\s*(?:import|from)\s+(\w+)"
        return [*named, *re.findall(imports, self.row["test"], re.M)] if libs else []


def load_tasks(path: str, limit: int | None = None) -> list[Task]:
    """The first `limit` tasks of a questions file; functions of ULT with their imports."""
    tasks = []
    for question, row in data.load_records(path)[:limit]:
        tasks.append(Task(with_imports(question) if "func_name" in row else question, row))
    return tasks


def load_judged(path: str, limit: int | None = None) -> tuple[list[Task], int]:
    """The tasks of `load_tasks` that can be judged here, and the number of the others: they need
    libraries that are not installed, or have no assert that is understood. ValueError if none is
    left, or if the file mixes kinds of tasks."""
    tasks = load_tasks(path, limit)
    found = [t for t in tasks if not t.only_script and all(map(find_spec, t.libraries))]
    if not found and tasks[0].only_script:
        raise ValueError(
            f"{path} has only check(candidate) scripts, which are not run here: take EvalPlus' own "
            "HumanEvalPlus.jsonl.gz or MbppPlus.jsonl.gz"
        )
    if not found:
        raise ValueError(f"{path}: the libraries that its tasks need are not installed")
    if len({task.kind for task in found}) > 1:
        raise ValueError(f"{path} mixes tasks of several benchmarks: give each a file of its own")
    if found[0].kind == "asserts":
        kept = {q.id: q for q in understood(path, list(map(all_asserts, found)))}
        found = [replace(t, question=kept[t.question.id]) for t in found if t.question.id in kept]
    if not found:
        raise ValueError(f"{path} has no question with golden tests that are understood")
    return found, len(tasks) - len(found)


def all_asserts(task: Task) -> Question:
    """The question with those asserts of its script too that are not understood, to count them."""
    question = task.question
    if "canonical_solution" not in task.row:
        return question
    return replace(question, tests=tuple(data.script_asserts(task.row, question.entry_point)))


MODULES = "os re math numpy random string warnings datetime traceback".split()
TYPES = "List Dict Any Optional Union Tuple Set FrozenSet Sequence Iterable Generator Callable"
ULT_IMPORTS = {name: f"import {name}" for name in MODULES}
ULT_IMPORTS |= {"np": "import numpy as np", "pd": "import pandas as pd"}
ULT_IMPORTS |= {name: f"from typing import {name}" for name in TYPES.split()}


def with_imports(question: Question) -> Question:
    """UnLeakedTestBench runs functions behind ULT_IMPORTS: here those that are used."""
    nodes = list(ast.walk(parse(question.reference)))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = {alias.asname or alias.name for node in imports for alias in node.names}
    used = {node.id for node in nodes if isinstance(node, ast.Name)} - bound
    needed = [line for name, line in ULT_IMPORTS.items() if name in used]
    return replace(question, reference="\n".join([*needed, question.reference]))


# ---- EvalPlus: inputs, expected values, verdict ----


def tuples(value: Any) -> Any:
    return tuple(tuples(item) for item in value) if isinstance(value, list) else value


def rows_of(value: list) -> list[tuple]:
    return [tuple(item) for item in value]


# MBPP+ tasks whose arguments JSON cannot say: it has no tuples, sets and complex numbers.
CONVERSIONS = {
    "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809":
        partial(map, tuple),
    "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780": partial(map, rows_of),
    "75 413 444 753": lambda args: [rows_of(args[0]), *args[1:]],
    "106 750": lambda args: [args[0], tuple(args[1])],
    "115": lambda args: [[set(x) if isinstance(x, list) and x else {} for x in args[0]]],
    "124": lambda args: [float(args[0]), complex(args[1])],
    "250 307 405 446 617 720 763 808": lambda args: [tuple(args[0]), *args[1:]],
    "259 401 445": lambda args: [tuple(rows_of(rows)) for rows in args],
    "278": lambda args: [tuple(tuple(x) if isinstance(x, list) else x for x in args[0])],
    "722": lambda args: [{key: tuple(value) for key, value in args[0].items()}, *args[1:]],
    "252": partial(map, complex),
    "580 615 791": tuples,
}
ANY_ORDER = "2 7 111 140 232 249 579 769".split()  # MBPP: two lists are compared as sets
NOT_NONE = "737 787 794".split()  # MBPP: a match object; only whether it is None counts
ALSO_RIGHT = {  # MBPP: tasks with a second answer; 164 takes any
    "164": lambda out, args, atol: True,
    "295": lambda out, args, atol: out == 0,
    "558": lambda out, args, atol: out == digit_distance(*map(str, args)),
    "581": lambda out, args, atol: abs(out - pyramid_surface(*args)) <= atol,
}


def digit_distance(a: str, b: str) -> int:
    """Of numbers padded to one width."""
    width = max(len(a), len(b))
    digits = zip(a.zfill(width), b.zfill(width), strict=True)
    return sum(abs(int(x) - int(y)) for x, y in digits)


def pyramid_surface(edge: float, height: float) -> int:
    """With the height measured from the centre of the base, not along a side."""
    return round(edge**2 + 2 * edge * math.hypot(edge / 2, height))


TIMED = """
from time import perf_counter as _clock
def _timed(*args):
    start = _clock()
    value = NAME(*args)
    return _clock() - start, value
"""


@dataclass(frozen=True)
class Case:
    """One input of an EvalPlus task, with what the canonical solution made of it."""

    args: list
    expected: Any
    seconds: float  # that the canonical solution took


def plus_inputs(task: Task, part: str) -> list[list]:
    """The arguments of each "base" or "plus" call of a task, as EvalPlus converts them."""
    convert = next((f for ids, f in CONVERSIONS.items() if task.number in ids.split()), list)
    return [list(convert(args)) for args in task.row[f"{part}_input"]]


def plus_cases(task: Task, part: str, box: Sandbox) -> list[list[Case]]:
    """The "base" or "plus" cases of a task, expected values and times from the canonical solution.

    In groups, each for one process: the values of one have a limit in all, those past it come from
    a further one. An input without a value is left out: five of MBPP/255, 30 MB to 1 GB each.
    """
    inputs = plus_inputs(task, part)
    program = task.question.reference + TIMED.replace("NAME", task.question.entry_point)
    groups, left = [], range(len(inputs))
    while left:
        timed = [data_call("_timed", inputs[i]) for i in left]
        limits = [30.0] * len(timed)  # EvalPlus has none for the reference
        (values,) = box.timed_values([(program, timed, limits)], total=3600)
        group, again = [], []
        for i, value in zip(left, values, strict=True):
            if value.ok and type(value.value) is tuple:
                seconds, out = value.value
                expected = out is not None if task.number in NOT_NONE else out
                group.append(Case(inputs[i], expected, seconds))
            elif i != left[0] and (isinstance(value.value, Opaque) or value.error == "not_run"):
                again.append(i)  # too large with those before it, or behind a hang
        groups += [group] if group else []
        left = again
    return groups


def close(out: Any, expected: Any, atol: float) -> bool:
    """numpy's allclose for values of one type and, of sequences, one length; broadcasting within
    bounds."""
    is_sequence = isinstance(out, list | tuple)
    if type(out) is not type(expected) or (is_sequence and len(out) != len(expected)):
        return False
    out, expected = np.asarray(out), np.asarray(expected)
    if np.broadcast(out, expected).size >= 10**8:
        return False
    with np.errstate(all="ignore"):
        return bool(np.allclose(out, expected, rtol=1e-07, atol=atol))


def accepts(number: str, case: Case, out: Any, atol: float) -> bool:
    """Whether a value is right for a case by `==`, or by the task's own oracle."""
    if number == "HumanEval/32":  # a root of the polynomial, wherever
        return abs(sum(c * math.pow(out, i) for i, c in enumerate(*case.args))) <= atol
    if number in ANY_ORDER:  # bounded: hashes can be made to collide
        return len(out) < 3000 and set(out) == set(case.expected)
    if number in NOT_NONE:
        return (out if type(out) is bool else out is not None) == case.expected
    if out == case.expected:
        return True
    return number in ALSO_RIGHT and ALSO_RIGHT[number](out, case.args, atol)


def passes(task: Task, cases: Iterable[Case], values: Iterable[Value]) -> bool:
    """EvalPlus' verdict on what a program returned for all cases of one part: `accepts`, or `close`
    within atol, which rises from 0 to 1e-6 for good with the first expected value of floats."""
    atol = task.row["atol"]
    for case, value in zip(cases, values, strict=True):
        expected = case.expected
        try:
            right = value.ok and accepts(task.number, case, value.value, atol)
            if task.number != "HumanEval/32":
                items = expected if type(expected) in (list, tuple) else [expected]
                if atol == 0 and items and all(isinstance(item, float) for item in items):
                    atol = 1e-6
                right = right or (atol != 0 and close(value.value, expected, atol))
        except Exception:  # whatever a value of the wrong shape leads to
            return False
        if not (value.ok and right):
            return False
    return True


def seconds_for(case: Case) -> float:
    """EvalPlus' limit of a call, 1 s or 4 times what the reference took; and up to 3 s for a large
    value to leave its process, which EvalPlus does not ask of it."""
    items = len(case.expected) if isinstance(case.expected, Sized) else 0
    return max(1.0, 4 * case.seconds) + 3e-6 * min(items, 1_000_000)


def passes_part(task: Task, program: str, groups: list[list[Case]], box: Sandbox) -> bool:
    """`passes` for a program under `seconds_for` each call, and EvalPlus' 61 s for all (here more,
    if the reference needs more than a quarter of it)."""
    cases = list(chain.from_iterable(groups))
    jobs = []
    for group in groups:
        limits = list(map(seconds_for, group))
        calls = [data_call(task.question.entry_point, case.args) for case in group]
        jobs.append((program, calls, limits))
    total = max(61.0, 4 * sum(case.seconds for case in cases))
    return passes(task, cases, chain.from_iterable(box.timed_values(jobs, total=total)))


# ---- BigCodeBench ----

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
    """What fails of a BigCodeBench suite."""
    call = f"failures({program!r}, {task.row['test']!r})"
    ((value,),) = box.timed_values([(SUITE_RUNNER, [call], [120.0])], total=121)
    if value.ok and isinstance(value.value, list):
        return value.value
    return [value.error or "no result"]


def program_of(task: Task, reply: str) -> str:
    """The solution in a reply; for BigCodeBench "calibrated", as there: the prompt's signature with
    an empty body, then what the model wrote."""
    if task.kind == "unittest":
        written = data.extract_program(reply, task.question.entry_point)
        return f"{task.row['prompt_wo_doc']}\n    pass\n{written}"
    return data.make_solution(task.question, reply)


# ---- verdicts ----


def understood(path: str, questions: Sequence[Question]) -> list[Question]:
    """The questions of a file with those golden asserts that are understood, those with none left
    out; aloud. No program passes an assert that is not: it would be a failure of every model."""
    found, lost = [], 0
    for question in questions:
        own, hidden = question.golden, question.hidden
        kept = tuple(text for text in own if parse_assert(text, question.entry_point))
        lost += len(own) - len(kept)
        if kept and hidden:
            found.append(replace(question, hidden=replace(hidden, golden=kept)))
        elif kept:
            found.append(replace(question, tests=kept))
    if skipped := len(questions) - len(found):
        text = f"{skipped} of {len(questions)} questions have no golden tests"
        print(f"{path}: {text} that are understood, and are skipped", file=sys.stderr)
    if lost:
        text = f"{path}: {lost} golden tests are of a form that is not understood, and left out"
        print(text, file=sys.stderr)
    return found


def golden(pairs: Sequence[tuple[Question, str]], box: Sandbox) -> list[bool]:
    """Whether each program loads and passes every hidden assert of its question, or where there is
    nothing hidden, every test. Equal programs for a question run once."""
    jobs = {}
    for question, program in pairs:
        if not question.golden:
            raise ValueError(f"question {question.id} has no tests to score a program with")
        jobs[question.id, program] = program, question.entry_point, question.golden
    verdicts = dict(zip(jobs, box.judge(jobs.values()), strict=True))
    found = [verdicts[question.id, program] for question, program in pairs]
    return [verdict.loads and set(verdict.statuses) == {Status.PASS} for verdict in found]


def open_box(kind: str, workers: int | None) -> Sandbox:
    """Benchmarks with limits of their own get EvalPlus' 4 GiB; others the limits of training."""
    if kind == "asserts":
        return Sandbox(workers)
    return Sandbox(workers, timeout=10.0, memory_mb=4096)


class Judge:
    """Verdicts on programs for tasks of one kind: {"pass": passed}; for EvalPlus' tasks "base" and
    "plus", which means both inputs, as in its tables: a program that fails the base inputs is not
    run on more."""

    def __init__(self, tasks: Sequence[Task], box: Sandbox):
        self.kind, self.box = tasks[0].kind, box
        self.columns = ("base", "plus") if self.kind == "plus" else ("pass",)
        self.left_out: Counter[str] = Counter()  # task id: inputs that no program is called with
        self.known: dict[tuple[str, str], list[list[Case]]] = {}
        self.locks = {(task.question.id, part): Lock() for task in tasks for part in self.columns}

    def __call__(self, jobs: Sequence[tuple[Task, str]]) -> list[dict[str, bool]]:
        """[(task, program), ...]; equal jobs run once."""
        if self.kind == "asserts":
            pairs = [(task.question, program) for task, program in jobs]
            return [{"pass": passed} for passed in golden(pairs, self.box)]
        distinct = {(task.question.id, program): task for task, program in jobs}
        programs = [program for _, program in distinct]
        with ThreadPoolExecutor(2 * self.box.workers) as pool:  # some compare, some wait
            found = pool.map(self.one, distinct.values(), programs)
            verdicts, last = {}, dict(iter(distinct))  # last: task id -> its last program
            for (name, program), verdict in zip(distinct, found, strict=True):
                verdicts[name, program] = verdict
                if last[name] == program:  # all cases of a benchmark would take gigabytes
                    for part in self.columns:
                        self.known.pop((name, part), None)
        return [verdicts[task.question.id, program] for task, program in jobs]

    def one(self, task: Task, program: str) -> dict[str, bool]:
        if self.kind == "unittest":
            return {"pass": not failures(task, program, self.box)}
        base = passes_part(task, program, self.cases(task, "base"), self.box)
        plus = base and passes_part(task, program, self.cases(task, "plus"), self.box)
        return {"base": base, "plus": plus}

    def cases(self, task: Task, part: str) -> list[list[Case]]:
        """`plus_cases`, made by the first thread that asks; the others wait for it."""
        key = task.question.id, part
        with self.locks[key]:
            if key not in self.known:
                groups = self.known[key] = plus_cases(task, part, self.box)
                self.left_out[key[0]] += len(task.row[f"{part}_input"]) - sum(map(len, groups))
            return self.known[key]
