"""The language of tests: what an assert means, and whether a returned value passes.

Ours; the paper says nothing of it. Asserts become `Test` records, read from their syntax tree by an
evaluator that knows literals and a short list of built-ins. Values that came back from a program
are as large and as awkward as it can make them: every step is bounded in work before it is taken.
Nothing that a model wrote is executed.

    test = parse_assert("assert sorted(f([2, 1])) == [1, 2]", "f")
    holds([2, 1], test)    # True
"""

import ast
import cmath
import math
import operator
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import chain
from typing import Any, NamedTuple

MAX_SOURCE = 50_000  # characters of a value's source; `plain_size` of what a reply builds
MAX_VALUE = 650_000  # `plain_size` of a value that a built-in is applied to: 325,000 items
MAX_ORDERED = 200_000  # `plain_size` of items that are put in order
MAX_DEPTH = 60  # nesting of a value; the parser stops at 200 open brackets
MAX_COMPARED = 4_000_000  # comparisons that making a set may take
FAULTS = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError,
          MemoryError)
warnings.filterwarnings("ignore", module="<reply>")  # of the parser, on "\d" in a model's string


@dataclass(frozen=True)
class Test:
    """One assert in parts; asserts that say the same are equal records, however they were spelt.

    via: applied to the value in order: names of VIA, "round({}, 2)", "{}['index']"; "bool" for a
    bare assert or `not`; last perhaps "is", for `is True` and `is False`, which fails for a value
    that is neither.
    """

    __test__ = False  # pytest: not a class of tests
    call: str  # source with literals and `range`
    expected: str  # source with literals
    via: tuple[str, ...] = ()
    tolerance: float | None = None  # abs(value - expected) < tolerance

    @property
    def source(self) -> str:
        """The assert as text, "assert bool(f(2)[0]) == False"; `parse_assert` reads it back."""
        text = self.call
        for step in self.via:
            if "{}" in step:
                text = step.replace("{}", text, 1)
            elif step != "is":
                text = f"{step}({text})"
        if self.tolerance is not None:
            return f"assert abs({text} - {self.expected}) < {self.tolerance!r}"
        return f"assert {text} {'is' if 'is' in self.via else '=='} {self.expected}"


class Unequal:
    """Equal to nothing, not even itself."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__


@dataclass(frozen=True, eq=False)
class Opaque(Unequal):
    """Stands for a value that is no plain data."""

    type_name: str

    def __repr__(self) -> str:
        return f"Opaque({self.type_name!r})"


@dataclass(frozen=True, eq=False)
class Items(Unequal):
    """Stands for an iterator, which travelled as the list of its items."""

    kind: str  # the name of its type: "generator", "range", "dict_keys", "deque"
    items: list


# ---- plain values: size, source, comparison ----
SETS, SEQUENCES = {set, frozenset}, {list, tuple}
NUMBERS, TEXTS = {bool, int, float, complex}, {str, bytes}
BOXES = SETS | SEQUENCES | {dict, Items}
PLAIN = frozenset(SETS | SEQUENCES | NUMBERS | TEXTS | {dict, type(None)})
ORDERED = PLAIN - SETS - {dict}  # sets have no order, and to compare dicts takes long


def plain_size(
    value: Any, limit: int = MAX_VALUE, types: Iterable[type] = PLAIN, depth: int = MAX_DEPTH
) -> int:
    """2 for each item at any depth, 1 for each character of a text and 16 bits of an integer.

    At most the length of the value's source. ValueError above the limits, and for other types.
    """
    size, level = 2, [value]
    while level:  # level by level: a list of a million numbers takes milliseconds
        kinds = list(map(type, level))
        if depth < 0 or not set(types).issuperset(kinds):
            raise ValueError("a value that is nested too deeply, or whose type is not plain")
        boxes = list(map(_contents, _of_kind(BOXES, level, kinds)))
        size += 2 * sum(map(len, boxes)) + sum(map(len, _of_kind(TEXTS, level, kinds)))
        size += sum(map(int.bit_length, _of_kind({int}, level, kinds))) // 16
        if size > limit:
            raise ValueError(f"a value that is larger than {limit}")
        level, depth = list(chain.from_iterable(boxes)), depth - 1
    return size


def _of_kind(group: set[type], items: list, kinds: list[type]) -> list:
    if group.isdisjoint(kinds):
        return []
    return [item for item, kind in zip(items, kinds, strict=True) if kind in group]


def _contents(box: Any) -> Iterable:
    if type(box) is dict:
        return [*box, *box.values()]
    return box.items if type(box) is Items else box


def _distinct(items: Iterable) -> list:
    """The items without repeats; ValueError where a set of them would be made in quadratic time."""
    groups: dict[int, list] = {}
    compared = 0
    for item in items:
        group = groups.setdefault(hash(item), [])
        compared += len(group)
        if item not in group:
            group.append(item)
        if len(group) > 50 or compared > MAX_COMPARED:  # multiples of 2**61 - 1 have one hash
            raise ValueError("too many equal hashes")
    return list(chain.from_iterable(groups.values()))


def _orderable(items: Iterable) -> list:
    """The items as a list that may be sorted; ValueError where that could take long."""
    items = list(items)
    if len(items) > 1:  # to compare two nested lists takes time with the square of the depth
        plain_size(items, MAX_ORDERED, ORDERED, depth=8)
    return items


def _in_order(items: Iterable) -> list:
    return sorted(_orderable(items))


def to_source(value: Any) -> str:
    """Literal text of a plain value, one text for equal sets; beyond literals: float('inf'),
    float('nan'), set(), frozenset({1}), complex(1.0, 2.0).

    ValueError if the value is not plain, too deep, or of more than MAX_SOURCE characters.
    """
    plain_size(value, MAX_SOURCE + 2)
    text = _source(value)
    if len(text) > MAX_SOURCE:
        raise ValueError(f"a {type(value).__name__} that is too long")
    return text


def _source(value: Any) -> str:
    kind = type(value)
    if kind is list:
        return f"[{', '.join(map(_source, value))}]"
    if kind is tuple:
        return f"({', '.join(map(_source, value))}{',' * (len(value) == 1)})"
    if kind in SETS and not value:
        return f"{kind.__name__}()"
    if kind is set:
        return f"{{{', '.join(sorted(map(_source, value)))}}}"
    if kind is frozenset:
        return f"frozenset({_source(set(value))})"
    if kind is dict:
        pairs = [f"{_source(name)}: {_source(item)}" for name, item in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if kind is complex:
        return f"complex({_source(value.real)}, {_source(value.imag)})"
    if kind is float and not math.isfinite(value):
        return f"float('{value}')"
    if kind is int and value.bit_length() > 2000:
        return hex(value)  # decimal text has a digit limit
    return repr(value)


def from_source(text: str) -> Any:
    """The value that `to_source` wrote; ValueError for anything but literals and its calls."""
    try:
        known = {"float": float, "complex": complex, "set": set, "frozenset": frozenset}
        return Scope(known, operators={}).value(ast.parse(text.strip(), "<reply>", "eval").body)
    except (SyntaxError, *FAULTS):
        raise ValueError(f"not the source of a plain value: {text[:80]!r}") from None


def equal(a: Any, b: Any) -> bool:
    """`==` of plain values, but floats are close within 1e-6 and NaN is NaN, nested too.

    Anything else, or larger than MAX_VALUE, is equal to nothing; its own methods are never called.
    """
    try:
        return plain_size(a) > 0 and plain_size(b) > 0 and (a == b or _equal(a, b))
    except FAULTS:
        return False


def _equal(a: Any, b: Any) -> bool:
    """`equal` of two values that `plain_size` has seen."""
    kinds = {type(a), type(b)}
    if kinds <= NUMBERS:
        return _close(a, b)
    if len(kinds) > 1 and not kinds <= SETS:
        return False  # [1] != (1,)
    if type(a) not in BOXES:
        return a == b
    if len(a) != len(b):
        return False
    if kinds == {dict}:
        names = (a, a) if a.keys() == b.keys() else (_in_order(a), _in_order(b))
        return all(_equal(x, y) and _equal(a[x], b[y]) for x, y in zip(*names, strict=True))
    if kinds <= SETS:  # members without an equal partner pair off in their order
        a, b = _in_order(a - b), _in_order(b - a)
    return len(a) == len(b) and all(map(_equal, a, b))


def _close(a: complex, b: complex) -> bool:
    """Equal within 1e-6, relative or absolute; an integer beside a float: absolute only."""
    kinds = {type(a), type(b)}
    if a == b or (a != a and b != b):
        return True
    relative = 0.0 if kinds & {bool, int} else 1e-6  # n / 2 is not n // 2, however large n is
    return bool(kinds & {float, complex}) and cmath.isclose(a, b, rel_tol=relative, abs_tol=1e-6)


# ---- calls as data ----
class BoundCall(NamedTuple):
    """A call of the entry point; two calls are one when their keys are equal."""

    source: str  # canonical: positions, then keywords in sorted order: "f([1, 2], b=3)"
    key: Hashable


def bound_call(entry_point: str, args: Sequence, kwargs: Mapping[str, object]) -> BoundCall:
    """The call with these bound arguments; ValueError for what cannot be said in bounds.

    An argument is plain, or a `range`, which is not expanded: time goes with the length of the text
    alone. Keys are equal for equal numbers (1, 1.0, True; NaN too), for a list, tuple and range of
    the same items, and for all empty containers, at any depth.
    """
    named = sorted(kwargs.items())
    try:
        source = _written(entry_point, args, named)
        keys = tuple(map(_key, args)), tuple((name, _key(value)) for name, value in named)
        return BoundCall(source, (entry_point, *keys))
    except FAULTS as error:
        raise ValueError(f"no call that can be said in bounds: {error}") from None


def same_argument(a: Any, b: Any) -> bool:
    """Whether two arguments are one to `bound_call`; not, where it refuses either."""
    try:
        return bound_call("f", [a], {}).key == bound_call("f", [b], {}).key
    except ValueError:
        return False


def _written(entry_point: str, args: Sequence, named: Sequence[tuple[str, Any]]) -> str:
    values = [*args, *(value for _, value in named)]
    plain_size(values, MAX_SOURCE + 2, PLAIN | {range})
    names = [name for name, _ in named]
    if not all(map(str.isidentifier, names)) or len(set(names)) < len(names):
        raise ValueError("keywords that are no names, or that are given twice")
    parts = list(map(_argument, args)) + [f"{name}={_argument(value)}" for name, value in named]
    text = f"{entry_point}({', '.join(parts)})"
    if len(text) > MAX_SOURCE:
        raise ValueError("a call that is too long")
    return text


def _argument(value: Any) -> str:
    if type(value) is not range:
        return to_source(value)
    parts = [value.start, value.stop, value.step][: 2 if value.step == 1 else 3]
    return f"range({', '.join(map(to_source, parts))})"


EMPTY = ("empty",)  # the key of all empty containers


def _key(value: Any) -> Hashable:
    """One key for all values that are one argument; of a container, a tuple with a tag."""
    kind = type(value)
    if kind in NUMBERS:
        return _number_key(value)
    if value is None or (kind in TEXTS and value):
        return value
    if not value:
        return EMPTY
    if kind is range:
        count = (value[-1] - value[0]) // value.step + 1
        return "range", value[0], value.step if count > 1 else 1, count
    if kind in SEQUENCES:
        return _sequence_key(tuple(map(_key, value)))
    if kind is dict:
        pairs = [(_key(name), _key(item)) for name, item in value.items()]
        return "dict", frozenset(Counter(pairs).items())
    return "set", frozenset(Counter(map(_key, value)).items())  # counted: (1,) and [1] stay two


def _number_key(value: complex) -> Hashable:
    if type(value) is complex and not value.imag:
        value = value.real
    if value != value:
        return "nan", repr(value + 0)  # + 0: without -0.0
    integral = type(value) is bool or (type(value) is float and value.is_integer())
    return int(value) if integral else value


def _sequence_key(keys: tuple) -> Hashable:
    """(3, 5, 7) -> ("range", 3, 2, 3), as for range(3, 9, 2); ("a", 1) -> ("list", ("a", 1))."""
    if set(map(type, keys)) == {int}:
        first, count = keys[0], len(keys)
        step = keys[1] - first if count > 1 else 1
        if step and keys == tuple(range(first, first + step * count, step)):
            return "range", first, step, count
    return "list", keys


# ---- verdicts on a returned value ----
VIA = {
    item.__name__: item
    for item in (sorted, len, set, list, tuple, sum, min, max, round, abs, str, bool)
}
ITERATING = {"sorted", "set", "list", "tuple", "sum", "min", "max"}
WITH_LENGTH = {"range", "deque", "dict_keys", "dict_values", "dict_items"}  # kinds of Items
WITH_INDEX = {"range", "deque"}

_expected = lru_cache(maxsize=1024)(from_source)  # shared, never changed


def _apply(value: Any, step: str) -> Any:
    """One item of `Test.via` applied to a value that `plain_size` has seen; else one of FAULTS."""
    if type(value) is Items:
        value = _taken(value, step)
    if step == "is" and type(value) is not bool:
        raise TypeError("neither True nor False")
    if step in ("list", "tuple") and type(value) in SETS:
        raise ValueError("the order of a set hangs on the hash seed")
    if step == "str":
        plain_size(value, MAX_SOURCE, PLAIN - SETS)
    if step in ("sorted", "min", "max"):
        value = _orderable(value)
    if step == "set":
        value = _distinct(value)
    if step == "sum":
        _check_sum(value)
    if step.startswith("{}["):
        return value[_expected(step[3:-1])]
    if step.startswith("round({}, "):
        return round(value, int(step[10:-1]))
    return VIA["bool" if step == "is" else step](value)


def _taken(value: Items, step: str) -> list:
    """What `step` is applied to in place of an iterator; TypeError where Python has one."""
    indexed = step.startswith("{}[") and value.kind in WITH_INDEX
    if indexed or step in ITERATING or (step in ("len", "bool") and value.kind in WITH_LENGTH):
        return value.items
    if step == "bool":
        return [value]  # true, even if nothing is left in it
    raise TypeError(f"no {step} of a {value.kind}")


def _check_sum(items: Iterable) -> None:
    """ValueError where it takes long: every addition goes through all digits so far."""
    sizes = [item.bit_length() for item in items if type(item) is int]
    if len(sizes) * max(sizes, default=0) > 10**9:
        raise ValueError("too many digits to add up")


def _through(value: Any, via: tuple[str, ...]) -> Any:
    limit = MAX_VALUE if via else MAX_SOURCE + 2  # nothing larger can be expected
    plain_size(value, limit, PLAIN | {Items})
    return reduce(_apply, via, value)


def _passes(result: Any, test: Test) -> bool:
    expected = _expected(test.expected)
    if test.tolerance is None:
        return _equal(result, expected)
    close = type(result) in NUMBERS and abs(result - expected) < test.tolerance
    return close or result == expected  # inf - inf is NaN


def holds(value: Any, test: Test) -> bool:
    """Whether a returned value passes; one that is not plain, or that `via` cannot take, fails."""
    try:
        return _passes(_through(value, test.via), test)
    except FAULTS:
        return False


def relabel(test: Test, value: Any) -> Test | None:
    """The same test, expecting what the ground truth's value gives; None if that makes no test."""
    try:
        result = _through(value, test.via)
        tolerance = None if test.tolerance is None else min(test.tolerance, _widest(result))
        new = Test(test.call, to_source(result), test.via, tolerance)
        return new if _passes(result, new) else None
    except FAULTS:
        return None


def _widest(target: complex) -> float:
    """The largest tolerance that still says something: 0.1, or a hundredth of the target."""
    return max(0.1, 0.01 * abs(target))


# ---- expressions ----
ENTRY = object()  # what the name of the entry point means
BUILTINS = VIA | {kind.__name__: kind for kind in (range, int, float, complex, dict, frozenset)}
BUILTINS["math"] = math
DISPLAYS = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
SIGNS = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}
OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}


def parse_python(text: str) -> ast.Module | None:
    """The syntax tree, or None for what is not Python or too much for its parser."""
    try:
        return ast.parse(text, "<reply>")
    except (SyntaxError, *FAULTS):
        return None


def _operate(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """function(a, b) for one of OPERATORS; ValueError where the result would be too large."""
    numbers, size = {type(a), type(b)} <= NUMBERS, 0
    if function is operator.mod and not numbers:
        raise ValueError("`%` formats a text, to any width")
    if function is operator.mul and not numbers:
        size = math.prod(x if type(x) is int else len(x) for x in (a, b))
    if function is operator.pow and type(a) is type(b) is int:
        size = a.bit_length() * b
    if function is operator.lshift:
        size = a.bit_length() + b
    if size > MAX_SOURCE:
        raise ValueError("a result that is too large")
    result = function(a, b)
    if type(result) is int and result.bit_length() > 4 * MAX_SOURCE:
        raise ValueError("an integer without a source")  # and slow to divide
    if type(result) in SETS | {dict}:
        _distinct(result)
    return result


@dataclass(frozen=True)
class Returned:
    """Stands for what the entry point returns while an expression is read: the call, and `via`."""

    call: str
    via: tuple[str, ...] = ()

    def then(self, step: str) -> "Returned":
        if "str" in self.via or len(self.via) > 5:
            raise ValueError("too little is left of the value")  # len(str(f(x))[0]) is always 1
        return Returned(self.call, (*self.via, step))


class Scope:
    """What the names of a reply mean: a plain value, one of BUILTINS, or ENTRY; others nothing."""

    def __init__(self, names: Mapping[str, Any], operators: Mapping[type, Callable] = OPERATORS):
        self.names, self.operators = dict(names), operators
        self.budget = 20 * MAX_SOURCE  # `plain_size` of all values that the reply builds

    def value(self, node: ast.AST) -> Any:
        """The value of an expression of literals, known names, listed built-ins and one call.

        A `Returned` if the call is in it; one of FAULTS where it has no value here.
        """
        match node:
            case ast.Constant(value=value) if type(value) in PLAIN:
                return value
            case ast.Name(id=name):
                value = self.names[name]
            case ast.Attribute(value=ast.Name(id=name), attr="inf" | "nan" | "pi" | "e" as attr):
                value = getattr(self.names[name], attr)
            case ast.UnaryOp(op=op, operand=operand):
                value = SIGNS[type(op)](self.value(operand))
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                items = [self.value(item) for item in items]
                value = DISPLAYS[type(node)](_distinct(items) if type(node) is ast.Set else items)
            case ast.Dict(keys=keys, values=values):
                keys = [self.value(key) for key in keys]
                _distinct(keys)
                value = dict(zip(keys, map(self.value, values), strict=True))
            case ast.BinOp(left=left, op=op, right=right):
                value = _operate(self.operators[type(op)], self.value(left), self.value(right))
            case ast.Subscript(value=inner, slice=index):
                value = self.value(inner).then(f"{{}}[{to_source(self.value(index))}]")
            case ast.Call(func=ast.Name(id=name), args=args, keywords=named):
                value = self._call(name, [self.value(arg) for arg in args], named)
            case _:
                raise ValueError(f"{type(node).__name__} has no value here")
        if type(value) not in (Returned, range):
            self.budget -= plain_size(value, min(self.budget, MAX_SOURCE))
        return value

    def _call(self, name: str, args: list, named: list[ast.keyword]) -> Any:
        if self.names[name] is ENTRY:
            pairs = [(item.arg or "", self.value(item.value)) for item in named]  # "": unpacked
            return Returned(_written(name, args, pairs))
        if self.names[name] is not BUILTINS[name] or named:
            raise ValueError(f"{name} is no built-in, or has keywords")
        if name == "round" and len(args) == 2:
            return args[0].then(f"round({{}}, {range(16).index(args[1])})")
        if name in VIA and len(args) > 1:
            raise ValueError("too many arguments")
        if args and type(args[0]) is Returned:
            return args[0].then(VIA[name].__name__)
        return _built(name, args)

    # ---- asserts ----
    def test(self, node: ast.expr) -> Test:
        """The test that the expression of an assert states; one of FAULTS where there is none."""
        match node:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() as op], comparators=[right]):
                got, expected = self._sides(left, right)
                if isinstance(op, ast.Is) and expected is not None:
                    if type(expected) is not bool:
                        raise ValueError("`is` has a meaning for None, True and False")
                    got = got.then("is")
                return Test(got.call, to_source(expected), got.via)
            case ast.Compare(
                left=ast.Call(ast.Name("abs"), [ast.BinOp(left, ast.Sub(), right)], []),
                ops=[ast.Lt() | ast.LtE() as op],
                comparators=[limit],
            ) if self.names["abs"] is abs:
                got, target = self._sides(left, right)
                return _near(got, target, self.value(limit), isinstance(op, ast.LtE))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr="isclose")):
                return self._isclose(node.args, node.keywords)
        negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        got = self.value(node.operand if negated else node).then("bool")
        return Test(got.call, str(not negated), got.via)

    def _sides(self, left: ast.expr, right: ast.expr) -> tuple[Returned, Any]:
        """What the call returns and the value on the other side, whichever side the call is on."""
        a, b = self.value(left), self.value(right)
        return (b, a) if type(b) is Returned else (a, b)

    def _isclose(self, args: list[ast.expr], named: list[ast.keyword]) -> Test:
        got, target = self._sides(*args)
        limits = {"rel_tol": 1e-9, "abs_tol": 0.0}
        limits |= {item.arg: self.value(item.value) for item in named}
        sound = all(0 <= limit < math.inf for limit in limits.values())
        if len(limits) > 2 or not sound or self.names["math"] is not math:
            raise ValueError("math.isclose with limits that have no meaning")
        tolerance = max(limits["rel_tol"] * abs(target), limits["abs_tol"])
        return _near(got, target, tolerance, closed=True)

    # ---- statements ----
    def read(self, statement: ast.stmt, top: bool = True) -> list[Test | None]:
        """The tests that a statement states, None for each malformed assert in it.

        Asserts count where they stand: at the margin, or at the top of a `def test...()` there.
        """
        is_test = isinstance(statement, ast.FunctionDef) and statement.name.startswith("test")
        if isinstance(statement, ast.Assert):
            try:
                tests = [self.test(statement.test)]
            except FAULTS:
                tests = [None]
        elif top and is_test and self.names.get(statement.name) is not ENTRY:
            tests = self._read_body(statement)
        else:
            tests = [None for node in ast.walk(statement) if isinstance(node, ast.Assert)]
        self._note(statement)
        return tests

    def _read_body(self, function: ast.FunctionDef) -> list[Test | None]:
        """The tests directly in a function. Names that it binds have their meaning in it alone."""
        outer, parameters = self.names, _parameters(function)
        self.names = {name: meaning for name, meaning in outer.items() if name not in parameters}
        tests = [test for statement in function.body for test in self.read(statement, top=False)]
        self.names = outer
        return tests

    def _note(self, statement: ast.stmt) -> None:
        """`name = literal` gives a name a meaning; other names that are bound lose theirs.

        So do lists, dicts and sets in a statement that is not understood: it may change them, as
        xs.append(1) does. The entry point keeps its meaning through `def f` and
        `from solution import f`.
        """
        known = self._assigned(statement)
        bound, used = _effects(statement, self.names)
        for name in bound if known else bound | used:
            if name in bound or type(self.names.get(name)) in (list, dict, set):
                self.names.pop(name, None)
        self.names |= known

    def _assigned(self, statement: ast.stmt) -> dict[str, Any]:
        """"x = [1]" -> {"x": [1]}; {} for what is no assignment of a plain value to one name."""
        try:
            match statement:
                case ast.Assign([ast.Name(name)], node) | ast.AnnAssign(ast.Name(name), value=node):
                    value = self.value(node)
                    return {} if type(value) is Returned else {name: value}
        except FAULTS:
            pass
        return {}


def _built(name: str, args: list) -> Any:
    """One of BUILTINS applied to values."""
    for arg in args:
        if type(arg) is range and len(arg) > MAX_SOURCE:
            raise ValueError("too much to build")
    if name != "str":  # it has a text of its own
        args = [list(arg) if type(arg) is range else arg for arg in args]
    if name in VIA and args:
        return _apply(args[0], name)
    if name == "frozenset" and args:
        args[0] = _distinct(args[0])
    if name == "dict" and args and type(args[0]) is not dict:
        _distinct(key for key, _ in args[0])
    return BUILTINS[name](*args)


def _near(got: Returned, target: Any, tolerance: float, closed: bool) -> Test:
    """abs(got - target) < tolerance, or <= if closed.

    ValueError for a tolerance that lets nothing or nearly everything pass.
    """
    limit = math.nextafter(tolerance, math.inf) if closed else float(tolerance)
    widest = math.nextafter(_widest(target), math.inf)
    if tolerance < 0 or not 0 < limit <= widest < math.inf:
        raise ValueError("a tolerance without a meaning")
    return Test(got.call, to_source(target), got.via, limit)


def _parameters(function: ast.FunctionDef) -> set[str]:
    return {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


def _effects(statement: ast.stmt, names: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Names that a statement binds where it stands, and names whose values it may change.

    "x = y" -> {"x"}, {"y"};  "def g(a): b = a + c" -> {"g"}, {"c"};  "assert f(x)" -> {}, {}
    """
    function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
    parts = statement.body if function else [statement]
    nodes = [node for part in parts for node in ast.walk(part)]
    bound = {name for node in nodes for name in _bound(node, names)}
    changing = [part for part in parts if not isinstance(part, ast.Assert)]
    loaded = [node for part in changing for node in ast.walk(part) if isinstance(node, ast.Name)]
    used = {node.id for node in loaded if isinstance(node.ctx, ast.Load)}
    if not function:
        return bound, used
    shared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    if not (isinstance(statement, ast.FunctionDef) and names.get(statement.name) is ENTRY):
        shared.add(statement.name)
    return shared, used - bound - _parameters(statement)


def _bound(node: ast.AST, names: Mapping[str, Any]) -> list[str]:
    """The names that a node by itself deletes, or binds to something else."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.alias(name=name, asname=None) if names.get(name) in (math, ENTRY):
            return []
        case ast.alias(name=name, asname=other):
            return [other or name.split(".")[0]]
        case ast.MatchMapping(rest=str(name)):
            return [name]
    name = getattr(node, "name", None)  # def, class, except ... as, case ... as
    return [name] if name else []


# ---- replies ----
ASSERT = re.compile(r"\s*assert\b")
MARGIN = re.compile(r"^(?=[^\s)\]}])", re.MULTILINE)
INDENTED = re.compile(r"^(?=[ \t]+assert\b)", re.MULTILINE)
TEST_HEAD = re.compile(r"def test\w*\(\)[^:\n]*:[^\n]*\n")
BROKEN = ast.parse("assert ...").body[0]  # stands for an assert that is not Python: malformed


def parse_assert(source: str, entry_point: str | None = None) -> Test | None:
    """The test of one assert statement about the entry point, or about the one function that it
    calls; None if malformed."""
    tree = parse_python(source.strip())
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Assert):
        return None
    if entry_point is None:
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        names = {getattr(function, "id", "math") for function in calls}
        names = names - BUILTINS.keys() or names
        entry_point = names.pop() if len(names) == 1 else ""
    return Scope({**BUILTINS, entry_point: ENTRY}).read(tree.body[0])[0]


def read_tests(blocks: Iterable[str], entry_point: str, limit: int) -> list[Test | None]:
    """The tests that the first `limit` asserts in blocks of code state; None for malformed ones."""
    scope, tests = Scope(BUILTINS), []
    for block in blocks:
        scope.names[entry_point] = ENTRY  # whatever an earlier block made of it
        for statement in _statements(block, scope):
            tests += scope.read(statement)
            if len(tests) >= limit:
                return tests[: max(limit, 0)]
    return tests


def _statements(text: str, scope: Scope, top: bool = True) -> Iterator[ast.stmt]:
    """The statements of a text at the margin; where it is no Python, those that are, one by one.

    "assert f(1) == 2\\nassert f(\\nassert f(3) == 4" -> the first, BROKEN, and the last.
    """
    if whole := parse_python(text):
        yield from whole.body
        return
    pieces = MARGIN.split(text, maxsplit=5000)[::-1]
    while pieces:
        piece = pieces.pop()
        tree, head = parse_python(piece), TEST_HEAD.match(piece)
        if tree:
            yield from tree.body
        elif head and top:  # one bad assert in a function of tests costs only itself
            function = ast.parse("def test(): pass").body[0]
            body = textwrap.dedent(piece[head.end() :])
            function.body = list(_statements(body, scope, top=False))
            yield function
        else:  # "assert f(1) == 2\n  assert f(3) == 4": only the first is good
            first, *rest = INDENTED.split(piece)
            tree = parse_python(first) if rest else _continued(piece, pieces, scope)
            yield from tree.body if tree else [BROKEN] * bool(ASSERT.match(first))
            yield from [BROKEN] * len(rest)


def _continued(piece: str, pieces: list[str], scope: Scope) -> ast.Module | None:
    """An assert that goes on in the next pieces, which are then taken; None if it does not."""
    if not ASSERT.match(piece):
        return None
    for count, more in enumerate(reversed(pieces), start=1):
        piece += more
        scope.budget -= len(piece)  # half of it may go into lines that are read once more
        if ASSERT.match(more) or piece.count("\n") > 50 or scope.budget < 10 * MAX_SOURCE:
            return None
        if tree := parse_python(piece):
            del pieces[-count:]
            return tree
    return None
