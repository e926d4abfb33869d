"""Questions, prompts, and the way from a model's reply to a program or to tests.

Of the paper: the task (question, ground truth, suites of asserts). Ours: which asserts have a meaning, and how values
compare. A reply is only ever read: programs are cut out of it as text, asserts are parsed with `ast` and become `Test`
records by an evaluator that knows literals and a short list of built-ins, within bounds. Nothing is executed.
Code replies: the whole program, fenced or bare, with or without the prompt's imports and helpers; or the body of the
function alone: indented, flush left, or with only its first line flush left.
Run by the other modules:  questions = load_questions("questions.jsonl.gz")
"""

import ast
import cmath
import gzip
import json
import math
import operator
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

MAX_SOURCE = 50_000  # characters of a value's source; nodes and characters of a value that a reply builds
MAX_VALUE = 20_000_000  # nodes and characters of a value that came back
FAULTS = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError, MemoryError)  # what a bad value raises
warnings.filterwarnings("ignore", module="<reply>")  # the parser's remarks on "\d" in a model's string


@dataclass(frozen=True)
class Hidden:
    """What only the evaluation reads: asserts with the edge cases, wrong programs, name of the family and the split."""

    golden: tuple[str, ...]
    mutants: tuple[str, ...]
    family: str
    split: str


@dataclass(frozen=True)
class Question:
    """One task: `reference` is the ground-truth program, `tests` are the assert sources that training may read."""

    id: str
    prompt: str
    entry_point: str
    reference: str
    tests: tuple[str, ...]
    hidden: Hidden | None = None


@dataclass(frozen=True)
class Test:
    """One assert in parts; asserts that say the same are equal records, whatever their spelling was.

    call, expected: source with literals only (and `range` in the call). tolerance: abs(value - expected) < tolerance.
    via: applied to the value in order: names of VIA, "round(2)", "['index']"; last maybe "bool" (bare, `not`) or "is".
    """

    __test__ = False  # pytest: not a class of tests
    call: str
    expected: str
    via: tuple[str, ...] = ()
    tolerance: float | None = None

    @property
    def source(self) -> str:
        """The assert as text: Test("f(2)", "False", ("[0]", "bool")).source -> "assert not f(2)[0]"."""
        text, form = self.call, self.via[-1] if self.via else ""
        for step in self.via:
            if step not in ("bool", "is"):
                name, _, digits = step.partition("(")
                text = text + step if step[0] == "[" else f"{name}({text}, {digits}" if digits else f"{name}({text})"
        if form == "bool":
            return f"assert {text}" if self.expected == "True" else f"assert not {text}"
        if self.tolerance is not None:
            return f"assert abs({text} - {self.expected}) < {self.tolerance!r}"
        return f"assert {text} {'is' if form == 'is' else '=='} {self.expected}"


# ---- plain values: size, source, comparison ----
SETS, SEQUENCES, NUMBERS = (set, frozenset), (list, tuple), (bool, int, float, complex)
PLAIN = {type(None), str, bytes, dict, *SETS, *SEQUENCES, *NUMBERS}


def plain_size(value: Any, limit: int = MAX_VALUE, types: Iterable[type] = PLAIN) -> int:
    """Nodes and characters of a value of exact built-in types; ValueError for other types or above the limit."""
    size, todo = 0, [value]
    while todo:
        item = todo.pop()
        kind = type(item)
        if kind not in types:
            raise ValueError(f"a {kind.__name__} is not plain here")
        if kind in SETS or kind in SEQUENCES or kind is dict:
            todo.extend([*item, *item.values()] if kind is dict else item)
        size += 1 + (len(item) if kind in (str, bytes) else item.bit_length() // 4 if kind is int else 0)
        if size > limit:
            raise ValueError(f"a value of more than {limit} items and characters")
    return size


def to_source(value: Any) -> str:
    """Literal text of a plain value, one text for equal sets; ValueError if it is not plain, too long or too deep.

    Beyond Python's literals: float('inf'), float('nan'), set(), frozenset({1}), complex(1.0, 2.0).
    """
    plain_size(value, MAX_SOURCE)
    text = _source(value, depth=60)  # the parser stops at 200 open brackets
    if len(text) > MAX_SOURCE:
        raise ValueError(f"a source of {len(text)} characters, more than {MAX_SOURCE}")
    return text


def _source(value: Any, depth: int) -> str:
    kind = type(value)
    if depth == 0:
        raise ValueError("a value nested too deeply")
    if kind is float and not math.isfinite(value):
        return f"float('{value}')"
    if kind is complex:
        return f"complex({_source(value.real, depth)}, {_source(value.imag, depth)})"
    if kind is int and value.bit_length() > 2000:
        return hex(value)  # decimal text has a digit limit
    if kind is dict:
        return "{" + ", ".join(f"{_source(k, depth - 1)}: {_source(v, depth - 1)}" for k, v in value.items()) + "}"
    if kind not in SETS and kind not in SEQUENCES:
        return repr(value)
    items = [_source(item, depth - 1) for item in value]
    if kind in SEQUENCES:
        text = ", ".join(items) + ("," if kind is tuple and len(items) == 1 else "")
        return f"[{text}]" if kind is list else f"({text})"
    text = "{" + ", ".join(sorted(items)) + "}" if items else ""
    return (text or "set()") if kind is set else f"frozenset({text})"


def from_source(text: str) -> Any:
    """The value that `to_source` wrote; ValueError for anything but literals and the calls named there."""
    try:
        scope = Scope({"float": float, "complex": complex, "set": set, "frozenset": frozenset})
        return scope.value(ast.parse(text.strip(), "<reply>", "eval").body)
    except (SyntaxError, *FAULTS):
        raise ValueError(f"not the source of a plain value: {text[:80]!r}") from None


def equal(a: Any, b: Any) -> bool:
    """`==` of plain values, but floats are close within 1e-6 (relative or absolute) and NaN is NaN, nested too.

    Anything not of exact built-in types is equal to nothing, and its own methods are never called.
    """
    try:
        plain_size(a)
        plain_size(b)
        return _equal(a, b)
    except FAULTS:
        return False


def _equal(a: Any, b: Any) -> bool:
    todo = [(a, b)]  # a stack of our own: no depth is too much
    while todo:
        a, b = todo.pop()
        kind = type(a)
        if kind in NUMBERS and type(b) in NUMBERS:
            same = a == b or (a != a and b != b) or _close(a, b)
        elif kind in SETS and type(b) in SETS:
            same = len(a) == len(b)
            todo.append((sorted(a - b), sorted(b - a)))  # members without an equal partner pair off in order
        elif kind is not type(b):
            same = False
        elif kind in SEQUENCES:
            same = len(a) == len(b)
            todo.extend(zip(a, b, strict=False))
        elif kind is dict:
            same = len(a) == len(b)
            todo.extend((a[key], b[key]) for key in a if key in b)
            todo.append(tuple(sorted(item for item in x.items() if item[0] not in y) for x, y in ((a, b), (b, a))))
        else:
            same = a == b
        if not same:
            return False
    return True


def _close(a: complex, b: complex) -> bool:
    isclose = cmath.isclose if complex in (type(a), type(b)) else math.isclose
    return bool({type(a), type(b)} & {float, complex}) and isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)


# ---- verdicts on a returned value ----
VIA = {function.__name__: function for function in (sorted, len, set, list, tuple, sum, min, max, round, abs, str)}


@lru_cache(maxsize=1024)
def _step(text: str) -> Callable[[Any], Any]:
    """The function behind one item of `Test.via`; KeyError for an unknown one."""
    if text.startswith("["):
        return operator.itemgetter(from_source(text[1:-1]))
    if text.startswith("round("):
        return lambda value: round(value, int(text[6:-1]))
    return {"bool": bool, "is": lambda value: value, **VIA}[text]


_expected = lru_cache(maxsize=1024)(from_source)  # shared, never changed


def _apply(step: str, value: Any) -> Any:
    if step == "str" or (step in ("list", "tuple") and type(value) in SETS):
        plain_size(value, types=PLAIN.difference(SETS))  # the order of a set hangs on the hash seed: ValueError
    return _step(step)(value)


def _through(value: Any, via: Iterable[str]) -> Any:
    plain_size(value)
    for step in via:
        value = _apply(step, value)
    return value


def holds(value: Any, test: Test) -> bool:
    """Whether a returned value passes; one that is not plain, or that `via` cannot take, does not."""
    try:
        value, expected = _through(value, test.via), _expected(test.expected)
        if test.tolerance is not None:
            return type(value) in NUMBERS and (value == expected or abs(value - expected) < test.tolerance)
        return value is expected if "is" in test.via else equal(value, expected)
    except FAULTS:
        return False


def relabel(test: Test, value: Any) -> Test | None:
    """The same test, expecting what the ground truth's value gives; None if that makes no test."""
    try:
        result = _through(value, test.via)
        via = test.via if result is None or type(result) is bool else tuple(step for step in test.via if step != "is")
        tolerance = None if test.tolerance is None else min(test.tolerance, _widest(result))
        new = Test(test.call, to_source(result), via, tolerance)
    except FAULTS:
        return None
    return new if holds(value, new) else None


def _widest(target: complex) -> float:
    """The largest tolerance that still says something: 0.1, or a hundredth of the target."""
    return max(0.1, 0.01 * abs(target))


# ---- asserts ----
def _parse(text: str) -> ast.Module | None:
    """The syntax tree, or None for what is not Python or too much for its parser."""
    try:
        return ast.parse(text, "<reply>")
    except (SyntaxError, *FAULTS):
        return None


def _arithmetic(op: ast.operator, a: Any, b: Any) -> Any:
    """a op b for numbers, + and repetition for sequences; ValueError before a result becomes too large."""
    if isinstance(op, ast.Pow) and type(a) is int and type(b) is int and a.bit_length() * b > MAX_SOURCE:
        raise ValueError("a power with too many digits")
    if isinstance(op, ast.Mult) and not {type(a), type(b)} <= set(NUMBERS):
        count, items = (a, b) if type(a) is int else (b, a)
        if len(items) * count > MAX_SOURCE:
            raise ValueError("a repetition with too many items")
    return OPERATORS[type(op)](a, b)


OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow}  # fmt: skip
DISPLAYS = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
MATH = {"inf": math.inf, "nan": math.nan, "pi": math.pi, "e": math.e}
BUILTINS = {**VIA, "range": range, "int": int, "float": float, "complex": complex, "bool": bool, "dict": dict,
            "frozenset": frozenset, "isclose": math.isclose, "abs": abs, "math": math}  # fmt: skip


class Scope:
    """What the names of a reply mean: a plain value, one of BUILTINS, ENTRY; a name bound to anything else is gone."""

    ENTRY = object()

    def __init__(self, names: dict[str, Any]):
        self.names = names
        self.budget = 20 * MAX_SOURCE  # nodes and characters of all values that the reply builds

    def value(self, node: ast.AST) -> Any:
        """The value of an expression made of literals, known names and listed built-ins; else one of FAULTS."""
        match node:
            case ast.Constant(value=value) if type(value) in PLAIN:
                return value
            case ast.Name(id=name) if type(self.names[name]) in PLAIN or type(self.names[name]) is range:
                return self.names[name]
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if self.names[name] is math:
                return MATH[attr]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                value = DISPLAYS[type(node)]([self.value(item) for item in items])
            case ast.Dict(keys=keys, values=values):
                value = {self.value(k): self.value(v) for k, v in zip(keys, values, strict=True)}
            case ast.BinOp(left=left, op=op, right=right):
                value = _arithmetic(op, self.value(left), self.value(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if self.names[name] is BUILTINS[name]:
                value = self._built(name, [self.value(arg) for arg in args])
            case _:
                raise ValueError(f"{type(node).__name__} has no value here")
        self.budget -= 1 if type(value) is range else plain_size(value, min(self.budget, MAX_SOURCE))
        return value

    def _built(self, name: str, args: list) -> Any:
        if any(type(arg) is range and len(arg) > MAX_SOURCE for arg in args) or (name == "round" and len(args) > 1):
            raise ValueError("too much to build")
        return _apply(name, args[0]) if name in VIA and len(args) == 1 else BUILTINS[name](*args)

    def call(self, node: ast.AST) -> tuple[str, tuple[str, ...]]:
        """Source of the entry-point call in an expression, and what stands around it, innermost first."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=args, keywords=named) if self.names[name] is self.ENTRY:
                parts = [self._argument(arg) for arg in args]
                parts += [f"{item.arg}={self._argument(item.value)}" for item in named if item.arg]
                if len(parts) < len(args) + len(named) or sum(map(len, parts)) > MAX_SOURCE:
                    raise ValueError("arguments that are unpacked or too long")
                return f"{name}({', '.join(parts)})", ()
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if self.names[name] is VIA[name]:
                step = name
            case ast.Call(func=ast.Name(id=name), args=[inner, digits], keywords=[]) if self.names[name] is round:
                step = f"round({range(16)[self.value(digits)]})"
            case ast.Subscript(value=inner, slice=index):
                step = f"[{to_source(self.value(index))}]"
            case _:
                raise ValueError(f"{type(node).__name__} has no meaning around a call")
        call, via = self.call(inner)
        if "str" in via or len(via) > 5:
            raise ValueError("too little is left of the value")  # len(str(f(x))[0]) is always 1
        return call, (*via, step)

    def _argument(self, node: ast.AST) -> str:
        value = self.value(node)
        return repr(value) if type(value) is range else to_source(value)

    def test(self, node: ast.expr) -> Test:
        """The test that the expression of an assert states; one of FAULTS where it has no meaning here."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                call, via = self.call(operand)
                return Test(call, "False", (*via, "bool"))
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() as op], comparators=[right]):
                call, via, expected = self._sides(left, right)
                if isinstance(op, ast.Is) and expected is not None and type(expected) is not bool:
                    raise ValueError("`is` has a meaning with None, True and False only")
                return Test(call, to_source(expected), (*via, "is") if isinstance(op, ast.Is) else via)
            case ast.Compare(
                left=ast.Call(func=ast.Name(id=name), args=[ast.BinOp(op=ast.Sub()) as gap], keywords=[]),
                ops=[ast.Lt() | ast.LtE() as op],
                comparators=[bound],
            ) if self.names[name] is abs:
                call, via, target = self._sides(gap.left, gap.right)
                return _near(call, via, target, self.value(bound), isinstance(op, ast.LtE))
            case ast.Call(func=function, args=[left, right], keywords=named) if self._is_isclose(function):
                call, via, target = self._sides(left, right)
                limits = {"rel_tol": 1e-9, "abs_tol": 0.0} | {item.arg: self.value(item.value) for item in named}
                if len(limits) > 2 or min(limits.values()) < 0:
                    raise ValueError("isclose takes rel_tol and abs_tol, not below 0")
                return _near(call, via, target, max(limits["rel_tol"] * abs(target), limits["abs_tol"]), True)
        call, via = self.call(node)
        if "str" in via:
            raise ValueError("every text but one is true")
        return Test(call, "True", (*via, "bool"))

    def _sides(self, left: ast.expr, right: ast.expr) -> tuple[str, tuple[str, ...], Any]:
        """Call, via and the value on the other side, whichever side the call stands on."""
        if not any(isinstance(node, ast.Name) and self.names.get(node.id) is self.ENTRY for node in ast.walk(left)):
            left, right = right, left
        return *self.call(left), self.value(right)

    def _is_isclose(self, node: ast.expr) -> bool:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="isclose"):
                return self.names.get(name) is math
        return isinstance(node, ast.Name) and self.names.get(node.id) is math.isclose

    def read(self, statement: ast.stmt) -> list[Test | None]:
        """The tests of one statement, None for each malformed assert; what the statement binds is taken note of."""
        tests: list[Test | None] = [None for node in ast.walk(statement) if isinstance(node, ast.Assert)]
        bound = {}
        try:
            match statement:
                case ast.Assert(test=node):
                    tests = [self.test(node)]
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    bound = {name: self.value(statement.value)}
        except FAULTS:
            pass
        for node in ast.walk(statement):
            name = getattr(node, "asname", None) or getattr(node, "name", None) or getattr(node, "id", "")
            meaning = self.names.get(name)
            if isinstance(node, ast.alias) and not node.asname and meaning in (math, math.isclose, self.ENTRY):
                continue  # imported under its own name
            if not isinstance(getattr(node, "ctx", None), ast.Load) or (
                isinstance(statement, ast.Expr) and type(meaning) in (list, dict, set)  # such as xs.append(1)
            ):
                self.names.pop(name, None)
        self.names.update(bound)
        return tests


def _near(call: str, via: tuple[str, ...], target: Any, tolerance: Any, closed: bool) -> Test:
    """abs(call - target) < tolerance, or <= if closed; a tolerance that lets nothing or nearly all pass is refused."""
    if type(target) not in NUMBERS or not (0 if closed else 5e-324) <= tolerance <= _widest(target) < math.inf:
        raise ValueError("a tolerance without a meaning")
    return Test(call, to_source(target), via, math.nextafter(tolerance, math.inf) if closed else float(tolerance))


def _scope(entry_point: str) -> Scope:
    return Scope({**BUILTINS, entry_point: Scope.ENTRY})


def parse_assert(source: str, entry_point: str | None = None) -> Test | None:
    """The test of one assert statement, None if malformed; without an entry point: of the one function it calls."""
    tree = _parse(source)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Assert):
        return None
    if entry_point is None:
        calls = [getattr(node.func, "id", "") for node in ast.walk(tree) if isinstance(node, ast.Call)]
        calls = [name for name in calls if name not in BUILTINS] or calls
        entry_point = calls[0] if len(set(calls)) == 1 else ""
    return _scope(entry_point).read(tree.body[0])[0]


def _statements(text: str) -> Iterator[ast.stmt | None]:
    """The statements of a text at the margin, one by one; None for an assert that is not Python."""
    tree = _parse(text)
    if tree is not None:
        yield from tree.body
        return
    pending = ""  # an assert that may go on in the next piece
    for piece in (*re.split(r"(?m)^(?=[^\s)\]}]|[ \t]+assert\b)", text), "assert"):
        starts = piece.lstrip().startswith("assert")
        whole = _parse(pending + piece) if pending and not starts and pending.count("\n") < 50 else None
        tree = whole or _parse(piece)
        if pending and not whole and (tree or starts):
            yield None
        if tree or starts:
            yield from tree.body if tree else ()
            pending = "" if tree else piece
        elif pending:
            pending += piece


def extract_tests(reply: str, entry_point: str, limit: int) -> list[Test | None]:
    """The tests that the first `limit` asserts of a reply state, in order, None for a malformed one.

    Read are the fenced blocks without a tag or tagged Python; a reply without any fence is read as a whole.
    """
    blocks = _blocks(reply)
    scope, tests = _scope(entry_point), []
    for code in [code for tag, code in blocks if tag in PYTHON] if blocks else [_unix(reply)]:
        scope.names[entry_point] = Scope.ENTRY  # a copy of the program in a block of its own does no harm
        for statement in _statements(code):
            tests += scope.read(statement) if statement else [None]
            if len(tests) >= limit:
                return tests[: max(limit, 0)]
    return tests


# ---- replies to programs ----
PYTHON = {"", "python", "py", "python3", "py3"}
FENCE = re.compile(r"([ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(`{3,}(?!.*`)|~{3,})[ \t]*(.*)")


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _blocks(reply: str) -> list[tuple[str, str]]:
    """(tag, code) of the fenced blocks by CommonMark's rules; the tag is lower case, "" without one.

    "1. Code:\n   ```{.Python}\n   x = 1\n   ```" -> [("python", "x = 1\n")]
    """
    blocks, lines = [], _unix(reply).split("\n")
    while lines:
        head = FENCE.fullmatch(lines.pop(0))
        if not head:
            continue
        indent, fence, info = head.groups()
        code = [info] if re.match(r"(def|class|import|from|assert|@)\b", info) else []
        tag = "" if code else re.match(r"[{.\s]*([\w+#-]*)", info)[1].lower()
        closing = re.compile(rf"[ \t]*{fence[0]}{{{len(fence)},}}[ \t]*")
        while lines and not closing.fullmatch(lines[0]):
            code.append(re.sub(rf"^[ \t]{{0,{len(indent)}}}", "", lines.pop(0)))
        del lines[:1]
        blocks.append((tag, "\n".join(code) + "\n"))
    return blocks


def _scope_nodes(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes that belong to the scope of these statements: what is inside functions and classes is left out."""
    todo = list(statements)
    while todo:
        yield (node := todo.pop())
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.comprehension)):
            todo.extend(ast.iter_child_nodes(node))


def top_names(text: str) -> set[str]:
    """The names that a program binds at its top level; none if it is not Python."""
    names = set()
    for node in _scope_nodes(getattr(_parse(text), "body", [])):
        if isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def extract_program(reply: str, entry_point: str) -> str:
    """The program of a reply, "" if there is none.

    The last Python block (a missing tag will do) that defines the entry point, else the last one tagged Python, else
    the last block that parses, else the whole reply if it parses.
    """
    blocks = [(tag, code) for tag, code in reversed(_blocks(reply)) if code.strip()]
    choices = [code for tag, code in blocks if tag in PYTHON and entry_point in top_names(code)]
    choices += [code for tag, code in blocks if tag and tag in PYTHON]
    choices += [code for tag, code in blocks if _parse(code)]
    choices += [text for text in [_unix(reply)] if text.strip() and _parse(text)]
    return choices[0] if choices else ""


def make_solution(question: Question, reply: str) -> str:
    """The program of a reply, with the prompt's own code in front where the program lacks names that it defines."""
    prompt, name = question.prompt, question.entry_point
    program = extract_program(reply, name)
    body = "" if name in top_names(program) else _body(prompt, program or _unix(reply), name)
    return body or complete(prompt, program, name)


def complete(prompt: str, program: str, entry_point: str) -> str:
    """A program behind the prompt's own code, unchanged, if it lacks names that this code defines; else as it is.

    The stub of the entry point itself stays out: a program without that function must not load.
    """
    defined, code = top_names(program), prompt if _parse(prompt) else prompt.rstrip() + "\n    pass\n"
    if not _parse(program) or not program.strip() or top_names(code) <= defined | {entry_point}:
        return program
    front, lines = code.split("\n"), program.split("\n")
    for node in reversed(_parse(code).body):
        if getattr(node, "name", "") == entry_point:
            del front[min([node.lineno, *(item.lineno for item in node.decorator_list)]) - 1 : node.end_lineno]
    first = [node.end_lineno for node in _parse(program).body if getattr(node, "module", "") == "__future__"]
    lines[max(first, default=0) : max(first, default=0)] = front  # __future__ must stay ahead of everything
    return "\n".join(lines)


def _body(prompt: str, text: str, entry_point: str) -> str:
    """The prompt continued by the body of its function; "" if the text is none, that is, if it returns nothing."""
    head = prompt.rstrip() + "\n"
    for body in (text, "    " + text, textwrap.indent(text, "    ")):
        for node in getattr(_parse(head + body), "body", []):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == entry_point:
                ends = [inner.lineno for inner in _scope_nodes(node.body) if isinstance(inner, (ast.Return, ast.Yield))]
                if max(ends, default=0) > head.count("\n"):
                    return head + body
    return ""


# ---- files ----
def load_questions(path: str) -> list[Question]:
    """The questions of a .jsonl, .jsonl.gz or .json file; ValueError names the file, the record and what is wrong.

    Formats: our own (the fields of Question), EvalPlus and HumanEval (reference: prompt and canonical_solution; tests:
    those base asserts that have a meaning here), ULT (no tests: those in the file are not gold).
    """
    path = str(path)
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        text = file.read()
    questions: dict[str, Question] = {}
    rows = json.loads(text) if path.removesuffix(".gz").endswith(".json") else text.split("\n")
    for number, row in enumerate(rows, start=1):
        if isinstance(row, str) and not row.strip():
            continue
        try:
            question = _question(json.loads(row) if isinstance(row, str) else row)
            if question.id in questions:
                raise ValueError(f"the id {question.id!r} is there twice")
        except KeyError as error:
            raise ValueError(f"{path}, record {number}: the field {error} is missing") from None
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, record {number}: {error}") from error
        questions[question.id] = question
    if not questions:
        raise ValueError(f"{path}: there are no questions in it")
    return list(questions.values())


def _question(row: dict) -> Question:
    if not isinstance(row, dict):
        raise ValueError(f"a record is an object with fields, not a {type(row).__name__}")
    if "func_name" in row:
        return Question(str(row["task_id"]), row["prompt"], row["func_name"], row["code"], ())
    if "canonical_solution" in row or "task_id" in row:
        prompt, solution, name = row["prompt"], row["canonical_solution"], row["entry_point"]
        reference = complete(prompt, solution, name) if name in top_names(solution) else prompt + solution
        tests = _benchmark_tests(row.get("assertion") or row.get("test", ""), name)
        return Question(row["task_id"], prompt, name, reference, tests)
    if "id" in row or "reference" in row:
        hidden = row.get("hidden")
        if hidden:
            hidden = Hidden(tuple(hidden["golden"]), tuple(hidden["mutants"]), hidden["family"], hidden["split"])
        return Question(row["id"], row["prompt"], row["entry_point"], row["reference"], tuple(row["tests"]), hidden)
    raise ValueError(f"a format that is not known, with the fields {', '.join(row)}")


def _benchmark_tests(text: str, entry_point: str) -> tuple[str, ...]:
    """The asserts of a benchmark's test text (`candidate` is the entry point) that have a meaning here."""
    text = re.sub(r"\bcandidate\b", entry_point, text)
    found = [node for node in ast.walk(_parse(text) or ast.Module([], [])) if isinstance(node, ast.Assert)]
    sources = [ast.unparse(ast.Assert(node.test)) for node in found]
    return tuple(source for source in sources if parse_assert(source, entry_point))


def save_questions(path: str, questions: Iterable[Question]) -> None:
    """Write our own format, one object a line; compressed if the name ends in .gz, the same bytes every time."""
    text = "".join(json.dumps(asdict(question)) + "\n" for question in questions).encode()
    with open(path, "wb") as file:
        file.write(gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


# ---- prompts ----
@dataclass(frozen=True)
class Prompts:
    """Templates of the user's turn: for the coder, for the tester that sees a program, for the one that does not."""

    coder: str
    tester: str
    black_box: str


ASK = (
    "Write exactly {k} test assertions for `{entry_point}` in one ```python block, one per line, each of the form\n"
    "assert {entry_point}(ARGUMENTS) == EXPECTED\nwith literal arguments and the literal value that a right solution "
    "returns. Choose inputs that are likely to expose a mistake: edge cases, boundaries, ties, empty, extreme values."
)
PROMPTS = {
    "instruct": Prompts(
        "Solve this problem in Python:\n\n{prompt}\n\nGive the complete function `{entry_point}`, with the imports and "
        "helpers it needs, in one ```python block.",
        "Problem:\n\n{prompt}\n\nA solution that may be wrong:\n\n```python\n{program}\n```\n\n" + ASK,
        "Problem:\n\n{prompt}\n\n" + ASK,
    ),
    "plain": Prompts("{prompt}", "{prompt}\n{program}", "{prompt}\ntest"),
}


def coder_messages(question: Question, style: str) -> list[dict[str, str]]:
    """The chat that asks for a program; `style` is a key of PROMPTS."""
    text = PROMPTS[style].coder.format(prompt=question.prompt, entry_point=question.entry_point)
    return [{"role": "user", "content": text}]


def tester_messages(question: Question, program: str | None, k: int, style: str) -> list[dict[str, str]]:
    """The chat that asks for k asserts, for a program or, with None, for the question alone (black-box)."""
    template = PROMPTS[style].black_box if program is None else PROMPTS[style].tester
    text = template.format(prompt=question.prompt, entry_point=question.entry_point, program=program, k=k)
    return [{"role": "user", "content": text}]
