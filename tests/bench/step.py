"""Seconds per phase of a whole Code-A1 step, and how they grow: each of M, N and the reply limit doubled by itself.

    python tests/bench/step.py                               the embedded default
    CODEA1_DATA=DIR python tests/bench/step.py --model DIR   one checkpoint in both roles on MbppPlus.jsonl.gz, bfloat16

Every row is a run of its own of the real command line; the median of its steps after the first is printed.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import codea1

PHASES = ("programs", "suites", "execution", "update_coder", "update_tester", "total")


def seconds(flags: dict, steps: int) -> dict[str, float]:
    """Median seconds by phase of a run with these settings; `tokens`: tokens written per second of the rollouts."""
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stderr(io.StringIO()):
        argv = [x for k, v in {**flags, "steps": steps + 1, "out": out, "name": "run", "final_questions": "",
                               "eval_every": 0, "save_every": 0}.items()
                for x in ("--" + k.replace("_", "-"), str(v))]
        with contextlib.redirect_stdout(io.StringIO()):
            status = codea1.main(argv)
        if status:
            raise SystemExit(f"codea1 {' '.join(argv)} ended with {status}")
        rows = [json.loads(line) for line in (Path(out) / "run/metrics.jsonl").read_text().splitlines()][1:]
    table = {phase: statistics.median(row["seconds"].get(phase, 0.0) for row in rows) for phase in PHASES}
    return table | {"tok/s": statistics.median(row["tokens_per_second"] for row in rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint folder for both roles; without it the embedded default")
    parser.add_argument("--steps", type=int, help="steps that count, after a first one (default 3, 1 with --model)")
    args = parser.parse_args()
    names = "batch_questions programs suites asserts coder_reply_limit tester_reply_limit".split()
    base = {name: codea1.PRESETS["tiny"][name] for name in names}
    if args.model:
        data = Path(os.environ["CODEA1_DATA"]) / "MbppPlus.jsonl.gz"
        base = dict(coder=args.model, questions=data, batch_questions=2, programs=4, suites=2, asserts=3, warmup=0,
                    dtype="bfloat16", coder_reply_limit=64, tester_reply_limit=64)
    cases = {"base": {}, "M doubled": {"programs": 2 * base["programs"]}, "N doubled": {"suites": 2 * base["suites"]},
             "replies doubled": {name: 2 * base[name] for name in ("coder_reply_limit", "tester_reply_limit")}}
    print(", ".join(f"{k} {v}" for k, v in base.items() if k not in ("coder", "questions")))
    print(f"{'':<17}" + "".join(f"{p:>15}" for p in (*PHASES, "tok/s", "total/base")))
    first = None
    for name, change in cases.items():
        row = seconds({**base, **change}, args.steps or (1 if args.model else 3))
        first = first or row
        cells = [f"{row[p]:>15.2f}" for p in (*PHASES, "tok/s")]
        print(f"{name:<17}" + "".join(cells) + f"{row['total'] / first['total']:>15.2f}", flush=True)


if __name__ == "__main__":
    main()
