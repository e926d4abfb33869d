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
import symtable
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache, reduce
from itertools import chain
from typing import Any

MAX_SOURCE = 50_000  # characters of a value's source; nodes and characters of a value that a reply builds
MAX_VALUE = 50_000_000  # nodes and characters of a value that came back
FAULTS = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)
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
    via: applied to the value in order: names of VIA, "round({}, 2)", "{}['index']"; "bool" for a bare assert or `not`,
    and last perhaps "is", for `is True` and `is False`: a value other than these two fails.
    """

    __test__ = False  # pytest: not a class of tests
    call: str
    expected: str
    via: tuple[str, ...] = ()
    tolerance: float | None = None

    @property
    def source(self) -> str:
        """The assert as text, e.g. "assert bool(f(2)[0]) == False"; `parse_assert` makes the same test of it."""
        text = self.call
        for step in self.via:
            text = step.replace("{}", text, 1) if "{}" in step else f"{step}({text})" if step != "is" else text
        if self.tolerance is not None:
            return f"assert abs({text} - {self.expected}) < {self.tolerance!r}"
        return f"assert {text} {'is' if 'is' in self.via else '=='} {self.expected}"


# ---- plain values: size, source, comparison ----
SETS, SEQUENCES, NUMBERS, TEXTS = {set, frozenset}, {list, tuple}, {bool, int, float, complex}, {str, bytes}
SIZED = SETS | SEQUENCES | TEXTS | {dict}
PLAIN = frozenset(SIZED | NUMBERS | {type(None)})


def plain_size(value: Any, limit: int = MAX_VALUE, types: frozenset[type] = PLAIN) -> int:
    """Nodes and characters of a value of exact built-in types; ValueError for other types or above the limit."""
    size, level = 1, [value]  # level by level: a list of a million numbers takes milliseconds
    while level:
        if not types.issuperset(map(type, level)):
            raise ValueError(f"types that are not plain: {set(map(type, level)) - types}")
        sized = [item for item in level if type(item) in SIZED]
        size += sum(map(len, sized)) + sum(item.bit_length() // 4 for item in level if type(item) is int)
        if size > limit:
            raise ValueError(f"a value of more than {limit} items and characters")
        boxes = [[*item, *item.values()] if type(item) is dict else item for item in sized if type(item) not in TEXTS]
        level = list(chain.from_iterable(boxes))
    return size


def _spread(items: Iterable) -> list:
    """The items of a set to be; ValueError for more than 50 of one hash: easily made, and put in in quadratic time."""
    items, groups = list(items), {}
    for item in items if max(Counter(map(hash, items)).values(), default=0) > 50 else ():
        group = groups.setdefault(hash(item), [])
        if item not in group:
            group.append(item)
        if len(group) > 50:
            raise ValueError("too many equal hashes")
    return items


def to_source(value: Any, depth: int = 60) -> str:
    """Literal text of a plain value, one text for equal sets; ValueError if it is not plain, too long or too deep.

    Beyond Python's literals: float('inf'), float('nan'), set(), frozenset({1}), complex(1.0, 2.0). The parser stops
    at 200 open brackets, so the depth has a limit.
    """
    kind = type(value)
    if depth < 0:
        raise ValueError("a value nested too deeply")
    if kind in SETS or kind in SEQUENCES:
        items = [to_source(item, depth - 1) for item in value]
        text = ", ".join(sorted(items) if kind in SETS else items) + "," * (kind is tuple and len(items) == 1)
        text = f"[{text}]" if kind is list else f"({text})" if kind is tuple else f"{{{text}}}" if items else ""
        text = f"frozenset({text})" if kind is frozenset else text or "set()"
    elif kind is dict:
        text = f"{{{', '.join(f'{to_source(k, depth - 1)}: {to_source(v, depth - 1)}' for k, v in value.items())}}}"
    elif kind is complex:
        text = f"complex({to_source(value.real)}, {to_source(value.imag)})"
    elif kind is float and not math.isfinite(value):
        text = f"float('{value}')"
    elif kind is int and value.bit_length() > 2000:
        text = hex(value)  # decimal text has a digit limit
    else:
        text = repr(value) if kind in PLAIN else ""
    if not text or len(text) > MAX_SOURCE:
        raise ValueError(f"a {kind.__name__} that is not plain or too long")
    return text


def from_source(text: str) -> Any:
    """The value that `to_source` wrote; ValueError for anything but literals and the calls named there."""
    try:
        scope = Scope({"float": float, "complex": complex, "set": set, "frozenset": frozenset}, operators={})
        return scope.value(ast.parse(text.strip(), "<reply>", "eval").body)
    except (SyntaxError, *FAULTS):
        raise ValueError(f"not the source of a plain value: {text[:80]!r}") from None


def equal(a: Any, b: Any) -> bool:
    """`==` of plain values, but floats are close within 1e-6 (relative or absolute) and NaN is NaN, nested too.

    An integer beside a float: absolute only. n / 2 is not n // 2, however large n is.
    Anything not of exact built-in types is equal to nothing, and its own methods are never called.
    """
    try:
        return plain_size(a) > 0 and plain_size(b) > 0 and (a == b or _equal(a, b))
    except FAULTS:
        return False


def _equal(a: Any, b: Any) -> bool:
    kinds = {type(a), type(b)}
    if kinds <= NUMBERS:
        inexact, relative = bool(kinds & {float, complex}), 0.0 if kinds & {bool, int} else 1e-6
        return a == b or (a != a and b != b) or (inexact and cmath.isclose(a, b, rel_tol=relative, abs_tol=1e-6))
    if kinds <= SETS:
        a, b = sorted(a - b), sorted(b - a)  # members without an equal partner pair off in their order
    elif kinds == {dict} and a.keys() == b.keys():
        a, b = list(a.values()), [b[key] for key in a]
    elif kinds == {dict}:
        a, b = sorted(a.items()), sorted(b.items())
    elif len(kinds) > 1 or type(a) not in SEQUENCES:
        return type(a) is type(b) and a == b
    return len(a) == len(b) and all(map(_equal, a, b))


# ---- verdicts on a returned value ----
VIA = {item.__name__: item for item in (sorted, len, set, list, tuple, sum, min, max, round, abs, str, bool)}


_expected = lru_cache(maxsize=1024)(from_source)  # shared, never changed


def _apply(value: Any, step: str) -> Any:
    """One item of `Test.via` applied to a value; KeyError for an unknown one."""
    if step == "is" and type(value) is not bool:
        raise TypeError("neither True nor False")
    if step == "str" or (step in ("list", "tuple") and type(value) in SETS):
        plain_size(value, types=PLAIN - SETS)  # the order of a set hangs on the hash seed: refused
    if step == "set":
        value = _spread(value)
    if step.startswith("{}["):
        return value[_expected(step[3:-1])]
    if step.startswith("round({}, "):
        return round(value, int(step[10:-1]))
    return VIA["bool" if step == "is" else step](value)


def _through(value: Any, via: tuple[str, ...]) -> Any:
    plain_size(value)
    return reduce(_apply, via, value)


def holds(value: Any, test: Test) -> bool:
    """Whether a returned value passes; one that is not plain, or that `via` cannot take, does not."""
    try:
        value, expected = _through(value, test.via), _expected(test.expected)
        if test.tolerance is None:
            return equal(value, expected)
        return type(value) in NUMBERS and (value == expected or abs(value - expected) < test.tolerance)
    except FAULTS:
        return False


def relabel(test: Test, value: Any) -> Test | None:
    """The same test, expecting what the ground truth's value gives; None if that makes no test."""
    try:
        result = _through(value, test.via)
        tolerance = None if test.tolerance is None else min(test.tolerance, _widest(result))
        new = Test(test.call, to_source(result), test.via, tolerance)
    except FAULTS:
        return None
    return new if holds(value, new) else None


def _widest(target: complex) -> float:
    """The largest tolerance that still says something: 0.1, or a hundredth of the target."""
    return max(0.1, 0.01 * abs(target))


# ---- asserts ----
BUILTINS = VIA | {kind.__name__: kind for kind in (range, int, float, complex, dict, frozenset)} | {"math": math}
DISPLAYS = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow}  # fmt: skip
ENTRY = object()  # what the name of the entry point means


def _parse(text: str) -> ast.Module | None:
    """The syntax tree, or None for what is not Python or too much for its parser."""
    try:
        return ast.parse(text, "<reply>")
    except (SyntaxError, *FAULTS):
        return None


def _bounded(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """function(a, b) for an arithmetic one; ValueError where the result would be too large."""
    lengths = [len(x) for x in (a, b) if type(x) not in NUMBERS]
    counts = [x for x in (a, b) if type(x) is int]
    size = math.prod(lengths + counts) if lengths else 0
    if function is operator.pow and len(counts) == 2:
        size = a.bit_length() * b
    if size > MAX_SOURCE:
        raise ValueError("a result that is too large")
    return function(a, b)


@dataclass(frozen=True)
class Returned:
    """Stands for what the entry point returns while an expression is read: the call, and what was applied to it."""

    call: str
    via: tuple[str, ...] = ()

    def then(self, step: str) -> "Returned":
        if "str" in self.via or len(self.via) > 5:
            raise ValueError("too little is left of the value")  # len(str(f(x))[0]) is always 1
        return Returned(self.call, (*self.via, step))


class Scope:
    """What the names of a reply mean: a plain value, one of BUILTINS, ENTRY; a name bound to anything else is gone."""

    def __init__(self, names: dict[str, Any], operators: dict[type, Callable[[Any, Any], Any]] | None = None):
        self.names, self.operators = names, OPERATORS if operators is None else operators
        self.budget = 20 * MAX_SOURCE  # nodes and characters of all values that the reply builds

    def value(self, node: ast.AST) -> Any:
        """The value of an expression of literals, known names, listed built-ins and one call; else one of FAULTS."""
        match node:
            case ast.Constant(value=value) if type(value) in PLAIN:
                return value
            case ast.Name(id=name):
                value = self.names[name]
            case ast.Attribute(value=ast.Name(id=name), attr="inf" | "nan" | "pi" | "e" as attr):
                value = getattr(self.names[name], attr)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
                value = self.value(operand) if isinstance(op, ast.UAdd) else -self.value(operand)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                items = [self.value(item) for item in items]
                value = DISPLAYS[type(node)](_spread(items) if isinstance(node, ast.Set) else items)
            case ast.Dict(keys=keys, values=values):
                value = dict(zip(_spread(map(self.value, keys)), map(self.value, values), strict=True))
            case ast.BinOp(left=left, op=op, right=right):
                value = _bounded(self.operators[type(op)], self.value(left), self.value(right))
            case ast.Subscript(value=inner, slice=index):
                value = self.value(inner).then(f"{{}}[{to_source(self.value(index))}]")
            case ast.Call(func=ast.Name(id=name), args=args, keywords=named) if self.names[name] is ENTRY:
                parts = [self._argument(arg) for arg in args]
                parts += [f"{item.arg}={self._argument(item.value)}" for item in named]
                if len({item.arg for item in named} - {None}) < len(named) or sum(map(len, parts)) > MAX_SOURCE:
                    raise ValueError("arguments that are unpacked, given twice or too long")
                value = Returned(f"{name}({', '.join(parts)})")
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if self.names[name] is BUILTINS[name]:
                value = self._built(name, [self.value(arg) for arg in args])
            case _:
                raise ValueError(f"{type(node).__name__} has no value here")
        if type(value) not in (Returned, range):
            self.budget -= plain_size(value, min(self.budget, MAX_SOURCE))
        return value

    def _argument(self, node: ast.AST) -> str:
        value = self.value(node)
        return repr(value) if type(value) is range else to_source(value)

    def _built(self, name: str, args: list) -> Any:
        """One of BUILTINS applied to values, or noted for later where it is to be applied to what the call returns."""
        if name == "round" and len(args) == 2:
            return args[0].then(f"round({{}}, {range(16).index(args[1])})")
        if any(type(arg) is range and len(arg) > MAX_SOURCE for arg in args) or (name in VIA and len(args) > 1):
            raise ValueError("too much to build, or too many arguments")
        if args and type(args[0]) is Returned:
            return args[0].then(VIA[name].__name__)
        if name in ("frozenset", "dict") and args and type(args[0]) is not dict:
            _spread(args[0] if name == "frozenset" else [key for key, _ in args[0]])
        return _apply(args[0], name) if name in VIA and args else BUILTINS[name](*args)

    def test(self, node: ast.expr) -> Test:
        """The test that the expression of an assert states; one of FAULTS where it has no meaning here."""
        match node:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() as op], comparators=[right]):
                got, expected = self._sides(left, right)
                if isinstance(op, ast.Is) and expected is not None:
                    if type(expected) is not bool:
                        raise ValueError("`is` has a meaning for None, True and False")
                    got = got.then("is")
                return Test(got.call, to_source(expected), got.via)
            case ast.Compare(left=ast.Call(ast.Name(name), [ast.BinOp(left, ast.Sub(), right)], []), ops=[op]):
                if self.names[name] is abs and isinstance(op, (ast.Lt, ast.LtE)):
                    got, target = self._sides(left, right)
                    return _near(got, target, self.value(node.comparators[0]), isinstance(op, ast.LtE))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr="isclose"), args=args, keywords=named):
                got, target = self._sides(*args)
                limits = {"rel_tol": 1e-9, "abs_tol": 0.0} | {item.arg: self.value(item.value) for item in named}
                sound = len(limits) == 2 and all(0 <= limit < math.inf for limit in limits.values())
                if sound and self.names["math"] is math:
                    return _near(got, target, max(limits["rel_tol"] * abs(target), limits["abs_tol"]), True)
        negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        got = self.value(node.operand if negated else node).then("bool")
        return Test(got.call, str(not negated), got.via)

    def _sides(self, left: ast.expr, right: ast.expr) -> tuple[Returned, Any]:
        """What the call returns and the value on the other side, whichever side the call stands on."""
        a, b = self.value(left), self.value(right)
        return (b, a) if type(b) is Returned else (a, b)

    def read(self, statement: ast.stmt) -> list[Test | None]:
        """The tests of one statement, None for each malformed assert; what it binds, and may change, is noted."""
        tests: list[Test | None] = [None for node in ast.walk(statement) if isinstance(node, ast.Assert)]
        bound = {}
        try:
            match statement:
                case ast.Assert(test=node):
                    tests = [self.test(node)]
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    value = self.value(statement.value)
                    bound = {} if type(value) is Returned else {name: value}
        except FAULTS:
            pass
        for node in ast.walk(statement):
            name = getattr(node, "asname", None) or getattr(node, "name", None) or getattr(node, "id", "")
            meaning, loaded = self.names.get(name), isinstance(getattr(node, "ctx", None), ast.Load)
            imported = isinstance(node, ast.alias) and not node.asname and (meaning is math or meaning is ENTRY)
            mutable = type(meaning) in (list, dict, set) and not (bound or isinstance(statement, ast.Assert))
            if not imported and (not loaded or mutable):  # mutable: xs.append(1), xs[0] = 1
                self.names.pop(name, None)
        self.names.update(bound)
        return tests


def _near(got: Returned, target: Any, tolerance: float, closed: bool) -> Test:
    """abs(got - target) < tolerance, or <= if closed; one that lets nothing or nearly everything pass is refused."""
    limit = math.nextafter(tolerance, math.inf) if closed else float(tolerance)
    if not 0 < limit <= math.nextafter(_widest(target), math.inf) < math.inf or tolerance < 0:
        raise ValueError("a tolerance without a meaning")
    return Test(got.call, to_source(target), got.via, limit)


def parse_assert(source: str, entry_point: str | None = None) -> Test | None:
    """The test of one assert statement, None if malformed; without an entry point: of the one function it calls."""
    tree = _parse(source.strip())
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Assert):
        return None
    if entry_point is None:
        calls = {getattr(node.func, "id", "math") for node in ast.walk(tree) if isinstance(node, ast.Call)}
        calls = calls - BUILTINS.keys() or calls
        entry_point = calls.pop() if len(calls) == 1 else ""
    return Scope({**BUILTINS, entry_point: ENTRY}).read(tree.body[0])[0]


def _statements(text: str, scope: Scope) -> Iterator[ast.stmt | None]:
    """The statements of a text at the margin, one by one; None for an assert that is not Python.

    Half of the scope's budget may go into lines that are read once more, with the assert that may go on in them.
    """
    if whole := _parse(text):
        yield from whole.body
        return
    pending = ""  # an assert that may go on in the next piece
    for piece in (*re.split(r"(?m)^(?=[^\s)\]}]|[ \t]+assert\b)", text, maxsplit=5000), "assert"):
        starts = re.match(r"\s*assert\b", piece)
        spare = scope.budget - len(pending + piece)
        again = pending and not starts and pending.count("\n") < 50 and spare > 10 * MAX_SOURCE
        scope.budget = spare if again else scope.budget
        whole = _parse(pending + piece) if again else None
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
    blocks, scope, tests = _blocks(reply), Scope(dict(BUILTINS)), []
    for code in [code for tag, code in blocks if tag in PYTHON] if blocks else [_unix(reply)]:
        scope.names[entry_point] = ENTRY  # a copy of the program in a block of its own does no harm
        for statement in _statements(code, scope):
            tests += scope.read(statement) if statement else [None]
            if len(tests) >= limit:
                return tests[: max(limit, 0)]
    return tests


# ---- programs ----
PYTHON = {"", "python", "py", "python3", "py3"}
FENCE = re.compile(  # indent, fence, info, and text up to a fence as long, the start of a new block, or the end;
    r"^([ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(`{3,}|~{3,}(?!~))([^`\n]*)\n"
    r"((?:\"\"\"[^\"\\]*(?:(?:\\.|\"(?!\"\"))[^\"\\]*)*\"\"\"|"  # strings and comments may show fences
    r"'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''|"
    r"\"[^\"\\\n]*(?:\\.[^\"\\\n]*)*\"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'|#[^\n]*|"
    r"\\.|[ \t]+|`+|~+|[^\"'#\\`~ \t\n]+|.)*?)"  # runs are taken whole: an end in each is looked for once
    r"(?:[ \t]*\2(?:`*|~*)[ \t]*$|(?=^[ \t]*\2[ \t]*\w)|\Z)",
    re.MULTILINE | re.DOTALL,
)
CODE = re.compile(r"\s*(?:py(?:thon)?3?[ \t]+)?((?:def|async|class|import|from|assert)\b.*|@.*)")  # on a fence's line
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
EXITS = (ast.Return, ast.Yield, ast.YieldFrom)


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")


def _blocks(reply: str) -> list[tuple[str, str]]:
    """Tag (lower case, "" if none) and text of each fenced block: "1. ```Py\\n   x\\n   ```" -> [("py", "x\\n")]."""
    blocks = []
    for indent, _, info, text in FENCE.findall(_unix(reply) + "\n"):
        blank = text[: len(text) - len(text.lstrip())]
        depth = min(len(indent), len(blank) - len(blank.rstrip(" \t")))  # the first line tells
        text = re.sub(rf"(?m)^[ \t]{{1,{depth}}}", "", text) if depth else text
        if code := CODE.match(info):
            info, text = "", f"{code[1]}\n{text}"
        blocks.append((re.match(r"[\s{.]*([\w+#-]*)", info)[1].lower(), text))
    return blocks


def top_names(program: str) -> set[str]:
    """The names that a program binds at its top level; none if it is not Python."""
    try:
        symbols = symtable.symtable(program, "<reply>", "exec").get_symbols()
    except (SyntaxError, *FAULTS):
        return set()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def extract_program(reply: str, entry_point: str) -> str:
    """The program of a reply, "" if there is none.

    The last Python block (a missing tag will do) that defines the entry point, else the last one tagged Python, else
    the last block that parses, else the whole reply if it parses.
    """
    blocks = [(tag, text) for tag, text in reversed(_blocks(reply)) if text.strip()]
    python = [text for tag, text in blocks if tag in PYTHON and entry_point in text]
    choices = chain(
        (text for text in python if entry_point in top_names(text)),
        (text for tag, text in blocks if tag and tag in PYTHON),
        (text for _, text in blocks if _parse(text)),
        (text for text in [_unix(reply)] if text.strip() and _parse(text)),
    )
    return next(choices, "")


def make_solution(question: Question, reply: str) -> str:
    """The program of a reply, with the prompt's own code in front where the program lacks names that it defines."""
    prompt, name = question.prompt, question.entry_point
    program = extract_program(reply, name)
    body = "" if name in top_names(program) else _as_body(prompt, program or _unix(reply), name)
    return body or _behind(prompt, program, name)


def _as_body(prompt: str, text: str, entry_point: str) -> str:
    """The prompt continued by the body of its function; "" if the text is none, that is, if it returns nothing."""
    head = prompt.rstrip() + "\n"
    for body in (text, "    " + text, textwrap.indent(textwrap.dedent(text), "    ")):
        for node in getattr(_parse(head + body), "body", []):
            if isinstance(node, DEFINITIONS) and node.name == entry_point:
                own = [item for item in node.body if not isinstance(item, DEFINITIONS)]
                ends = [item.lineno for item in ast.walk(ast.Module(own)) if isinstance(item, EXITS)]
                if max(ends, default=0) > head.count("\n"):
                    return head + body
    return ""


def _behind(prompt: str, program: str, entry_point: str) -> str:
    """The program behind the prompt's code if it lacks a name of it, without the stub of the entry point: else a
    program that does not define it would load."""
    code = prompt if _parse(prompt) else prompt.rstrip() + "\n    pass\n"
    if not program.strip() or not _parse(program) or top_names(code) <= top_names(program) | {entry_point}:
        return program
    front, lines = code.split("\n"), program.split("\n")
    for node in reversed(_parse(code).body):
        if isinstance(node, DEFINITIONS) and node.name == entry_point:
            del front[min(item.lineno for item in (node, *node.decorator_list)) - 1 : node.end_lineno]
    futures = [node.end_lineno for node in _parse(program).body if getattr(node, "module", "") == "__future__"]
    start = max(futures, default=0)  # `from __future__` has to stay first
    return "\n".join([*lines[:start], *front, *lines[start:]])


# ---- one call in many spellings ----
def call_key(call: str, reference: str) -> Hashable:
    """The same for calls with equal arguments: a tester could assert one breaking call K times over, in K spellings.

    Spellings: by position or by name, in any order, a default written out, 1.0 or True for 1, a range for the list of
    its items. Parameters and defaults are those of the last `def` of that name at the top level of `reference`; what
    has no parameter there counts by position or by name, as written. What is no such call is its own key. Nothing is
    executed, and nothing is raised.
    """
    try:
        node, scope = ast.parse(call[: 2 * MAX_SOURCE], "<reply>", "eval").body, Scope(dict(BUILTINS))
        names, defaults = _parameters(reference, node.func.id)
        given = [(names[i] if i < len(names) else f"*{i}", arg) for i, arg in enumerate(node.args)]
        given += [(item.arg, item.value) for item in node.keywords]
        if len({name for name, _ in given} - {None}) < len(given) or any(type(arg) is ast.Starred for _, arg in given):
            return call
        keys = {name: _argument_key(arg, scope) for name, arg in given}
        return (node.func.id, *sorted((name, key) for name, key in keys.items() if defaults.get(name) != key))
    except (SyntaxError, *FAULTS):
        return call


@lru_cache(maxsize=1024)
def _parameters(program: str, name: str) -> tuple[list[str], dict[str, str]]:
    """Of the last `def` of that name: the parameters that take positions, and the keys of defaults by parameter."""
    body = getattr(_parse(program), "body", [])
    found = [node.args for node in body if isinstance(node, DEFINITIONS[:2]) and node.name == name]
    if not found:
        return [], {}
    own, names = found[-1], [item.arg for item in found[-1].posonlyargs + found[-1].args]
    defaults = dict(zip(reversed(names), reversed(own.defaults), strict=False))
    defaults |= zip([item.arg for item in own.kwonlyargs], own.kw_defaults, strict=True)
    return names, {name: _argument_key(node, Scope(dict(BUILTINS))) for name, node in defaults.items() if node}


def _argument_key(node: ast.expr, scope: Scope) -> str:
    """One text for arguments that are equal; an expression without a value here has its own."""
    try:
        value = scope.value(node)
        if type(value) is range and len(value) < scope.budget // 50:
            scope.budget -= 50 * len(value)
            value = list(value)
        return repr(value) if type(value) is range else to_source(_same(value))
    except FAULTS:
        return ast.unparse(node)


def _same(value: Any) -> Any:
    """One value, with one source, for all plain values that are equal to it."""
    kind = type(value)
    if kind is complex and value.imag:
        return value + 0j  # without -0.0
    if kind in NUMBERS:
        return int(value.real) if value.real % 1 == 0 else value.real
    if kind is dict:
        return dict(sorted(((_same(k), _same(v)) for k, v in value.items()), key=to_source))
    return kind(map(_same, value)) if kind in SETS | SEQUENCES else value


# ---- files ----
def load_questions(path: str) -> list[Question]:
    """The questions of a .jsonl, .jsonl.gz or .json file; ValueError names the file, the record and what is wrong.

    Formats: ours (the fields of Question), EvalPlus and HumanEval (reference: prompt and canonical_solution; tests:
    those base asserts that have a meaning here), ULT (no tests: those in the file are not gold).
    """
    return [question for question, _ in load_records(path)]


def load_records(path: str) -> list[tuple[Question, dict[str, Any]]]:
    """`load_questions`, each question with its record in the file."""
    place, records = str(path), {}
    try:
        with (gzip.open if place.endswith(".gz") else open)(path, "rt", encoding="utf-8-sig") as file:
            rows = json.load(file) if place.removesuffix(".gz").endswith(".json") else list(file)
        for number, row in enumerate(rows, start=1):
            place = f"{path}, record {number}"
            if not isinstance(row, str) or row.strip():
                record = json.loads(row) if isinstance(row, str) else row
                question = _question(record)
                if question.id in records:
                    raise ValueError(f"the id {question.id!r} is there twice")
                records[question.id] = question, record
    except (ValueError, TypeError, KeyError) as error:
        reason = f"the field {error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{place}: {reason}") from error
    if not records:
        raise ValueError(f"{path}: there are no questions in it")
    return list(records.values())


def _question(row: dict[str, Any]) -> Question:
    hidden = None
    if "func_name" in row:
        key, prompt, name, reference, tests = str(row["task_id"]), row["prompt"], row["func_name"], row["code"], []
    elif "task_id" in row:
        key, prompt, name, solution = row["task_id"], row["prompt"], row["entry_point"], row["canonical_solution"]
        reference = _behind(prompt, solution, name) if name in top_names(solution) else prompt + solution
        nodes = list(ast.walk(_parse(row.get("assertion") or row.get("test", "")) or ast.Module([])))
        for node in nodes:
            if isinstance(node, ast.Name) and node.id == "candidate":
                node.id = name
        texts = [ast.unparse(ast.Assert(node.test)) for node in nodes if isinstance(node, ast.Assert)]
        tests = [text for text in texts if parse_assert(text, name)]
    elif "id" in row or "reference" in row:
        key, prompt, name, reference, tests = (row[k] for k in ("id", "prompt", "entry_point", "reference", "tests"))
        if hidden := row.get("hidden"):
            hidden = Hidden(tuple(hidden["golden"]), tuple(hidden["mutants"]), hidden["family"], hidden["split"])
    else:
        raise ValueError(f"a format that is not known, with the fields {list(row)}")
    if type(tests) is not list or not all(type(text) is str for text in (key, prompt, name, reference, *tests)):
        raise TypeError("the fields of a question are texts, its tests a list of texts")
    if name not in top_names(reference):
        raise ValueError(f"the reference does not define {name!r}")
    return Question(key, prompt, name, reference, tuple(tests), hidden)


def save_questions(path: str, questions: Iterable[Question]) -> None:
    """Write our own format, one object a line; compressed if the name ends in .gz, the same bytes every time."""
    text = "".join(json.dumps(asdict(question)) + "\n" for question in questions).encode()
    with open(path, "wb") as file:
        file.write(gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


# ---- prompts ----
ASK = """Write exactly {k} test assertions for `{entry_point}` in one ```python block, one per line, each of the form
assert {entry_point}(ARGUMENTS) == EXPECTED
with literal arguments and, as EXPECTED, the literal value that a right solution returns. Choose inputs that are likely
to expose a mistake: edge cases, boundaries, ties, empty and extreme values."""
PROMPTS = {  # what the user says to the coder, to the tester that sees a program, to the tester that does not
    "plain": ("{prompt}", "{prompt}\n{program}", "{prompt}\ntest"),
    "instruct": (
        "Solve this problem in Python:\n\n{prompt}\n\nGive the complete function `{entry_point}`, with the imports and "
        "helpers it needs, in one ```python block.",
        "Problem:\n\n{prompt}\n\nA solution that may be wrong:\n\n```python\n{program}\n```\n\n" + ASK,
        "Problem:\n\n{prompt}\n\n" + ASK,
    ),
}


def _chat(template: str, question: Question, **fields: Any) -> list[dict[str, str]]:
    text = template.format(prompt=question.prompt, entry_point=question.entry_point, **fields)
    return [{"role": "user", "content": text}]


def coder_messages(question: Question, style: str) -> list[dict[str, str]]:
    """The chat that asks for a program; `style` is a key of PROMPTS."""
    return _chat(PROMPTS[style][0], question)


def tester_messages(question: Question, program: str | None, k: int, style: str) -> list[dict[str, str]]:
    """The chat that asks for k asserts, for a program or, with None, for the question alone (black-box)."""
    return _chat(PROMPTS[style][2 if program is None else 1], question, program=program, k=k)
