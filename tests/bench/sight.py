"""attack_success and sight by a way of a few lines, beside evaluate_tester's.

    python tests/bench/sight.py [--limit 20] [--tester DIR] [--samples 4]

For each held-out mutant suites with this in sight, and the same number with the reference in sight.
A suite breaks a mutant by a call that does not return what it does on the reference. All mutants of
a question count here, and the random numbers are others.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import fmean, stdev

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from eval import evaluate_tester  # noqa: E402
from model import Qwen2, Tokenizer, generate  # noqa: E402
from sandbox import Sandbox  # noqa: E402
from tasks import extract_tests, load_questions, tester_messages  # noqa: E402

ASSERTS, TOKENS = 5, 96


def write(model, tokenizer, shown, n):
    """shown: (question, program) pairs -> for each the calls of n suites."""
    chats = [tester_messages(question, program, ASSERTS, "plain") for question, program in shown]
    prompts = [tokenizer.encode_chat(chat) for chat in chats]
    ends = dict(eos_ids=tokenizer.eos_ids, vocab_size=len(tokenizer))
    found = []
    for (question, _), replies in zip(
        shown, generate(model, prompts, n, TOKENS, seed=1000, **ends), strict=True
    ):
        texts = [tokenizer.decode(reply.ids) for reply in replies]
        suites = [extract_tests(text, question.entry_point, ASSERTS) for text in texts]
        found.append([[test.call for test in suite if test] for suite in suites])
    return found


def share_broken(box, question, mutant, suites):
    """The share of the suites with a call of which the mutant makes something else."""
    calls = sum(suites, [])
    right, wrong = box.values([(question.reference, calls), (mutant, calls)])
    broken = set()
    for call, a, b in zip(calls, right, wrong, strict=True):
        if a.ok and (not b.ok or repr(a.value) != repr(b.value)):
            broken.add(call)
    return fmean(not broken.isdisjoint(suite) for suite in suites)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="only the first so many questions")
    parser.add_argument("--tester", default=str(ROOT / "tiny/tester"), help="a checkpoint folder")
    parser.add_argument("--samples", type=int, default=4, help="suites for each program shown")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = Qwen2.from_pretrained(args.tester), Tokenizer.from_pretrained(args.tester)
    questions = load_questions(str(ROOT / "tiny/heldout.jsonl.gz"))[: args.limit]
    pairs = [(q, mutant) for q in questions for mutant in q.hidden.mutants]
    aimed = iter(write(model, tokenizer, pairs, args.samples))
    usual = write(model, tokenizer, [(q, q.reference) for q in questions], args.samples)
    found = {"attack_success": [], "sight": []}
    with Sandbox() as box:
        for question, unaimed in zip(questions, usual, strict=True):
            mutants = question.hidden.mutants
            own = fmean(share_broken(box, question, m, next(aimed)) for m in mutants)
            found["attack_success"].append(own)
            others = fmean(share_broken(box, question, m, unaimed) for m in mutants)
            found["sight"].append(own - others)
        start = time.perf_counter()
        figures = evaluate_tester(
            model, tokenizer, questions, box, style="plain", suites=4 * args.samples,
            asserts=ASSERTS, temperature=1.0, top_p=1.0, max_new_tokens=TOKENS, seed=0)
        seconds = time.perf_counter() - start
    for name, values in found.items():
        here = f"{100 * fmean(values):.1f} ± {100 * stdev(values) / len(values) ** 0.5:.1f}"
        there = f"{figures[name].value:.1f} ± {figures[name].stderr:.1f}"
        print(f"{name:<16}here {here:>12}   evaluate_tester {there:>12}")
    print(f"{len(questions)} questions, {len(pairs)} mutants; evaluate_tester took {seconds:.1f} s")


if __name__ == "__main__":
    main()
