"""attack_success and sight once more, without eval.py: what `evaluate_tester` reports, by a shorter way.

    python tests/bench/sight.py [--limit 20] [--tester DIR] [--both]

A suite for each held-out mutant with this in sight, and one for the reference; a mutant is broken by a call for which
it does not return what the reference does. Every mutant counts, with --samples suites. --both: eval.py's figures too.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import fmean, stdev

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from eval import evaluate_tester
from model import Qwen2, Tokenizer, generate
from sandbox import Sandbox
from tasks import extract_tests, load_questions, tester_messages

ASSERTS = 5


def suites(model, tokenizer, question, program, n, seed):
    """The calls of each of n suites that are written for a program."""
    prompt = tokenizer.encode_chat(tester_messages(question, program, ASSERTS, "plain"))
    (replies,) = generate(model, [prompt], n, 96, eos_ids=tokenizer.eos_ids, vocab_size=len(tokenizer), seed=seed)
    tests = [extract_tests(tokenizer.decode(reply.ids), question.entry_point, ASSERTS) for reply in replies]
    return [[test.call for test in suite if test] for suite in tests]


def share_broken(box, question, mutant, suites):
    """The share of suites with a call whose value is the reference's alone."""
    broken = []
    for suite in suites:
        right, wrong = box.values([(question.reference, suite), (mutant, suite)])
        broken.append(any(a.ok and (not b.ok or repr(a.value) != repr(b.value)) for a, b in zip(right, wrong)))
    return fmean(broken)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="only the first so many questions")
    parser.add_argument("--tester", default=str(ROOT / "tiny/tester"))
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--both", action="store_true", help="evaluate_tester's figures beside them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = Qwen2.from_pretrained(args.tester), Tokenizer.from_pretrained(args.tester)
    questions = load_questions(str(ROOT / "tiny/heldout.jsonl.gz"))[: args.limit]
    aimed, seen = [], []
    with Sandbox() as box:
        for seed, question in enumerate(questions, start=1000):
            usual = suites(model, tokenizer, question, question.reference, args.samples, seed)
            shares = []
            for mutant in question.hidden.mutants:
                own = suites(model, tokenizer, question, mutant, args.samples, seed)
                shares.append([share_broken(box, question, mutant, group) for group in (own, usual)])
            aimed.append(fmean(own for own, _ in shares))
            seen.append(aimed[-1] - fmean(usual for _, usual in shares))
        for name, values in (("attack_success", aimed), ("sight", seen)):
            error = 100 * stdev(values) / len(values) ** 0.5
            print(f"{name:16}{100 * fmean(values):6.1f} ± {error:.1f}   {len(values)} questions, by this script")
        if args.both:
            start = time.perf_counter()
            figures = evaluate_tester(model, tokenizer, questions, box, style="plain", suites=16, asserts=ASSERTS,
                                      temperature=1.0, top_p=1.0, max_new_tokens=96, seed=0)
            for name, figure in figures.items():
                print(f"{name:16}{figure.value:6.1f} ± {figure.stderr:.1f}   by evaluate_tester")
            print(f"evaluate_tester took {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
