"""Speed of the sandbox, and the ground truths of two benchmarks through it. Run by hand on a quiet machine.

    python tests/bench/sandbox.py                      programs per second against a fresh interpreter for each program,
                                                       the cost of each layer, and of one program in ten that hangs
    python tests/bench/sandbox.py --ground-truths DIR  every check(candidate) script of the files in DIR with 1, 2 and 8
                                                       workers, and every ground truth's values twice
"""

import argparse
import gzip
import json
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from sandbox import Sandbox, Status
from tasks import Test

# Programs as language models write them for short questions, with the imports that they like.
PROGRAMS = {
    "running": """from typing import List

def running(xs: List[int]) -> List[int]:
    out, total = [], 0
    for x in xs:
        total += x
        out.append(total)
    return out
""",
    "most_common": """from collections import Counter
from typing import List, Optional

def most_common(xs: List[int]) -> Optional[int]:
    counts = Counter(xs)
    if not counts:
        return None
    top = max(counts.values())
    return min(x for x, n in counts.items() if n == top)
""",
    "words": """import re

def words(xs):
    text = " ".join(f"n{x}" for x in xs)
    return [m.group(1) for m in re.finditer(r"n(\\d+)", text)]
""",
    "smallest": """import heapq
import math

def smallest(xs):
    return heapq.nsmallest(3, [math.isqrt(abs(x)) for x in xs])
""",
    "evens": """def evens(xs):
    return [x for x in xs if x % 2 == 0]
""",
    "pairs": """from itertools import combinations

def pairs(xs):
    return sorted({a + b for a, b in combinations(xs, 2)})
""",
}


def jobs(n: int) -> list[tuple[str, str, list[Test]]]:
    """n programs, no two the same, with 16 tests each that they pass."""
    rng, made = random.Random(0), []
    for name, program in PROGRAMS.items():
        scope: dict = {}
        exec(program, scope)
        inputs = [[rng.randrange(100) for _ in range(8)] for _ in range(16)]
        made.append((name, program, [Test(f"{name}({xs})", repr(scope[name](xs))) for xs in inputs]))
    return [(f"{program}\n# {i}\n", name, tests) for i in range(n) for name, program, tests in [made[i % len(made)]]]


def fresh(items: list, at_once: int) -> float:
    """Programs per second of one `python -I` for each, with as many at a time."""
    def run(item: tuple) -> int:
        program, _, tests = item
        script = program + "\n".join(f"assert {test.call} == {test.expected}" for test in tests)
        null = subprocess.DEVNULL
        return subprocess.run([sys.executable, "-I", "-c", script], stdin=null, stdout=null, stderr=null).returncode

    with ThreadPoolExecutor(at_once) as pool:
        start = time.perf_counter()
        assert not any(pool.map(run, items))
        return len(items) / (time.perf_counter() - start)


def sandboxed(items: list, workers: int, without: list[str]) -> float:
    with Sandbox(workers=workers, _without=without) as box:
        box.judge(items[:20])
        start = time.perf_counter()
        verdicts = box.judge(items)
        seconds = time.perf_counter() - start
    assert all(status is Status.PASS for verdict in verdicts for status in verdict.statuses)
    return len(items) / seconds


def hanging(items: list, workers: int) -> tuple[float, float, float]:
    """Programs per second that do not hang: when none hangs, and when every tenth does; and seconds for all then."""
    rates, seconds, now = [], 0.0, time.perf_counter
    for every in (0, 10):
        with Sandbox(workers=workers, timeout=1.0) as box:
            box.judge(items[:20])
            done, futures, start = [], [], now()
            for i, (program, name, tests) in enumerate(items):
                hangs = every and i % every == every - 1
                loop = f"\ndef {name}(xs):\n    while True:\n        pass\n" if hangs else ""
                futures.append(box.submit(program + loop, tests[:1] if hangs else tests))
                if not hangs:
                    futures[-1].add_done_callback(lambda _, start=start, done=done: done.append(now() - start))
            statuses = [future.result() for future in futures]
            seconds = now() - start
        assert sum(status == [Status.TIMEOUT] for status in statuses) == (len(items) // every if every else 0)
        rates.append(len(done) / max(done))
    return rates[0], rates[1], seconds


def measure(workers: int, n: int) -> None:
    items = jobs(n)
    with Sandbox(workers=1) as box:
        layers = box.report()
    print("layers:", ", ".join(f"{layer} {state}" for layer, state in layers.items()))
    # Twice, in turn, so that a machine that is busy for a while does not favour one side.
    slow = [fresh(items[: n // 4], workers), 0.0]
    fast = [sandboxed(items, workers, []), sandboxed(items, workers, [])]
    slow[1] = fresh(items[: n // 4], workers)
    print(f"one python -I for each program: {slow[0]:.0f} and {slow[1]:.0f} programs/s, {workers} at a time")
    print(f"sandbox, every layer on:        {fast[0]:.0f} and {fast[1]:.0f} programs/s, {workers} workers")
    print(f"ratio: {sum(fast) / sum(slow):.1f}")
    whole = workers / max(fast) * 1e3
    for layer in [*layers, "all of them"]:
        without = list(layers) if layer == "all of them" else [layer]
        print(f"  without {layer:18} {workers / sandboxed(items, workers, without) * 1e3 - whole:+.3f} ms per program")
    none, tenth, seconds = hanging(items[: n // 4], workers)
    print(f"1 in 10 hangs (limit 1 s): the others at {tenth:.0f} programs/s, without hanging ones {none:.0f}; "
          f"all {n // 4} done after {seconds:.1f} s")


def scripts(folder: Path) -> None:
    names = [f"{name}_check.jsonl.gz" for name in ("humanevalplus", "mbppplus")]
    rows = [json.loads(line) for name in names for line in gzip.open(folder / name, "rt")]
    for workers in (1, 2, 8):
        start = time.perf_counter()
        with Sandbox(workers=workers) as box, ThreadPoolExecutor(workers) as pool:
            statuses = list(pool.map(lambda row, box=box: box.check_script(
                row["canonical_solution"], row["test"], row["entry_point"], 30.0), rows))  # fmt: skip
        failed = {row["task_id"]: status.value for row, status in zip(rows, statuses, strict=True)
                  if status is not Status.PASS}  # fmt: skip
        seconds = time.perf_counter() - start
        print(f"{workers} workers: {len(rows) - len(failed)} of {len(rows)} pass in {seconds:.0f} s; not: {failed}")


def values(folder: Path) -> None:
    for name in ("HumanEvalPlus", "MbppPlus"):
        rows = [json.loads(line) for line in gzip.open(folder / f"{name}.jsonl.gz", "rt")]
        items = []
        for row in rows:
            inputs = [args for key in ("base_input", "plus_input") for args in row[key] or []]
            calls = [f"{row['entry_point']}({', '.join(map(repr, args))})" for args in inputs if isinstance(args, list)]
            items.append((row["prompt"] * (name[0] == "H") + row["canonical_solution"], calls))
        with Sandbox(timeout=30.0) as box:
            known = box.ground_truth(items)
        errors = {(row["task_id"], value.error) for row, task in zip(rows, known, strict=True) for value in task}
        bad = sorted(error for error in errors if error[1])
        print(f"{name}: {sum(map(len, known))} calls of {len(rows)} ground truths; differing or failing: {bad}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--programs", type=int, default=1200)
    parser.add_argument("--ground-truths", type=Path, metavar="DIR")
    args = parser.parse_args()
    if args.ground_truths:
        scripts(args.ground_truths)
        values(args.ground_truths)
    else:
        measure(args.workers, args.programs)


if __name__ == "__main__":
    main()
