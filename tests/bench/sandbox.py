"""Speed of the sandbox, and the ground truths of two benchmarks through it. Run by hand on a quiet machine.

    python tests/bench/sandbox.py                      programs per second against a fresh interpreter for each program,
                                                       the cost of each layer, and of one program in ten that hangs
    python tests/bench/sandbox.py --ground-truths DIR  every ground truth's values of the EvalPlus files in DIR, twice
    python tests/bench/sandbox.py --worst              seconds of the trainer for the worst reply of each kind

The peer is `python -I -c` with the program and the same 16 asserts, its imports and all; as many at a time as there are
workers. The two take turns, and medians are compared: of programs per second, and of CPU time for a program, which
counts all processes (trainer, supervisors, fork servers, programs), but not the start of the workers. CPU time is the
fairer of the two on a busy machine. The programs of one kind share their 16 tests, as the programs of one question do;
the peer is also measured against programs with tests of their own.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import load_tasks, plus_inputs
from sandbox import Sandbox, Status, data_call
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


def jobs(n: int, own: bool = False) -> list[tuple[str, str, list[Test]]]:
    """n programs, no two the same, with 16 tests each that they pass; own: no two share a test."""
    rng, made, scope = random.Random(0), {}, {}

    def tests(name: str) -> list[Test]:
        inputs = [[rng.randrange(100) for _ in range(8)] for _ in range(16)]
        return [Test(f"{name}({xs})", repr(scope[name](xs))) for xs in inputs]

    for name, program in PROGRAMS.items():
        exec(program, scope)
        made[name] = tests(name)
    kinds = [name for _, name in zip(range(n), cycle(PROGRAMS), strict=False)]
    return [(f"{PROGRAMS[k]}\n# {i}\n", k, tests(k) if own else made[k]) for i, k in enumerate(kinds)]


class Cost(NamedTuple):
    rate: float  # programs per second
    cpu: float  # ms of CPU time for a program


def used(box: Sandbox | None = None) -> float:
    """CPU seconds of this process and of all that it has waited for, and of a sandbox' processes and theirs."""
    seconds = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    todo = [worker.process.pid for workers in box.idle.values() for worker in workers] if box else []
    while todo:
        pid = todo.pop()
        todo += Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def fresh(items: list, at_once: int) -> Cost:
    """One `python -I` for each program, with as many at a time."""
    def run(item: tuple) -> int:
        program, _, tests = item
        script = program + "\n".join(f"assert {test.call} == {test.expected}" for test in tests)
        null = subprocess.DEVNULL
        return subprocess.run([sys.executable, "-I", "-c", script], stdin=null, stdout=null, stderr=null).returncode

    with ThreadPoolExecutor(at_once) as pool:
        start, before = time.perf_counter(), used()
        assert not any(pool.map(run, items))
        return Cost(len(items) / (time.perf_counter() - start), (used() - before) / len(items) * 1e3)


def sandboxed(items: list, workers: int, without: tuple[str, ...] = ()) -> Cost:
    with Sandbox(workers=workers, _without=without) as box:
        box.judge(items[:20])
        start, before = time.perf_counter(), used(box)
        verdicts = box.judge(items)
        seconds, cpu = time.perf_counter() - start, used(box) - before
    assert all(status is Status.PASS for verdict in verdicts for status in verdict.statuses)
    return Cost(len(items) / seconds, cpu / len(items) * 1e3)


def in_turn(rounds: int, *measurements: Callable[[], Cost]) -> list[Cost]:
    """Medians of measurements that take turns, so that a machine that is busy for a while favours none."""
    runs = [[measure() for measure in measurements] for _ in range(rounds)]
    return [Cost(*map(median, zip(*column, strict=True))) for column in zip(*runs, strict=True)]


def hanging(items: list, workers: int, body: str = "") -> tuple[float, float]:
    """Programs per second of nine in ten, until the last of them is done, when every tenth hangs with this for a body,
    or does not; and seconds until all are done."""
    with Sandbox(workers=workers, timeout=1.0) as box:
        box.judge(items[:20])
        done, futures, start = [], [], time.perf_counter()
        for i, (program, name, tests) in enumerate(items):
            tenth = i % 10 == 9
            if tenth and body:
                program, tests = f"{program}\nimport time\ndef {name}(xs):\n    {body}\n", tests[:1]
            futures.append(box.submit(program, tests))
            if not tenth:
                futures[-1].add_done_callback(lambda _: done.append(time.perf_counter() - start))
        statuses = [future.result() for future in futures]
        seconds = time.perf_counter() - start
    assert statuses.count([Status.TIMEOUT]) == (len(items) - len(done) if body else 0)
    return len(done) / max(done), seconds


def measure(workers: int, n: int, rounds: int) -> None:
    items, own = jobs(n), jobs(n // 4, own=True)
    with Sandbox(workers=1) as box:
        layers = box.report()
    print("layers:", ", ".join(f"{layer} {state}" for layer, state in layers.items()))
    peer, ours, ours_own = in_turn(rounds, lambda: fresh(items[: n // 8], workers), lambda: sandboxed(items, workers),
                                   lambda: sandboxed(own, workers))  # fmt: skip
    print(f"medians of {rounds} runs in turn; {workers} workers, and {workers} interpreters at a time")
    names = "python -I for each program", "sandbox, every layer on", "the same, no test shared"
    for name, cost in zip(names, (peer, ours, ours_own), strict=True):
        print(f"  {name:27} {cost.rate:5.0f} programs/s, {cost.cpu:6.2f} ms CPU each; ratio in wall time "
              f"{cost.rate / peer.rate:.1f}, in CPU time {peer.cpu / cost.cpu:.1f}")  # fmt: skip
    sets = [(), *((layer,) for layer in layers), tuple(layers)]
    costs = in_turn(rounds, *(partial(sandboxed, items[: n // 4], workers, without) for without in sets))
    print("cost of a layer: CPU time for a program with every layer on, less that without the layer")
    for without, cost in list(zip(sets, costs, strict=True))[1:]:
        print(f"  {without[0] if without[1:] == () else 'all of them':20} {costs[0].cpu - cost.cpu:+.2f} ms")
    print("1 in 10 hangs, limit 1 s: the rate of the other nine, beside that where the tenth is like them")
    for name, body in ("sleeping", "time.sleep(100)"), ("spinning", "while True: pass"):
        runs = [(hanging(items[: n // 8], workers), hanging(items[: n // 8], workers, body)) for _ in range(rounds)]
        without, beside, seconds = (median(run[i][j] for run in runs) for i, j in ((0, 0), (1, 0), (1, 1)))
        print(f"  {name}: {beside:.0f} programs/s, {beside / without:.0%} of {without:.0f}; all {n // 8} done after "
              f"{seconds:.1f} s")  # fmt: skip


def values(folder: Path) -> None:
    for name in ("HumanEvalPlus", "MbppPlus"):
        tasks = load_tasks(str(folder / f"{name}.jsonl.gz"))
        items = [(task.question.reference, task.question.entry_point,
                  [data_call(task.question.entry_point, args)
                   for part in ("base", "plus") for args in plus_inputs(task, part)])
                 for task in tasks]  # fmt: skip
        with Sandbox(timeout=30.0, memory_mb=4096) as box:
            known = box.ground_truth(items)
        errors = {(task.question.id, truth.value.error)
                  for task, row in zip(tasks, known, strict=True) for truth in row}  # fmt: skip
        bad = sorted(error for error in errors if error[1])
        print(f"{name}: {sum(map(len, known))} calls of {len(tasks)} ground truths; differing or failing: {bad}")


WORST = {  # what a program returns, and the assert that it is given
    "huge integers added up": ("[1 << 8_000_000] + [1] * 50_000", ["assert sum(f(0)) == 3"]),
    "16 MB of nested empty lists": ("[[]] * 5_300_000", ["assert f(0) == [[]]"]),
    "2 million nested empty lists": ("[[]] * 1_900_000", ["assert len(f(0)) == 3"]),
    "32 answers of 300,000 items": ("[0] * 300_000", [f"assert len(f({i})) == 3" for i in range(32)]),
    "2 million small integers": ("list(range(1_900_000))", ["assert sorted(f(0)) == [1]"]),
    "sets of equal hashes": ("[i * (2**61 - 1) for i in range(100_000)]", ["assert set(f(0)) == {1}"]),
    "50 of each hash": ("[i + k * (2**61 - 1) for i in range(20_000) for k in range(50)]", ["assert set(f(0)) == {1}"]),
    "16 MB of text": ("'x' * 16_000_000", ["assert sorted(f(0)) == ['x']"]),
    "many tags": ("[(i,) for i in range(600_000)]", ["assert min(f(0)) == (1,)"]),
}


def worst() -> None:
    """CPU seconds of this process, the trainer's, for one program with such a reply, and its verdicts."""
    with Sandbox(workers=1, timeout=20.0, memory_mb=4096) as box:
        for name, (value, tests) in WORST.items():
            before = time.process_time()
            statuses = box.check([(f"def f(x):\n    return {value}\n", tests)])[0]
            seconds = time.process_time() - before
            print(f"  {name:30} {seconds:6.2f} s, {statuses[0].value} of {len(statuses)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--programs", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ground-truths", type=Path, metavar="DIR")
    parser.add_argument("--worst", action="store_true")
    args = parser.parse_args()
    if args.ground_truths:
        values(args.ground_truths)
    elif args.worst:
        worst()
    else:
        measure(args.workers, args.programs, args.rounds)


if __name__ == "__main__":
    main()
