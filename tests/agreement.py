"""Compares our verdicts with those of the published tools: EvalPlus' on programs, cosmic-ray's on mutants.

    pip install 'codea1[eval]'
    export CODEA1_DATA=...                        # folder with HumanEvalPlus.jsonl.gz, MbppPlus.jsonl.gz, ULT_Lite.json
    python tests/agreement.py evalplus --out DIR  # 1,100 mixed samples over both sets, 45 minutes on one busy core
    python tests/agreement.py evalplus --part 20  # every 20th of them
    python tests/agreement.py mutants             # sources of the mutants of 30 functions, verdicts on those of 5

Samples are made from the reference solutions, each kind with a seed of its own: the solution itself, mutants of it, its
value with another type, its floats with noise, exceptions, hanging calls, and missing imports. Exit status 1 on a
difference that is not named in EXPECTED.
"""

import argparse
import ast
import contextlib
import io
import multiprocessing
import os
import random
import re
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import Judge, Task, load_tasks, mutants
from eval import journal
from sandbox import Sandbox, Status
from tasks import parse_assert

KINDS = {"canonical": 130, "mutant": 420, "type": 160, "noise": 110, "exception": 110, "timeout": 80, "import": 90}
EXPECTED = {  # task: text in the program, and why the verdicts may differ then
    "HumanEval/32": ("", "EvalPlus 0.3.1 leaves its loop before it notes that an input passed: every program fails"),
}
FILES = {"humaneval": "HumanEvalPlus.jsonl.gz", "mbpp": "MbppPlus.jsonl.gz"}


# ---- samples ----

WRAPPER = """
_program = {name}
_calls = [0]
def {name}(*args, **kwargs):
    _calls[0] += 1
    {before}
    value = _program(*args, **kwargs)
    {after}
    return value
"""
TYPES = ["str(value)", "[value]", "(value,)", "None", "list(value) if isinstance(value, tuple) else tuple(value)",
         "float(value)", "int(value)", "{'value': value}", "object()", "set(value)", "sorted(value)", "bool(value)",
         "value == 1 if isinstance(value, bool) else repr(value)", "complex(value)", "value[::-1]", "not value",
         "dict.fromkeys(value).keys()", "iter(value)", "[*value, None]", "value.encode()"]  # fmt: skip
NOISE = [1e-12, 3e-10, 4e-8, 3e-7, 2e-6, 5e-5, 1e-3]
NOISY = """
def _noise(value):
    if isinstance(value, float):
        return value + {eps} * {scale}
    return type(value)(map(_noise, value)) if isinstance(value, (list, tuple)) else value
"""
RAISES = ["raise ValueError('no')", "raise SystemExit(0)", "assert False", "raise KeyboardInterrupt", "1 / 0", "exit()",
          "raise BaseException", "_program(*args, *args, *args, *args)", "import os; os._exit(0)", "{}['missing']"]
HANGS = ["while True: pass", "import time; time.sleep(30)", "while True: _calls.append(1); _calls.pop()",
         "while True:\n        try:\n            while True: pass\n        except Exception: raise\n"]  # fmt: skip
UNKNOWN = ["math.floor(1.5)", "collections.Counter()", "re.compile('x')", "np.array([1])", "itertools.count()"]


def wrapped(task: Task, before: str = "pass", after: str = "pass") -> str:
    return task.question.reference + WRAPPER.format(name=task.question.entry_point, before=before, after=after)


def when(rng: random.Random, statement: str) -> str:
    """The statement at the first, a later, or every call."""
    return f"if _calls[0] {rng.choice(['== 1', '== 2', '== 3', '== 17', '>= 1'])}: " + statement


def sample(kind: str, task: Task, rng: random.Random) -> str | None:
    """A program of this kind for the task; None if there is none."""
    reference = task.question.reference
    if kind == "canonical":
        return reference
    if kind == "mutant":
        made = [mutant for group in mutants(reference).values() for mutant in group]
        return rng.choice(made) if made else None
    if kind == "type":
        return wrapped(task, after=f"value = {rng.choice(TYPES)}")
    if kind == "noise":
        has_floats = re.search(r"float|/[^/]|\d\.\d|sqrt|math", reference)
        noisy = NOISY.format(eps=rng.choice(NOISE), scale=rng.choice(["1", "abs(value)"]))
        return wrapped(task, after="value = _noise(value)") + noisy if has_floats else None
    if kind == "exception":
        return wrapped(task, before=when(rng, rng.choice(RAISES)))
    if kind == "timeout":
        hang = rng.choice(HANGS)
        return wrapped(task, before=f"if _calls[0] == {rng.choice([1, 2])}:\n        " + hang)
    lines = reference.split("\n")
    kept = [line for line in lines if not line.startswith(("import ", "from "))]
    if len(kept) < len(lines):
        return "\n".join(kept)
    return wrapped(task, before=rng.choice(UNKNOWN)) if rng.random() < 0.2 else None


def make_samples(tasks: list[Task]) -> list[tuple[str, Task, str]]:
    """(kind, task, program) of every kind, spread over all tasks by a fixed seed."""
    samples = []
    for kind, count in KINDS.items():
        rng = random.Random(kind)
        order = rng.sample(tasks, len(tasks)) * 10
        found: list[tuple[str, Task, str]] = []
        while len(found) < count:
            task = order.pop(0)
            program = sample(kind, task, rng)
            found += [(kind, task, program)] if program is not None else []
        samples += found
    return samples


# ---- EvalPlus ----


def evalplus_task(folder: Path, task_id: str, programs: list[str]) -> list[dict[str, bool]]:
    """Verdicts of the evalplus package on programs for a task, on the base inputs and on these and the plus inputs;
    expected outputs from its own code."""
    os.environ["HUMANEVAL_OVERRIDE_PATH"] = str(folder / FILES["humaneval"])
    os.environ["MBPP_OVERRIDE_PATH"] = str(folder / FILES["mbpp"])
    from evalplus.eval import PASS, untrusted_check
    from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
    from evalplus.gen.util import trusted_exec

    multiprocessing.set_start_method("fork", force=True)
    problem, verdicts = evalplus_problems()[task_id], [{} for _ in programs]
    for part in ("base", "plus"):
        with contextlib.redirect_stdout(io.StringIO()):
            expected, times = trusted_exec(
                problem["prompt"] + problem["canonical_solution"], problem[f"{part}_input"], problem["entry_point"],
                record_time=True, output_not_none=problem["entry_point"] in MBPP_OUTPUT_NOT_NONE_TASKS)  # fmt: skip
        for program, verdict in zip(programs, verdicts, strict=True):
            status, _ = untrusted_check("mbpp" if "Mbpp" in task_id else "humaneval", program,
                                        problem[f"{part}_input"], problem["entry_point"], expected, problem["atol"],
                                        times, fast_check=True)  # fmt: skip
            verdict[part] = status == PASS and verdict.get("base", True)
    return verdicts


@lru_cache
def evalplus_problems() -> dict[str, dict]:
    from evalplus.data import get_human_eval_plus, get_mbpp_plus

    return {**get_human_eval_plus(), **get_mbpp_plus()}


def compare_evalplus(args: argparse.Namespace, folder: Path) -> bool:
    """Task by task, as all expected outputs together take gigabytes, and so that an interrupted comparison goes on."""
    programs: dict[str, list[tuple[str, str]]] = defaultdict(list)  # task id -> (kind, program)
    everything = [task for name in FILES.values() for task in load_tasks(str(folder / name))]
    for kind, task, program in make_samples(everything)[:: args.part]:
        programs[task.question.id].append((kind, program))
    tasks = [task for task in everything if task.question.id in programs]
    spawn = multiprocessing.get_context("spawn")  # for processes of one thread, which evalplus then forks
    with Sandbox(args.workers, timeout=10.0, memory_mb=4096) as box, ProcessPoolExecutor(args.workers, spawn) as pool:

        def verdicts(part: list[Task]) -> list[list[dict]]:
            """For each task: for each program "ours" and "evalplus", base and plus of each."""
            texts = [[program for _, program in programs[task.question.id]] for task in part]
            theirs = list(pool.map(evalplus_task, [folder] * len(part), [task.question.id for task in part], texts))
            pairs = [(task, text) for task, row in zip(part, texts, strict=True) for text in row]
            ours = iter(Judge(part, box)(pairs))
            return [[{"ours": next(ours), "evalplus": verdict} for verdict in row] for row in theirs]

        def work(_: int, part: list[Task]) -> list[dict]:
            rows = verdicts(part)
            for i, task in enumerate(part):
                if any(pair["ours"] != pair["evalplus"] for pair in rows[i]):  # limits are wall times: alone, once more
                    (rows[i],) = verdicts([task])
            return [{"verdicts": row, "agree": [pair["ours"] == pair["evalplus"] for pair in row]} for row in rows]

        place = Path(args.out or tempfile.mkdtemp())
        rows = journal(place, args, tasks, 2 * args.workers, work, ["agree"])
    return report_evalplus(programs, rows)


def report_evalplus(programs: dict[str, list[tuple[str, str]]], rows: list[dict]) -> bool:
    table, unexplained = defaultdict(Counter), 0
    for row in rows:
        text, why = EXPECTED.get(row["task_id"], ("", ""))
        for (kind, program), pair in zip(programs[row["task_id"]], row["verdicts"], strict=True):
            different, reason = pair["ours"] != pair["evalplus"], why if text in program else ""
            table[kind].update(samples=1, fail=not all(pair["evalplus"].values()), differ=different)
            if different:
                unexplained += not reason
                print(f"--- {row['task_id']} ({kind}): {pair}: {reason or 'not explained' + chr(10) + program[-600:]}")
    table["all kinds"] = sum(table.values(), Counter())
    for kind, row in table.items():
        print(f"{kind:<10} {row['samples']:>5} samples {row['fail']:>5} fail {row['differ']:>4} differ")
    print(f"{unexplained} differences are not explained")
    return unexplained == 0


# ---- cosmic-ray ----


def operator_label(name: str) -> str:
    """Our name for a cosmic-ray operator class."""
    from cosmic_ray.operators.binary_operator_replacement import BinaryOperators
    from cosmic_ray.operators.comparison_operator_replacement import ComparisonOperators
    from cosmic_ray.operators.unary_operator_replacement import UnaryOperators

    kinds = {"ReplaceBinaryOperator": ("binary", BinaryOperators), "ReplaceUnaryOperator": ("unary", UnaryOperators),
             "ReplaceComparisonOperator": ("comparison", ComparisonOperators)}  # fmt: skip
    plain = {"AddNot": "not", "ReplaceTrueWithFalse": "True False", "ReplaceFalseWithTrue": "False True",
             "ReplaceAndWithOr": "and or", "ReplaceOrWithAnd": "or and", "NumberReplacer": "number",
             "ReplaceBreakWithContinue": "break continue", "ReplaceContinueWithBreak": "continue break",
             "ExceptionReplacer": "exception", "RemoveDecorator": "decorator",
             "ZeroIterationForLoop": "zero iterations"}  # fmt: skip
    if name in plain:
        return plain[name]
    kind, old, new = name.split("_")
    word, symbols = kinds[kind]
    old, new = (new, "Nothing") if old == "Delete" else (old, new)
    return f"{word} {symbols[old].value.strip()} {(symbols[new].value or '').strip()}"


def cosmic_mutants(source: str) -> dict[str, dict[str, str]]:
    """Operator label -> normalised mutant -> cosmic-ray's own text of it, for all operators without arguments."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    provider, tree, original = OperatorProvider(), get_ast(source), ast.unparse(ast.parse(source))
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in provider:
        if provider[name].arguments():
            continue
        operator = provider[name]()
        for i in range(sum(1 for node in ast_nodes(tree) for _ in operator.mutation_positions(node))):
            text = mutate_code(source, operator, i)
            with contextlib.suppress(SyntaxError, ValueError):
                normal = ast.unparse(ast.parse(text))
                if normal != original:
                    found[operator_label(name)][normal] = text
    return found


def killed_by_cosmic_ray(mutant: str, tests: list[str], folder: Path) -> bool:
    from cosmic_ray.testing import TestOutcome, run_tests

    (folder / "test.py").write_text(mutant + "\n" + "\n".join(tests) + "\n")
    outcome, _ = run_tests(f"{sys.executable} {folder / 'test.py'}", 10)
    return outcome is TestOutcome.KILLED


def compare_mutants(folder: Path, functions: int, workers: int) -> bool:
    tasks = load_tasks(str(folder / "ULT_Lite.json"), functions)
    count = differences = 0
    for task in tasks:
        ours, theirs = mutants(task.question.reference), cosmic_mutants(task.question.reference)
        count += sum(map(len, theirs.values()))
        for label in ours.keys() | theirs.keys():
            difference = set(ours.get(label, ())) ^ set(theirs.get(label, ()))
            differences += len(difference)
            for mutant in difference:
                whose = "ours" if mutant in ours.get(label, ()) else "theirs"
                print(f"{task.question.entry_point}, {label}: only {whose}\n{mutant}")
    print(f"{count} mutants of {len(tasks)} functions by cosmic-ray, {differences} differences")
    return compare_kills(tasks, workers) and not differences


def compare_kills(tasks: list[Task], workers: int, functions: int = 5, limit: int = 600) -> bool:
    """A fixed suite per function (the asserts of the file that hold) on the same mutants, run by both."""
    jobs: list[tuple[Task, str, str, list[str]]] = []
    with Sandbox(workers) as box, tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            asserts = [a for a in task.row["test_list"] if parse_assert(a, task.question.entry_point)]
            (statuses,) = box.check([(task.question.reference, asserts)])
            suite = [a for a, status in zip(asserts, statuses, strict=True) if status is Status.PASS]
            if len(suite) >= 2 and len({job[0].question.id for job in jobs}) < functions:
                pairs: dict[str, str] = {}
                for group in cosmic_mutants(task.question.reference).values():
                    pairs |= group
                jobs += [(task, normal, text, suite) for normal, text in list(pairs.items())[: limit // functions]]
        ours = [any(status is not Status.PASS for status in statuses)
                for statuses in box.check([(normal, suite) for _, normal, _, suite in jobs])]
        theirs = [killed_by_cosmic_ray(text, suite, Path(folder)) for _, _, text, suite in jobs]
    for (task, normal, _, _), a, b in zip(jobs, ours, theirs, strict=True):
        if a != b:
            print(f"{task.question.entry_point}: killed by {'our' if a else 'their'} run only\n{normal}")
    agree = sum(a == b for a, b in zip(ours, theirs, strict=True))
    print(f"{agree} of {len(jobs)} kill verdicts agree, {sum(theirs)} killed")
    return ours == theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["evalplus", "mutants"])
    parser.add_argument("--part", type=int, default=1, help="only every so many samples")
    parser.add_argument("--functions", type=int, default=30, help="of ULT_Lite, for the sources of mutants")
    parser.add_argument("--out", help="folder of the verdicts; a comparison that was cut short goes on there")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    folder = Path(os.environ.get("CODEA1_DATA") or sys.exit("set CODEA1_DATA to the folder of the benchmark files"))
    if args.what == "evalplus":
        sys.exit(not compare_evalplus(args, folder))
    sys.exit(not compare_mutants(folder, args.functions, args.workers))


if __name__ == "__main__":
    main()
