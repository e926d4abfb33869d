"""Evaluation: pass@k of a Code LLM, quality of a Test LLM, and their work together.

Of the paper this keeps the measures: pass@k and avg@n of programs, accuracy, mutation score and Mul of tests, best-of-N.
Every verdict is made by the sandbox or on plain values that came out of it; this module runs no foreign code.
All rates are percentages. `mean` of nothing is 0.0.

Run:  python eval.py --help
"""

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from model import Qwen2, Tokenizer, generate
from sandbox import Sandbox, Status
from tasks import Question, Test, coder_messages, extract_tests, holds, make_solution, relabel, tester_messages

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
