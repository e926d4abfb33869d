"""Shows that the tests guard what they say: takes guards out of the code one by one, and sees that tests turn red.

Each guard names a piece of source, what stands there without the guard, and the tests that must fail then. The working
tree is copied; the named tests must be green in the copy as it is, and every one of them red under its mutation, by
failing, not by a broken import.

    python tests/guards.py [words]        only the guards whose name holds one of the words
"""

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("*.py", "pyproject.toml", "tests", "tiny")
SECONDS = 900  # limit of one run of pytest; generous, for a busy machine


@dataclass(frozen=True)
class Guard:
    name: str
    file: str
    source: str  # stands exactly once in the file
    mutation: str
    tests: tuple[str, ...]  # pytest node ids, a parametrised test without its brackets


GUARDS = [
    Guard(
        "only the first K asserts of a reply count", "tasks.py",
        "            if len(tests) >= limit:\n                return tests[: max(limit, 0)]\n", "",
        ("tests/test_tasks.py::test_only_the_first_asserts_of_a_reply_count",),
    ),
    Guard(
        "NaN equals NaN", "tasks.py", "or (a != a and b != b)", "",
        ("tests/test_tasks.py::test_equal_values",),
    ),
    Guard(
        "a list is not a tuple", "tasks.py",
        "    elif len(kinds) > 1 or type(a) not in SEQUENCES:", "    elif not kinds <= SEQUENCES:",
        ("tests/test_tasks.py::test_different_values",),
    ),
    Guard(
        "values of foreign types are never compared", "tasks.py",
        "        if not types.issuperset(map(type, level)):", "        if False:",
        ("tests/test_tasks.py::test_values_of_foreign_types_pass_nothing_and_run_nothing",),
    ),
    Guard(
        "a tolerance that lets everything pass is malformed", "tasks.py",
        "<= math.nextafter(_widest(target), math.inf) < math.inf or tolerance < 0", "< math.inf",
        ("tests/test_tasks.py::test_everything_else_is_malformed",),
    ),
    Guard(
        "a repetition is sized before it is built", "tasks.py",
        "    if size > MAX_SOURCE:\n", "    if False:\n",
        ("tests/test_tasks.py::test_an_expression_cannot_hurt_the_trainer",),
    ),
    Guard(
        "the stub of the prompt stays out of the program", "tasks.py",
        "        if isinstance(node, DEFINITIONS) and node.name == entry_point:\n            del front",
        "        if False:\n            del front",
        ("tests/test_tasks.py::test_a_program_without_the_entry_point_is_not_saved_by_the_stub_of_the_prompt",),
    ),
    Guard(
        "book: removals come before additions", "mistake_book.py",
        """        for test in passed:
            if tests.get(test) == 1:
                del tests[test]
            elif test in tests:
                tests[test] -= 1
        for test in failed:
            tests[test] = tests.get(test, 0) + 1
""",
        """        for test in failed:
            tests[test] = tests.get(test, 0) + 1
        for test in passed:
            if tests.get(test) == 1:
                del tests[test]
            elif test in tests:
                tests[test] -= 1
""",
        ("tests/test_mistake_book.py::test_removals_come_before_additions",),
    ),
    Guard(
        "book: ties are replayed oldest first", "mistake_book.py",
        "return sorted(tests, key", "return sorted(reversed(tests), key",
        ("tests/test_mistake_book.py::test_replay_is_by_count_and_the_older_comes_first_where_counts_are_equal",),
    ),
    Guard(
        "book: over the capacity the newest of the lowest count goes", "mistake_book.py",
        "min(reversed(tests), key", "min(tests, key",
        ("tests/test_mistake_book.py::test_over_the_capacity_the_lowest_count_goes_and_the_newest_of_these_first",),
    ),
    Guard(
        "book: the old file stays until the new one is whole", "mistake_book.py",
        'with open(f"{path}.part", "w"', 'with open(path, "w"',
        ("tests/test_mistake_book.py::test_a_save_that_breaks_off_leaves_the_old_file_whole",),
    ),
    Guard(
        "TopVar: ties go to the lowest index", "codea1.py",
        "key=lambda m: (-spread[m], m))", "key=lambda m: (-spread[m], -m))",
        ("tests/test_codea1.py::test_topvar_agrees_with_brute_force_on_ties_and_flat_groups",),
    ),
    Guard(
        "TopVar: programs without spread train nobody", "codea1.py",
        "return [m for m in order[:top] if len(set(rewards[m])) > 1]", "return order[:top]",
        ("tests/test_codea1.py::test_topvar_agrees_with_brute_force_on_ties_and_flat_groups",),
    ),
    Guard(
        "calls that never ran are left out of rates", "codea1.py",
        "ran = [s for s in statuses if s is not Status.NOT_RUN]", "ran = list(statuses)",
        ("tests/test_codea1.py::test_tests_that_never_ran_are_neither_passed_nor_failed",),
    ),
    Guard(
        "a suite without a valid test earns nothing", "codea1.py",
        "    if n_valid == 0:\n", "    if False:\n",
        ("tests/test_codea1.py::test_a_suite_without_a_valid_test_earns_nothing_even_with_a_history_that_was_passed",),
    ),
    Guard(
        "verdict default: an exception is no value", "sandbox.py",
        'return Value(False, None, data.decode("utf-8", "replace")[:80])', "return Value(True)",
        ("tests/test_sandbox.py::test_an_exception_is_never_an_empty_answer",),
    ),
    Guard(
        "verdict default: what does not load passes nothing", "sandbox.py",
        "            if answer[0][:1] != VALUE:\n                return then",
        "            if False:\n                return then",
        ("tests/test_sandbox.py::test_what_does_not_load_has_no_passing_test",),
    ),
    Guard(
        "kill: a call over its wall limit is ended from outside", "sandbox.py",
        "left = min(self.cpu - (used - self.used), self.deadline - now)", "left = self.cpu - (used - self.used)",
        ("tests/test_sandbox.py::test_limits_of_a_benchmark_are_wall_limits",),
    ),
    Guard(
        "a call whose two ground-truth values differ is invalid", "sandbox.py",
        "steady = not seed or (got.ok and same(table[call].value, got.value))", "steady = True",
        ("tests/test_sandbox.py::test_ground_truth_runs_twice_and_names_what_differs",),
    ),
    Guard(
        "RoPE base: read from both places of config.json", "model.py",
        "for k, v in [*rope.items(), *raw.items()] if", "for k, v in raw.items() if",
        ("tests/test_model.py::test_both_places_of_the_rope_base_are_read_and_written",),
    ),
    Guard(
        "end-token mask: a reply stops at every end id", "model.py",
        "self.done |= (ids[:, None] == self.ends).any(1) | (", "self.done |= (ids == self.ends[0]) | (",
        ("tests/test_model.py::test_ids_equal_a_sampler_without_cache_on_the_same_uniforms",),
    ),
    Guard(
        "masked padding ids: rows beyond the tokenizer are never sampled", "model.py",
        "laid_out(model, vocab_size or c.vocab_size)", "laid_out(model, c.vocab_size)",
        ("tests/test_model.py::test_padding_rows_of_the_vocabulary_are_never_sampled",),
    ),
    Guard(
        "top-p: the id that reaches it is the last", "model.py",
        "keep = before < top_p - 1e-6", "keep = before < top_p + 1e-6",
        ("tests/test_model.py::test_top_p_keeps_the_fewest_ids_that_reach_it",),
    ),
    Guard(
        "sample std: n - 1", "grpo.py",
        "rewards.std(-1, keepdim=True)", "rewards.std(-1, keepdim=True, correction=0)",
        ("tests/test_grpo.py::test_advantages_use_the_sample_deviation_and_are_zero_without_spread",),
    ),
    Guard(
        "token mean: over the whole minibatch", "grpo.py",
        "count = max(int(live.sum()) if total_tokens is None else total_tokens, 1)",
        "count = max(int(live.sum()), 1)",
        ("tests/test_grpo.py::test_parts_of_a_minibatch_add_up_to_its_token_mean",),
    ),
    Guard(
        "dual clip", "grpo.py",
        "loss = torch.where(a < 0, torch.minimum(loss, -dual_clip * a), loss)", "pass",
        ("tests/test_grpo.py::test_dual_clip_by_hand",),
    ),
    Guard(
        "old log-probs are those before the first minibatch", "grpo.py",
        "        if not first:\n", "        if False:\n",
        ("tests/test_grpo.py::test_old_is_the_log_prob_before_the_first_minibatch",),
    ),
    Guard(
        "a gradient that is not finite is skipped", "grpo.py",
        "skipped = not math.isfinite(grad_norm)", "skipped = False",
        (
            "tests/test_grpo.py::test_a_gradient_that_is_not_finite_is_skipped_and_harms_nothing",
            "tests/test_grpo.py::test_several_skipped_steps_in_a_row_stop_the_run",
        ),
    ),
    Guard(
        "a minibatch begins without a gradient", "grpo.py",
        "        self.optimizer.zero_grad()\n        sums", "        sums",
        ("tests/test_grpo.py::test_an_update_that_broke_off_leaves_no_gradient_behind",),
    ),
    Guard(
        "a largest gradient norm of 0 clips nothing", "grpo.py",
        "            if self.max_grad_norm:\n", "            if True:\n",
        ("tests/test_grpo.py::test_the_gradient_norm_is_clipped_over_all_weights",),
    ),
    Guard(
        "gradients add up in float32", "grpo.py",
        "master.grad = torch.zeros_like(master)", "master.grad = torch.zeros_like(p)",
        ("tests/test_grpo.py::test_gradients_of_micro_batches_add_up_in_float32",),
    ),
    Guard(
        "logits are not kept for the backward pass", "grpo.py",
        "[run(*chunk, head, temperature)", "[chunk_logprobs(*chunk, head, temperature)",
        ("tests/test_grpo.py::test_the_logits_of_a_chunk_are_not_kept_for_the_backward_pass",),
    ),
    Guard(
        "no number is read between micro-batches", "grpo.py",
        "torch.stack((loss.detach(), ", "torch.stack((torch.tensor(loss.item()), ",
        ("tests/test_grpo.py::test_no_number_is_read_between_micro_batches",),
    ),
    Guard(
        "a reply sees its prompt, and itself up to each token", "grpo.py",
        ".tril(prompt)", ".tril(prompt + 1)",
        (
            "tests/test_grpo.py::test_shared_prompts_have_the_gradients_of_separate_rows",
            "tests/test_grpo.py::test_examples_in_docstrings",
        ),
    ),
    Guard(
        "the first step has a learning rate", "grpo.py",
        "return self.lr * t / self.warmup", "return self.lr * (t - 1) / self.warmup",
        ("tests/test_grpo.py::test_the_learning_rate_warms_up_from_its_first_step_and_ends_at_zero",),
    ),
    Guard(
        "an incomplete checkpoint is skipped", "codea1.py",
        "all((folder / f).stat().st_size == size for f, size in files.items())", "files",
        ("tests/test_run.py::test_an_incomplete_checkpoint_is_skipped_aloud",),
    ),
]  # fmt: skip


def pytest(folder: Path, tests: list[str]) -> tuple[int, set[str]]:
    """Exit status of a run of these tests in the folder, and the node ids of those that failed, without brackets."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist",
    *tests]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "1000"}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return 124, set()
    failed = set(re.findall(r"^FAILED (\S+?)(?:\[.*)?(?: - .*)?$", done.stdout, re.MULTILINE))
    return done.returncode, failed


def copy_tree(target: Path) -> Path:
    target.mkdir()
    for pattern in COPIED:
        for path in ROOT.glob(pattern):
            if path.is_dir():
                shutil.copytree(path, target / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, target / path.name)
    return target


def check(guard: Guard, folder: Path) -> str:
    """What is wrong with a guard, "" if its tests turn red without it. The folder is left as it was."""
    path = folder / guard.file
    text = path.read_text(encoding="utf-8")
    if text.count(guard.source) != 1:
        return f"its source stands {text.count(guard.source)} times in the file, not once: bring the table up to date"
    path.write_text(text.replace(guard.source, guard.mutation), encoding="utf-8")
    try:
        status, failed = pytest(folder, list(guard.tests))
    finally:
        path.write_text(text, encoding="utf-8")
    if status == 1 and failed == set(guard.tests):
        return ""
    return f"pytest ended with {status}, and these did not fail: {sorted(set(guard.tests) - failed)}"


def main(words: list[str], workers: int = 2) -> int:
    """Number of guards whose tests do not guard them; prints a line for each."""
    guards = [guard for guard in GUARDS if not words or any(word in guard.name for word in words)]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(workers) as pool:
        folders = [copy_tree(Path(scratch, f"tree{i}")) for i in range(workers)]
        tests = sorted({test for guard in guards for test in guard.tests})
        parts = [tests[len(tests) * i // workers : len(tests) * (i + 1) // workers] for i in range(workers)]
        for status, failed in pool.map(pytest, folders, [part or tests for part in parts]):
            if status:
                print(f"the tests are not green as the code stands: pytest ended with {status}, red: {sorted(failed)}")
                return len(guards)
        free = queue.SimpleQueue()
        for folder in folders:
            free.put(folder)

        def checked(guard: Guard) -> str:
            folder = free.get()
            fault = check(guard, folder)
            free.put(folder)
            return fault

        faults = list(pool.map(checked, guards))
    for guard, fault in zip(guards, faults, strict=True):
        print(f"{'NO GUARD' if fault else 'guarded '}  {guard.file:16} {guard.name}{': ' if fault else ''}{fault}")
    bad = sum(map(bool, faults))
    seconds = time.perf_counter() - start
    print(f"{len(guards) - bad} of {len(guards)} guards turn their tests red when they are taken out ({seconds:.0f} s)")
    return bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="only guards whose name holds one of these")
    sys.exit(bool(main(parser.parse_args().words)))
