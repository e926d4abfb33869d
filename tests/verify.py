"""Does a benchmark work here? Every reference must pass its own tests, and a broken one must fail.

    python tests/verify.py HumanEvalPlus.jsonl.gz [--workers N] [--limit N]

Broken: its value replaced by another of the same type; where any value is accepted, by an exception. Exit status 1 if
a reference fails or a broken one passes.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import Judge, failures, load_judged, open_box
from eval import positive

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
ANY_VALUE = ("Mbpp/164",)  # its oracle takes any answer


def verify(path: str, workers: int | None = None, limit: int | None = None) -> bool:
    """Whether all is well; says what is not, and counts."""
    tasks, skipped = load_judged(path, limit)
    jobs = []
    for task in tasks:  # one after the other: all cases of a benchmark at once take gigabytes
        template = RAISING if task.question.id in ANY_VALUE else BROKEN
        broken = task.question.reference + template.replace("NAME", task.question.entry_point)
        jobs += [(task, task.question.reference), (task, broken)]
    with open_box(tasks[0].kind, workers) as box:
        judge = Judge(tasks, box)
        passed = [all(verdict.values()) for verdict in judge(jobs)]
        good, bad = passed[::2], [not passes for passes in passed[1::2]]
        for name, count in (+judge.left_out).items():
            print(f"{name}: {count} inputs are left out, their values are too large")
        for task, reference_passes, broken_fails in zip(tasks, good, bad, strict=True):
            if not reference_passes:
                reasons = failures(task, task.question.reference, box) if task.kind == "unittest" else []
                print(f"{task.question.id}: the reference fails", *reasons[:1])
            if not broken_fails:
                print(f"{task.question.id}: the broken reference passes")
    if skipped:
        print(f"{skipped} tasks are skipped, their libraries are not installed")
    print(f"{sum(good)} of {len(tasks)} references pass, {sum(bad)} of {len(tasks)} broken ones fail")
    return all(good + bad)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--workers", type=positive)
    parser.add_argument("--limit", type=positive)
    args = parser.parse_args()
    sys.exit(not verify(args.file, args.workers, args.limit))
