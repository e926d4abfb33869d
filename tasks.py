"""Questions, their files and prompts, and the way from a model's reply to a program or to tests.

A reply is only read, never run: programs are cut out of it as text, asserts go to asserts.py.
Understood are whole programs, fenced or bare, with or without the prompt's imports and helpers; and
the function's body alone: indented, flush left, or with only its first line flush left.
"""

import ast
import gzip
import json
import re
import symtable
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple

from asserts import FAULTS, Test, equal, holds, parse_assert, parse_python, read_tests  # noqa: F401
from model import read_text


@dataclass(frozen=True)
class Hidden:
    """What only the evaluation reads: asserts with the edge cases, wrong programs, the split."""

    golden: tuple[str, ...]
    mutants: tuple[str, ...]
    family: str
    split: str


@dataclass(frozen=True)
class Question:
    """One task: `reference` is the ground truth, `tests` are the asserts that training may read."""

    id: str
    prompt: str
    entry_point: str
    reference: str
    tests: tuple[str, ...]
    hidden: Hidden | None = None

    @property
    def golden(self) -> tuple[str, ...]:
        """The asserts that an evaluation scores programs with."""
        return self.hidden.golden if self.hidden else self.tests


# ---- blocks of a reply ----
PYTHON = {"", "python", "py", "python3", "py3"}
OPENING = re.compile(r"([ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(`{3,}|~{3,}(?!~))([^`]*)")
# Code on a fence's line:
CODE = re.compile(r"\s*(?:py(?:thon)?3?[ \t]+)?((?:def|async|class|import|from|assert)\b.*|@.*)")
FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})", re.MULTILINE)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
EXITS = (ast.Return, ast.Yield, ast.YieldFrom)
MAX_ENDS = 20  # fences that are tried as the end of one block
MAX_TRIED = 400_000  # characters that are parsed to find the ends of a reply's blocks


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")


class End(NamedTuple):
    """A place where a block may end."""

    text: str  # of the block up to there
    after: int  # number of the line behind it


def _blocks(reply: str) -> list[tuple[str, str]]:
    """Tag (lower case, "" if none) and text of each fenced block.

    "1. ```Py\\n   x\\n   ```" -> [("py", "x\\n")]. Bare code before a stray fence is one too.
    """
    lines, blocks, at, room = _unix(reply).split("\n"), [], 0, MAX_TRIED
    while at < len(lines):
        opening, at = OPENING.fullmatch(lines[at]), at + 1
        if not opening:
            continue
        head = "" if blocks else "\n".join([*lines[: at - 1], ""])
        if _is_code(head) and not opening[3].strip():
            blocks.append(("", head))
            continue
        tag, ends = _tag(opening[3]), _ends(opening, lines, at)
        end, room = _whole(ends, room if tag in PYTHON else 0)
        blocks.append((tag, end.text))
        at = end.after
    return blocks


def _is_code(text: str) -> bool:
    """Whether a text is Python that defines or asserts something; one word of prose is Python."""
    body = getattr(parse_python(text), "body", [])
    return any(isinstance(node, (*DEFINITIONS, ast.Assert)) for node in body)


def _tag(info: str) -> str:
    """" {.Python title=a}" -> "python"; "def f(x):" -> "": code begins on the fence's line."""
    return "" if CODE.match(info) else re.match(r"[\s{.]*([\w+#-]*)", info)[1].lower()


def _whole(ends: Iterator[End], room: int) -> tuple[End, int]:
    """The first end at which the block is Python (it may show fences in its strings), else the
    first; and what is left of `room`, the characters that may be parsed."""
    first = end = next(ends)
    while end and room > 0:
        room -= len(end.text)
        if parse_python(end.text):
            return end, room
        end = next(ends, None)
    return first, room


def _ends(opening: re.Match, lines: list[str], start: int) -> Iterator[End]:
    """Where the block that begins on line `start` may end, the likely places first: closing fences
    and openings of other blocks; the end of the reply; fences at the end of a line of code."""
    fence, behind, found = opening[2], [], 0
    for at in range(start, len(lines)):
        line = lines[at].strip(" \t")
        if line.startswith(fence):
            closing = not line.strip(fence[0])
            if closing or re.match(r"[ \t]*\w", line[len(fence) :]):
                found += 1
                yield End(_text(opening, lines[start:at]), at + closing)
        elif line.endswith(fence):
            behind.append(at)
        if found == MAX_ENDS:
            break
    else:
        yield End(_text(opening, lines[start:]), len(lines))
    for at in behind[:MAX_ENDS]:
        last = lines[at].rstrip(" \t").rstrip(fence[0])
        yield End(_text(opening, [*lines[start:at], last]), at + 1)


def _text(opening: re.Match, lines: list[str]) -> str:
    """Lines of a block as text, without the indent of its fence, with code that began beside it."""
    first = next((line for line in lines if line.strip()), "")
    depth = min(len(opening[1]), len(first) - len(first.lstrip(" \t")))  # the first line tells
    if depth:
        lines = [re.sub(rf"^[ \t]{{1,{depth}}}", "", line) for line in lines]
    if code := CODE.match(opening[3]):
        lines = [code[1], *lines]
    return "\n".join([*lines, ""])


# ---- programs ----
def extract_tests(reply: str, entry_point: str, limit: int) -> list[Test | None]:
    """The tests that the first `limit` asserts of a reply state, in order; None: malformed.

    They are read from blocks tagged Python or not at all; without any fence, from the whole reply.
    """
    blocks = _blocks(reply)
    code = [text for tag, text in blocks if tag in PYTHON] if blocks else [_unix(reply)]
    return read_tests(code, entry_point, limit)


def top_names(program: str) -> set[str]:
    """The names that a program binds at its top level; none if it is not Python."""
    try:
        symbols = symtable.symtable(program, "<reply>", "exec").get_symbols()
    except (SyntaxError, *FAULTS):
        return set()
    return {item.get_name() for item in symbols if item.is_assigned() or item.is_imported()}


def extract_program(reply: str, entry_point: str) -> str:
    """The last Python block of a reply (a missing tag will do) that defines the entry point, else
    the last one tagged Python, else the last block that parses, else the whole reply if it parses;
    "" if there is none of these."""
    blocks = [(tag, text) for tag, text in reversed(_blocks(reply)) if text.strip()]
    python = [text for tag, text in blocks if tag in PYTHON and entry_point in text]
    choices = chain(
        (text for text in python if entry_point in top_names(text)),
        (text for tag, text in blocks if tag and tag in PYTHON),
        (text for _, text in [*blocks, ("", _unix(reply))] if text.strip() and parse_python(text)),
    )
    return next(choices, "")


def make_solution(question: Question, reply: str) -> str:
    """The program of a reply, behind the prompt's own code if it lacks names that this defines."""
    prompt, name = question.prompt, question.entry_point
    program = extract_program(reply, name)
    if name in top_names(program):
        return _behind(prompt, program, name)
    bare = FENCE.split(_unix(reply), maxsplit=1)[0]
    return _as_body(prompt, program or bare, name) or _behind(prompt, program, name)


def _as_body(prompt: str, text: str, entry_point: str) -> str:
    """The prompt continued by the body of its function; "" if the text does not return."""
    head = prompt.rstrip() + "\n"
    for body in (text, "    " + text, textwrap.indent(textwrap.dedent(text), "    ")):
        for node in getattr(parse_python(head + body), "body", []):
            if isinstance(node, DEFINITIONS) and node.name == entry_point:
                own = [item for item in node.body if not isinstance(item, DEFINITIONS)]
                inner = ast.walk(ast.Module(own))
                ends = [item.lineno for item in inner if isinstance(item, EXITS)]
                if max(ends, default=0) > head.count("\n"):
                    return head + body
    return ""


def _behind(prompt: str, program: str, entry_point: str) -> str:
    """The program behind the prompt's code if it lacks a name of it. The stub of the entry point
    stays out: else a program that does not define it would load."""
    code = prompt if parse_python(prompt) else prompt.rstrip() + "\n    pass\n"
    known = top_names(program) | {entry_point}
    if not program.strip() or not parse_python(program) or top_names(code) <= known:
        return program
    front, lines = code.split("\n"), program.split("\n")
    for node in reversed(parse_python(code).body):
        if isinstance(node, DEFINITIONS) and node.name == entry_point:
            start = min(item.lineno for item in (node, *node.decorator_list))
            del front[start - 1 : node.end_lineno]
    body = parse_python(program).body
    futures = [node.end_lineno for node in body if getattr(node, "module", "") == "__future__"]
    start = max(futures, default=0)  # `from __future__` has to stay first
    return "\n".join([*lines[:start], *front, *lines[start:]])


# ---- files ----
def load_questions(path: str) -> list[Question]:
    """The questions of a .jsonl, .jsonl.gz or .json file; ValueError names file and record.

    Formats: ours (the fields of Question), EvalPlus and HumanEval (reference: prompt and
    canonical_solution; tests: the base asserts that are understood here), ULT (no tests: the file's
    own are not gold).
    """
    return [question for question, _ in load_records(path)]


def load_records(path: str) -> list[tuple[Question, dict[str, Any]]]:
    """`load_questions`, each question with its record in the file."""
    text, place, number, records = read_text(path), str(path), 1, {}
    at_once = place.removesuffix(".gz").endswith(".json")
    try:
        rows = json.loads(text) if at_once else text.split("\n")
        if type(rows) is not list:
            raise TypeError("it holds no list of questions")
        for number, row in enumerate(rows, start=1):
            place = f"{path}, record {number}"
            if at_once or row.strip():
                record = row if at_once else json.loads(row)
                question = _question(record)
                if question.id in records:
                    raise ValueError(f"the id {question.id!r} is there twice")
                records[question.id] = question, record
    except json.JSONDecodeError as error:
        line = error.lineno if at_once else number
        reason = f"line {line} is no JSON ({error.msg}, column {error.colno})"
        raise ValueError(f"{place}: {reason}: fetch or write the file again") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"the field {error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{place}: {reason}") from error
    if not records:
        raise ValueError(f"{path}: there are no questions in it")
    return list(records.values())


def _question(row: dict[str, Any]) -> Question:
    hidden = None
    if type(row) is not dict:
        raise TypeError(f"a question is a JSON object, not {row!r:.40}")
    if "func_name" in row:
        fields = str(row["task_id"]), row["prompt"], row["func_name"], row["code"], []
    elif "task_id" in row:
        prompt, name, code = row["prompt"], row["entry_point"], row["canonical_solution"]
        whole = _behind(prompt, code, name) if name in top_names(code) else prompt + code
        tests = [text for text in script_asserts(row, name) if parse_assert(text, name)]
        fields = row["task_id"], prompt, name, whole, tests
    elif "id" in row or "reference" in row:
        fields = [row[k] for k in ("id", "prompt", "entry_point", "reference", "tests")]
        if hidden := row.get("hidden"):
            golden, mutants = tuple(hidden["golden"]), tuple(hidden["mutants"])
            hidden = Hidden(golden, mutants, hidden["family"], hidden["split"])
    else:
        raise ValueError(f"a format that is not known, with the fields {list(row)}")
    *texts, tests = fields
    if type(tests) is not list or not all(type(text) is str for text in (*texts, *tests)):
        raise TypeError("the fields of a question are texts, its tests a list of texts")
    question = Question(*texts, tuple(tests), hidden)
    if question.entry_point not in top_names(question.reference):
        raise ValueError(f"the reference does not define {question.entry_point!r}")
    return question


def script_asserts(row: dict[str, Any], entry_point: str) -> list[str]:
    """The asserts about the entry point in a record's `check(candidate)` script, or in its lines of
    asserts."""
    script = row.get("assertion") or row.get("test", "")
    nodes = list(ast.walk(parse_python(script) or ast.Module([])))
    for node in nodes:
        if isinstance(node, ast.Name) and node.id == "candidate":
            node.id = entry_point
    tests = [ast.Assert(node.test) for node in nodes if isinstance(node, ast.Assert)]
    return [text for text in map(ast.unparse, tests) if entry_point in text]


def save_questions(path: str, questions: Iterable[Question]) -> None:
    """Write our own format, one object a line, compressed if the name ends in .gz; the same bytes
    every time."""
    text = "".join(json.dumps(asdict(question)) + "\n" for question in questions).encode()
    with open(path, "wb") as file:
        file.write(gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


# ---- prompts ----
ASK = """\
Write exactly {k} test assertions for `{entry_point}` in one ```python block, one per line, each \
of the form
assert {entry_point}(ARGUMENTS) == EXPECTED
with literal arguments and, as EXPECTED, the literal value that a right solution returns. Choose \
inputs that are likely
to expose a mistake: edge cases, boundaries, ties, empty and extreme values."""
SHOWN = "Problem:\n\n{prompt}\n\nA solution that may be wrong:\n\n```python\n{program}\n```\n\n"
PROMPTS = {  # to the coder, to the tester that sees a program, to the tester that does not
    "plain": ("{prompt}", "{prompt}\n{program}", "{prompt}\ntest"),
    "instruct": (
        "Solve this problem in Python:\n\n{prompt}\n\nGive the complete function `{entry_point}`, "
        "with the imports and helpers it needs, in one ```python block.",
        SHOWN + ASK,
        "Problem:\n\n{prompt}\n\n" + ASK,
    ),
}


def _chat(template: str, question: Question, **fields: Any) -> list[dict]:
    text = template.format(prompt=question.prompt, entry_point=question.entry_point, **fields)
    return [{"role": "user", "content": text}]


def coder_messages(question: Question, style: str) -> list[dict]:
    """The chat that asks for a program; `style` is a key of PROMPTS."""
    return _chat(PROMPTS[style][0], question)


def tester_messages(question: Question, program: str | None, k: int, style: str) -> list[dict]:
    """The chat that asks for k asserts: for a program, or, with None, for the question alone."""
    template = PROMPTS[style][2 if program is None else 1]
    return _chat(template, question, program=program, k=k)
