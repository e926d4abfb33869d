"""Time and verdicts of `eval.py code --samples` beside those of `evalplus.evaluate`.

    pip install 'codea1[eval]'
    python tests/bench/evalplus.py DIR        # DIR holds HumanEvalPlus.jsonl.gz; a quiet machine

Samples: the reference solutions of the first tasks and mutants of them, the same ones every time.
The two take turns on as many processes, each as a fresh command that computes the expected values
itself. EvalPlus' clock stops when its verdicts are there: its command then sleeps for up to 20 s.
Exit status 1 if a verdict differs, HumanEval/32 apart, where EvalPlus 0.3.1 fails every program.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import Task, load_tasks, mutants  # noqa: E402

EVALPLUS = """
import sys
from evalplus.evaluate import evaluate
evaluate("humaneval", samples=sys.argv[1], parallel=int(sys.argv[2]))
print("verdicts are there", flush=True)
"""


class Run(NamedTuple):
    seconds: float  # until the verdicts are there
    cpu: float  # seconds of all processes
    passed: dict[str, list[tuple[bool, bool]]]  # task id -> of each sample: base, base and plus


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def make_samples(tasks: list[Task], count: int) -> list[dict[str, str]]:
    """The references and, up to the count, mutants drawn by a fixed seed, in the order of tasks."""
    made = []
    for i, task in enumerate(tasks):
        groups = mutants(task.question.reference).values()
        made += [(i, mutant) for mutant in chain.from_iterable(groups)]
    rows = [(i, task.question.reference) for i, task in enumerate(tasks)]
    rows += random.Random(0).sample(made, count - len(tasks))
    rows.sort(key=lambda row: row[0])
    return [{"task_id": tasks[i].question.id, "solution": program} for i, program in rows]


def run_ours(folder: Path, workers: int) -> Run:
    out = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, ROOT / "eval.py", "code", "--data", folder / "data.jsonl", "--samples",
               folder / "samples.jsonl", "--workers", str(workers), "--out", out]  # fmt: skip
    started, used = time.monotonic(), cpu_of_children()
    subprocess.run(command, check=True, capture_output=True)
    seconds, cpu = time.monotonic() - started, cpu_of_children() - used
    rows = [json.loads(line) for line in (out / "tasks.jsonl").read_text().splitlines()]
    passed = {row["task_id"]: list(zip(row["base"], row["plus"], strict=True)) for row in rows}
    return Run(seconds, cpu, passed)


def run_evalplus(folder: Path, workers: int) -> Run:
    cache = tempfile.mkdtemp(dir=folder)  # expected values of an earlier run are not found
    samples = Path(cache, "samples.jsonl")
    samples.write_bytes((folder / "samples.jsonl").read_bytes())
    env = os.environ | {"HUMANEVAL_OVERRIDE_PATH": str(folder / "data.jsonl"), "XDG_CACHE_HOME": cache}
    command = [sys.executable, "-c", EVALPLUS, samples, str(workers)]
    started, used = time.monotonic(), cpu_of_children()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env,
                          text=True) as process:  # fmt: skip
        if not any("verdicts are there" in line for line in process.stdout):
            sys.exit("evalplus gave no verdicts")
        seconds = time.monotonic() - started
    passed = defaultdict(list)
    results = json.loads(samples.with_name("samples_eval_results.json").read_text())
    for name, rows in results["eval"].items():
        for row in rows:
            base, plus = row["base_status"] == "pass", row["plus_status"] == "pass"
            passed[name].append((base, base and plus))
    return Run(seconds, cpu_of_children() - used, passed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="folder of HumanEvalPlus.jsonl.gz")
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--samples", type=int, default=166)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    tasks = load_tasks(str(args.data / "HumanEvalPlus.jsonl.gz"), args.tasks)
    runs: dict[str, list[Run]] = {"eval.py": [], "evalplus": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = make_samples(tasks, args.samples)
        (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "data.jsonl").write_text("".join(json.dumps(t.row) + "\n" for t in tasks))
        for _ in range(args.rounds):
            runs["eval.py"].append(run_ours(folder, args.workers))
            runs["evalplus"].append(run_evalplus(folder, args.workers))
            for name, found in runs.items():
                print(f"{name:9} {found[-1].seconds:6.1f} s  CPU {found[-1].cpu:6.1f} s", flush=True)
    ours, theirs = ([median(column) for column in ([r.seconds for r in found], [r.cpu for r in found])]
                    for found in runs.values())  # fmt: skip
    print(f"medians of {args.rounds}: {ours[0]:.1f} s and {theirs[0]:.1f} s, ratio "
          f"{ours[0] / theirs[0]:.2f}; CPU {ours[1]:.1f} s and {theirs[1]:.1f} s")  # fmt: skip
    mine, peer = runs["eval.py"][-1].passed, runs["evalplus"][-1].passed
    differ = [name for name in mine if mine[name] != peer[name] and name != "HumanEval/32"]
    for name in differ:
        print(f"{name}: ours {mine[name]}, evalplus {peer[name]}")
    print(f"{args.samples} samples of {len(tasks)} tasks, verdicts differ on {len(differ)}")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
