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
        "only the first K asserts of a reply count", "asserts.py",
        "            if len(tests) >= limit:\n                return tests[: max(limit, 0)]\n", "",
        ("tests/test_asserts.py::test_only_the_first_asserts_of_a_reply_count",),
    ),
    Guard(
        "NaN equals NaN", "asserts.py", "or (a != a and b != b)", "",
        ("tests/test_asserts.py::test_equal_values",),
    ),
    Guard(
        "a list is not a tuple", "asserts.py",
        "    if len(kinds) > 1 and not kinds <= SETS:", "    if len(kinds) > 1 and not kinds <= SETS | SEQUENCES:",
        ("tests/test_asserts.py::test_different_values",),
    ),
    Guard(
        "values of foreign types are never compared", "asserts.py",
        "        if depth < 0 or not set(types).issuperset(kinds):", "        if depth < 0:",
        ("tests/test_asserts.py::test_values_of_foreign_types_pass_nothing_and_run_nothing",),
    ),
    Guard(
        "a tolerance that lets everything pass is malformed", "asserts.py",
        "if tolerance < 0 or not 0 < limit <= widest < math.inf:", "if not 0 < limit < math.inf:",
        ("tests/test_asserts.py::test_everything_else_is_malformed",),
    ),
    Guard(
        "a repetition is sized before it is built", "asserts.py",
        "    if size > MAX_SOURCE:\n", "    if False:\n",
        ("tests/test_asserts.py::test_an_expression_cannot_hurt_the_trainer",),
    ),
    Guard(
        "the stub of the prompt stays out of the program", "tasks.py",
        "        if isinstance(node, DEFINITIONS) and node.name == entry_point:\n            start =",
        "        if False:\n            start =",
        ("tests/test_tasks.py::test_a_program_without_the_entry_point_is_not_saved_by_the_stub_of_the_prompt",),
    ),
    Guard(
        "`%` formats no text", "asserts.py",
        "    if function is operator.mod and not numbers:", "    if False:",
        ("tests/test_asserts.py::test_everything_else_is_malformed",),
    ),
    Guard(
        "work: a sum is bounded in digits", "asserts.py",
        '    if step == "sum":\n        _check_sum(value)\n', "",
        ("tests/test_asserts.py::test_adding_up_is_bounded_in_digits",),
    ),
    Guard(
        "work: what is put in order is bounded in depth", "asserts.py",
        "        plain_size(items, MAX_ORDERED, ORDERED, depth=8)", "        pass",
        ("tests/test_asserts.py::test_a_set_of_deep_members_is_compared_in_no_time",),
    ),
    Guard(
        "work: lengths are compared first", "asserts.py",
        "    if len(a) != len(b):\n        return False\n", "",
        ("tests/test_asserts.py::test_lengths_are_compared_before_anything_else",),
    ),
    Guard(
        "one call: all empty containers are alike", "asserts.py",
        "        return EMPTY\n", "        return kind, EMPTY\n",
        ("tests/test_asserts.py::test_equal_arguments_have_one_key_and_others_have_their_own",),
    ),
    Guard(
        "one call: an arithmetic list is the range of its items", "asserts.py",
        "        if step and keys ==", "        if False and keys ==",
        ("tests/test_asserts.py::test_equal_arguments_have_one_key_and_others_have_their_own",),
    ),
    Guard(
        "one call: no range is expanded", "asserts.py",
        "    if kind is range:\n        count", "    if False:\n        count",
        ("tests/test_asserts.py::test_a_key_takes_time_with_the_length_of_the_text_alone",),
    ),
    Guard(
        "a generator has no length", "asserts.py",
        '(step in ("len", "bool") and value.kind in WITH_LENGTH)', 'step in ("len", "bool")',
        ("tests/test_asserts.py::test_iterators_are_what_the_assert_makes_of_their_items",
         "tests/test_asserts.py::test_an_empty_iterator_is_true_and_an_empty_range_is_not"),
    ),
    Guard(
        "a copy of the function leaves it its name", "asserts.py",
        "    if not (isinstance(statement, ast.FunctionDef) and names.get(statement.name) is ENTRY):",
        "    if True:",
        ("tests/test_asserts.py::test_a_copy_of_the_function_in_the_same_block_does_no_harm",),
    ),
    Guard(
        "names of a function of tests stay in it", "asserts.py",
        "        self.names = outer\n", "",
        ("tests/test_asserts.py::"
         "test_asserts_in_functions_of_tests_count_with_the_names_bound_there",),
    ),
    Guard(
        "fences: a lone triple quote swallows nothing", "tasks.py",
        "        end = next(ends, None)\n",
        "        end = next(ends, None)\n        first = end or first\n",
        ("tests/test_tasks.py::test_a_lone_triple_quote_does_not_swallow_the_blocks_behind_it",),
    ),
    Guard(
        "fences: one in a string is no end", "tasks.py",
        "        if parse_python(end.text):", "        if True:",
        ("tests/test_tasks.py::test_a_block_ends_at_the_first_fence_at_which_it_is_python",),
    ),
    Guard(
        "fences: bare code may end in one", "tasks.py",
        "        if _is_code(head) and", "        if False and",
        ("tests/test_tasks.py::test_bare_code_before_a_stray_fence_is_a_program",
         "tests/test_tasks.py::test_asserts_before_a_stray_fence_are_read"),
    ),
    Guard(
        "plus counts the base inputs too", "benchmarks.py",
        "        plus = base and passes_part(", "        plus = passes_part(",
        ("tests/test_benchmarks.py::test_a_program_that_fails_the_base_inputs_fails_plus",),
    ),
    Guard(
        "values past the room of one process are compared too", "benchmarks.py",
        "            elif i != left[0] and (", "            elif False and (",
        ("tests/test_benchmarks.py::test_values_that_are_too_large_together_are_compared_all_the_same",),
    ),
    Guard(
        "eval: other contents are no old figures", "eval.py", "    settings |= args.digests\n", "",
        ("tests/test_eval.py::test_another_file_under_the_same_name_is_never_answered_from_the_old_journal",
         "tests/test_eval.py::test_other_weights_in_the_same_folder_are_never_answered_from_the_old_journal"),
    ),
    Guard(
        "eval: an assert that is not understood fails no program", "benchmarks.py",
        " if parse_assert(text, question.entry_point))", ")",
        ("tests/test_eval.py::test_asserts_that_are_not_understood_fail_no_program",),
    ),
    Guard(
        "eval: a task whose reference fails is no failure of a model", "eval.py",
        'or next(verdicts)["pass"]', "or bool(next(verdicts))",
        ("tests/test_eval.py::test_a_question_whose_reference_fails_its_own_asserts_is_skipped",
         "tests/test_eval.py::test_a_bigcodebench_task_that_needs_what_the_sandbox_refuses_is_skipped"),
    ),
    Guard(
        "eval: an export of nothing is an error", "eval.py",
        "    if not kept:\n        if not os", "    if False:\n        if not os",
        ("tests/test_eval.py::test_an_export_of_nothing_is_an_error_and_says_why",),
    ),
    Guard(
        "eval: each command and model has a folder of its own", "eval.py",
        "{'-'.join([args.command, *names])[:200]}", "x",
        ("tests/test_eval.py::test_commands_do_not_meet_in_one_folder",),
    ),
    Guard(
        "files: a pointer of git-LFS is called one", "model.py",
        "        if file.read(len(LFS)) == LFS.encode():", "        if False:",
        ("tests/test_model.py::test_a_broken_file_of_a_checkpoint_is_named_in_one_line",
         "tests/test_eval.py::test_a_broken_file_is_one_line_that_names_it"),
    ),
    Guard(
        "files: cut weights are no traceback", "model.py", "except SafetensorError as", "except KeyError as",
        ("tests/test_model.py::test_a_broken_file_of_a_checkpoint_is_named_in_one_line",),
    ),
    Guard(
        "files: a question is an object", "tasks.py", "    if type(row) is not dict:", "    if False:",
        ("tests/test_tasks.py::test_a_bad_file_is_refused_with_its_name_and_the_place",),
    ),
    Guard(
        "eval: a sample is a text", "eval.py",
        "        if type(name) is not str or type(program) is not str:", "        if name is None:",
        ("tests/test_eval.py::test_a_file_that_holds_no_samples_is_refused_by_name_and_line",),
    ),
    Guard(
        "eval: samples that the data do not have are told", "eval.py",
        "if strange := [name for name in found if name not in known]:", "if strange := []:",
        ("tests/test_eval.py::test_samples_are_read_as_other_tools_write_them",),
    ),
    Guard(
        "eval: a model's folder says how it is asked", "eval.py",
        'or known.get("prompt_style", "instruct")', 'or "instruct"',
        ("tests/test_eval.py::test_the_embedded_models_are_asked_as_they_were_taught",
         "tests/test_eval.py::test_the_prompt_style_is_the_flags_then_the_folders_own"),
    ),
    Guard(
        "`python -m codea1` imports nothing of the working folder", "codea1.py",
        "    sys.path[0] = os.path.dirname(os.path.abspath(__file__))", "    pass",
        ("tests/test_run.py::test_files_of_the_same_names_in_the_working_folder_are_not_imported",),
    ),
    Guard(
        "a task that has only a script is not judged by nothing", "benchmarks.py",
        "if not t.only_script and all(", "if all(",
        ("tests/test_eval.py::test_a_file_of_scripts_alone_is_refused_with_what_to_use",),
    ),
    Guard(
        "no value is made once the room for values is used up", "jail.py",
        "going = reply[:1] in (VALUE, RAISED) and total > 0", "going = reply[:1] in (VALUE, RAISED)",
        ("tests/test_sandbox.py::test_a_program_ends_where_the_room_for_its_values_is_used_up",),
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
        "book: over the capacity the oldest of the lowest count goes", "mistake_book.py",
        "in sorted(tests, key=lambda test: tests[test])[:excess]",
        "in sorted(reversed(tests), key=lambda test: tests[test])[:excess]",
        (
            "tests/test_mistake_book.py::test_over_the_capacity_the_lowest_count_goes_and_the_oldest_of_these_first",
            "tests/test_mistake_book.py::test_a_full_book_learns_new_mistakes",
        ),
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
        "giving up does not pay: a test that never ran is not passed", "codea1.py",
        "return sum(s in wanted for s in statuses) / len(statuses) if statuses else 0.0",
        "ran = [s for s in statuses if s is not Status.NOT_RUN]\n"
        "    return sum(s in wanted for s in ran) / len(ran) if ran else 0.0",
        (
            "tests/test_codea1.py::test_tests_that_never_ran_are_neither_passed_nor_failed",
            "tests/test_codea1.py::test_giving_up_earns_less_than_being_wrong",
        ),
    ),
    Guard(
        "a suite without a valid test earns nothing", "codea1.py",
        "    if n_valid == 0:\n", "    if False:\n",
        ("tests/test_codea1.py::test_a_suite_without_a_valid_test_earns_nothing_even_with_a_history_that_was_passed",),
    ),
    Guard(
        "verdict default: an exception is no value", "sandbox.py",
        "    if reply[:1] == VALUE:\n        # No spelling", "    if reply[:1] == RAISED:\n"
        "        return Status.PASS\n    if reply[:1] == VALUE:\n        # No spelling",
        ("tests/test_sandbox.py::test_an_exception_is_never_an_empty_answer",),
    ),
    Guard(
        "verdict default: what does not load passes nothing", "sandbox.py",
        "            if replies[0][:1] != VALUE:\n                return then",
        "            if False:\n                return then",
        ("tests/test_sandbox.py::test_what_does_not_load_has_no_passing_test",),
    ),
    Guard(
        "kill: a call over its wall limit is ended from outside", "jail.py",
        "left = min(self.cpu - (cpu - self.begun), self.deadline - now)", "left = self.cpu - (cpu - self.begun)",
        ("tests/test_sandbox.py::test_limits_of_a_benchmark_are_wall_limits",),
    ),
    Guard(
        "a call whose two ground-truth values differ is invalid", "sandbox.py",
        "if not (other.value.ok and same(table[call].value.value, other.value.value)):", "if False:",
        ("tests/test_sandbox.py::test_ground_truth_runs_twice_and_names_what_differs",),
    ),
    Guard(
        "RoPE base: read from both places of config.json", "model.py",
        "for k, v in [*rope.items(), *raw.items()] if", "for k, v in raw.items() if",
        ("tests/test_model.py::test_both_places_of_the_rope_base_are_read_and_written",),
    ),
    Guard(
        "end-token mask: a reply stops at every end id", "model.py",
        "(ids[:, None] == self.ends).any(1)", "(ids == self.ends[0])",
        ("tests/test_model.py::test_ids_equal_a_sampler_without_cache_on_the_same_uniforms",),
    ),
    Guard(
        "masked padding ids: rows beyond the tokenizer are never sampled", "model.py",
        "for_sampling(model, vocab_size or", "for_sampling(model,",
        ("tests/test_model.py::test_padding_rows_of_the_vocabulary_are_never_sampled",),
    ),
    Guard(
        "top-p: the id that reaches it is the last", "model.py",
        "keep = before < top_p - 1e-6", "keep = before < top_p + 1e-6",
        ("tests/test_model.py::test_top_p_keeps_the_fewest_ids_that_reach_it",),
    ),
    Guard(
        "stream: the caller's code does not run in inference mode", "model.py",
        """    @torch.inference_mode()  # left at each yield: the caller's code does not run in it
    def run(self) -> Iterator[tuple[int, list[Sample]]]:
""",
        """    def run(self) -> Iterator[tuple[int, list[Sample]]]:
        torch.inference_mode().__enter__()
""",
        ("tests/test_model.py::test_a_prompt_is_yielded_as_soon_as_it_is_whole",),
    ),
    Guard(
        "stream: arguments are checked by the call", "model.py",
        "    if not all(prompts):\n        raise ValueError(", "    if not all(prompts):\n        iter(",
        ("tests/test_model.py::test_arguments_out_of_range_are_named_by_the_call_itself",),
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
        "sight: a mutant that does not load is not attacked", "eval.py",
        "        if group[0].mutants:  # it loads\n", "        if True:\n",
        ("tests/test_eval.py::test_a_mutant_that_does_not_load_is_not_attacked",),
    ),
    Guard(
        "sight: a program runs what other suites of its question test", "run.py",
        "            if loads and others and not known:\n", "            if False:\n",
        ("tests/test_run.py::test_what_a_tester_could_break_is_counted_beside_what_it_broke",),
    ),
    Guard(
        "an incomplete checkpoint is skipped", "run.py",
        "            if file_digest(folder / name) != digest:\n", "            if False:\n",
        (
            "tests/test_run.py::test_a_damaged_checkpoint_is_not_resumed",
            "tests/test_run.py::test_exchanged_files_of_a_checkpoint_are_found",
            "tests/test_run.py::test_a_run_with_a_damaged_checkpoint_goes_on_from_the_one_before",
        ),
    ),
    Guard(
        "one call in many spellings is one test", "codea1.py",
        "            seen.add(truth.call.key)\n", "            seen.add(test.call)\n",
        ("tests/test_codea1.py::test_one_breaking_call_in_many_spellings_is_one_test",),
    ),
    Guard(
        "programs get the call as the ground truth binds it", "codea1.py",
        "bound = replace(test, call=truth.call.source)", "bound = test",
        ("tests/test_codea1.py::test_a_right_program_need_not_have_the_references_names_and_defaults",),
    ),
    Guard(
        "a dropped wrong answer is no earlier test", "codea1.py",
        "            tests.append(confirmed)\n            seen.add(truth.call.key)\n",
        "            tests.append(confirmed)\n        if truth and truth.call:\n"
        "            seen.add(truth.call.key)\n",
        ("tests/test_codea1.py::test_a_dropped_wrong_answer_does_not_make_the_right_one_a_duplicate",),
    ),
    Guard(
        "a replayed test that could not be asked stays in the book", "codea1.py",
        "        elif value.ok and relabel(test, value.value) is not None:", "        else:",
        ("tests/test_codea1.py::test_a_replayed_test_that_cannot_be_asked_stays_in_the_book",),
    ),
    Guard(
        "a huge right answer is no answer, and takes no room", "sandbox.py",
        "len(calls), ANSWER_ROOM,\n                        max(jail.TOTAL, 8 * ANSWER_ROOM * len(calls)), bind=True)",
        "len(calls), bind=True)",
        ("tests/test_codea1.py::test_huge_values_of_one_suite_cost_no_other_suite_and_no_test_of_the_book",),
    ),
    Guard(
        "the kind of an outcome is the supervisor's word", "sandbox.py",
        "return {TIMEOUT: Status.TIMEOUT, NOT_RUN: Status.NOT_RUN}.get(reply[:1], Status.ERROR)",
        "said = value(reply).error.strip(chr(39))\n"
        '    return {"timeout": Status.TIMEOUT, "not_run": Status.NOT_RUN}.get(said, Status.ERROR)',
        ("tests/test_codea1.py::test_an_exceptions_name_is_not_the_supervisors_word",),
    ),
    Guard(
        "the work of a sum is bounded, not only the size", "asserts.py",
        "    if len(sizes) * max(sizes, default=0) > 10**9:", "    if False:",
        ("tests/test_asserts.py::test_no_value_holds_the_trainer_for_more_than_a_second",),
    ),
    Guard(
        "all empty containers are one argument", "asserts.py",
        "    if not value:\n        return EMPTY\n", "    if not value:\n        return kind.__name__\n",
        (
            "tests/test_asserts.py::test_equal_arguments_have_one_key_and_others_have_their_own",
            "tests/test_codea1.py::test_all_empty_inputs_are_one_breaking_situation",
        ),
    ),
    Guard(
        "a list of equal steps is the range of its items", "asserts.py",
        "        if step and keys == tuple(range(first, first + step * count, step)):", "        if False:",
        ("tests/test_asserts.py::test_equal_arguments_have_one_key_and_others_have_their_own",),
    ),
    Guard(
        "an iterator has no length", "asserts.py",
        'step in ITERATING or (step in ("len", "bool") and value.kind in WITH_LENGTH)',
        'step in ITERATING or step in ("len", "bool")',
        ("tests/test_asserts.py::test_iterators_are_what_the_assert_makes_of_their_items",),
    ),
    Guard(
        "arguments like the default are left out", "sandbox.py",
        "        while positions and same_argument(*positions[-1]):", "        while False:",
        (
            "tests/test_sandbox.py::test_the_ground_truth_binds_the_arguments_of_a_call",
            "tests/test_codea1.py::test_a_right_program_need_not_have_the_references_names_and_defaults",
        ),
    ),
    Guard(
        "what could run does not sleep", "jail.py",
        "runnable, awake = threads(self.server.child())", "runnable, awake = False, {}",
        ("tests/test_sandbox.py::test_a_crowd_of_workers_changes_no_verdict",),
    ),
    Guard(
        "sleeping has a limit for a program, not for a call", "jail.py",
        "            self.sleep -= slept(self.asleep, (now, cpu, awake))\n",
        "            passed = slept(self.asleep, (now, cpu, awake))\n"
        "            self.sleep = min(self.sleep, 3 * self.cpu + 1 - passed)\n",
        (
            "tests/test_sandbox.py::test_sleeping_has_a_limit_for_the_program",
            "tests/test_walls.py::test_no_program_holds_a_worker_by_sleeping",
        ),
    ),
    Guard(
        "what threads wait for each other is no work", "jail.py",
        "max(cpu - cpu_then, *busy, 0.0)", "max(cpu - cpu_then, sum(busy))",
        ("tests/test_walls.py::test_no_program_holds_a_worker_by_sleeping",),
    ),
    Guard(
        "time in which a program only seems to work is counted later", "jail.py",
        "            self.asleep = now, cpu, awake\n        left",
        "        self.asleep = now, cpu, awake\n        left",
        ("tests/test_walls.py::test_no_program_holds_a_worker_by_sleeping",),
    ),
    Guard(
        "the items of a reply are counted before it is decoded", "sandbox.py",
        "    if jail.weight(data) > MAX_ITEMS:", "    if False:",
        (
            "tests/test_sandbox.py::test_a_reply_of_too_many_items_is_not_decoded",
            "tests/test_sandbox_attacks.py::test_the_largest_reply_of_each_kind_is_read_within_a_second",
        ),
    ),
    Guard(
        "a reply is read once", "sandbox.py",
        "read=lru_cache(maxsize=1)(value)", "read=value",
        ("tests/test_sandbox_attacks.py::test_a_reply_is_read_once_for_all_tests_of_its_call",),
    ),
    Guard(
        "only the reference says ranges", "sandbox.py",
        "tags: dict[str, tuple[type, Callable]] = TAGS) -> Value:",
        "tags: dict[str, tuple[type, Callable]] = TAGS_OF_A_CALL) -> Value:",
        (
            "tests/test_sandbox_attacks.py::test_only_the_reference_says_ranges",
            "tests/test_sandbox_attacks.py::test_hostile_data_is_malformed_or_harmless",
        ),
    ),
    Guard(
        "a folder for each program", "jail.py",
        "                syscall(\"umount2\", self.folder.encode(), 2)\n",
        "                self.new_folder = lambda: None\n",
        (
            "tests/test_walls.py::test_the_mode_of_the_folder_is_not_left_behind",
            "tests/test_walls.py::test_attributes_of_the_folder_are_not_left_behind",
            "tests/test_walls.py::test_times_of_the_folder_are_not_left_behind",
            "tests/test_walls.py::test_files_in_and_beside_the_folder_are_not_left_behind",
            "tests/test_walls.py::test_two_wrong_programs_are_no_better_together",
        ),
    ),
    Guard(
        "a program has descriptors of its own", "jail.py",
        '            os.dup2(os.open("/dev/null", os.O_RDWR), standard)', "            pass",
        (
            "tests/test_walls.py::test_flags_of_descriptors_0_to_2_are_not_left_behind",
            "tests/test_walls.py::test_two_wrong_programs_are_no_better_together",
        ),
    ),
    Guard(
        "fcntl has a short list of commands", "jail.py",
        '    ops += rule("fcntl", op(LOAD, LOW[1]), *locks, *only(LOW[1], FCNTL))\n', "",
        (
            "tests/test_walls.py::test_owners_and_signals_of_descriptors_cannot_be_set",
            "tests/test_walls.py::test_locks_are_seen_by_no_other_program_nor_worker",
            "tests/test_walls.py::test_no_lease_keeps_others_from_a_library",
            "tests/test_walls.py::test_write_hints_cannot_be_set",
        ),
    ),
    Guard(
        "ioctl has a short list of commands", "jail.py",
        '    ops += rule("ioctl", *only(LOW[1], IOCTL))\n', "",
        (
            "tests/test_walls.py::test_inode_flags_of_the_folder_are_not_left_behind",
            "tests/test_walls.py::test_owners_and_signals_of_descriptors_cannot_be_set",
        ),
    ),
    Guard(
        "no pages are kept in pipes", "jail.py",
        "vmsplice 278 75, splice 275 76,\ntee 276 77, ", "",
        ("tests/test_walls.py::test_calls_that_a_function_never_needs_are_refused",),
    ),
    Guard(
        "a program stays the user that it is", "jail.py",
        "setuid 105 146, setreuid 113 145, setresuid 117 147, setfsuid 122 151, ", "",
        ("tests/test_walls.py::test_calls_that_a_function_never_needs_are_refused",),
    ),
    Guard(
        "calls younger than the list are unknown", "jail.py",
        "[op(AT_LEAST, NEWEST, 0, 1), UNKNOWN]", "[]",
        ("tests/test_walls.py::test_calls_newer_than_the_list_are_unknown",),
    ),
    Guard(
        "threads share their descriptors", "jail.py",
        "THREAD = 0x10400", "THREAD = 0x10000",
        ("tests/test_walls.py::test_threads_share_their_descriptors",),
    ),
    Guard(
        "pages lie near each other", "jail.py",
        '    ops += rule("mmap", *only(HIGH[0], (0, near - 1, near, near + 1)))\n', "",
        ("tests/test_walls.py::test_memory_of_a_worker_stays_under_its_bound_from_outside",),
    ),
    Guard(
        "a crash starts no handler", "jail.py",
        'wanted = {"CORE": 1,', 'wanted = {"CORE": 0,',
        ("tests/test_walls.py::test_a_crash_starts_no_handler_of_the_machines",),
    ),
    Guard(
        "devices of the machine are shut", "jail.py",
        "everything = struct.pack(\"4Q\", 7, 0, 0, 0)", "everything = struct.pack(\"4Q\", 3, 0, 0, 0)",
        ("tests/test_walls.py::test_three_devices_can_be_opened",),
    ),
    Guard(
        "nothing is written where every file is open", "jail.py",
        "for call, flags in [(\"open\", LOW[1]), (\"openat\", LOW[2])] if reads_only else []:",
        "for call, flags in []:",
        ("tests/test_walls.py::test_nothing_is_written_where_every_file_is_open",),
    ),
    Guard(
        "the trainer's memory is shut", "sandbox.py",
        "        jail.keep_memory_private(self.state)", "        pass",
        ("tests/test_walls.py::test_no_forgery_passes_for_a_user_that_is_not_root",),
    ),
    Guard(
        "our folder is not on a program's path", "jail.py",
        "    if not HERE.endswith(\"-packages\"):", "    if False:",
        ("tests/test_walls.py::test_an_installation_in_place_shows_nothing_of_ours",),
    ),
    Guard(
        "threads are counted from outside", "jail.py",
        " or len(awake) > THREADS", "",
        ("tests/test_walls.py::test_no_program_goes_on_with_more_threads_than_it_may_have",),
    ),
    Guard(
        "deleted files count", "jail.py",
        "files, size = 0, self.deleted()", "files, size = 0, 0",
        (
            "tests/test_walls.py::test_a_folder_on_disk_is_bounded",
            "tests/test_walls.py::test_a_folder_on_disk_is_bounded_for_a_user_that_is_not_root",
        ),
    ),
    Guard(
        "a folder that cannot be looked into is full", "jail.py",
        "too long a path\n            return True", "too long a path\n            pass",
        ("tests/test_walls.py::test_a_folder_on_disk_is_bounded_for_a_user_that_is_not_root",),
    ),
    Guard(
        "a folder is given rights before it is moved", "jail.py",
        "                if os.path.isdir(old) and not os.path.islink(old):\n", "                if False:\n",
        ("tests/test_walls.py::test_folders_without_rights_in_a_folder_do_not_end_the_worker",),
    ),
    Guard(
        "values of library types become plain where they are sent", "jail.py",
        "    if (plain := as_plain(value, kind)) is not value:",
        "    if (plain := value) is not value:",
        (
            "tests/test_sandbox_attacks.py::test_right_answers_in_the_types_of_libraries_are_right",
            "tests/test_sandbox_attacks.py::test_an_object_that_lies_is_sent_as_what_it_is",
        ),
    ),
    Guard(
        "iterators travel as their items", "jail.py",
        '    if kind in LISTED or hasattr(kind, "__next__"):', "    if False:",
        ("tests/test_sandbox_attacks.py::test_an_iterator_is_what_is_made_of_its_items",),
    ),
    Guard(
        "an exception's name that could be ours is quoted", "sandbox.py",
        "repr(name) if name in WORDS else name", "name",
        ("tests/test_codea1.py::test_an_exceptions_name_is_not_the_supervisors_word",),
    ),
    Guard(
        "a run in use is locked", "run.py",
        "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass",
        (
            "tests/test_run.py::test_two_runs_of_one_second_get_two_folders",
            "tests/test_run.py::test_a_run_in_use_is_not_resumed_by_a_second_one",
        ),
    ),
    Guard(
        "a run that was refused leaves no folder", "run.py",
        "        stack.callback(drop_empty, path)\n", "",
        ("tests/test_run.py::test_a_run_that_is_refused_leaves_no_folder",),
    ),
    Guard(
        "a resumed run evaluates on the questions it began with", "run.py",
        "        if saved.get(name, digest) != digest:", "        if False:",
        ("tests/test_run.py::test_a_file_with_other_contents_is_refused_on_resume",),
    ),
    Guard(
        "printing is no reason to lose a step", "run.py",
        "    except (OSError, ValueError):\n        with suppress(OSError, ValueError):\n            os.dup2",
        "    except ZeroDivisionError:\n        with suppress(OSError, ValueError):\n            os.dup2",
        ("tests/test_run.py::test_nobody_reads_what_is_printed_and_no_step_is_lost",),
    ),
    Guard(
        "a closed terminal is a reason to save", "run.py",
        "            signals.append(signal.SIGHUP)\n", "            pass\n",
        ("tests/test_run.py::test_a_terminal_that_is_closed_is_a_reason_to_save",),
    ),
    Guard(
        "a checkpoint that cannot be written leaves nothing behind", "run.py",
        "        shutil.rmtree(part, ignore_errors=True)\n        reason", "        reason",
        ("tests/test_run.py::test_a_full_disk_says_so_and_costs_no_checkpoint",),
    ),
    Guard(
        "a damaged checkpoint does not count among those that are kept", "run.py",
        " if f.name < final.name]", " if f != final]",
        ("tests/test_run.py::test_a_damaged_newer_checkpoint_does_not_cost_the_good_one",),
    ),
    Guard(
        "weights that cannot be computed with are not saved", "run.py",
        "    if not all(x.isfinite().all() for x in numbers):", "    if False:",
        ("tests/test_run.py::test_a_role_that_diverges_stops_the_run_and_is_never_saved",),
    ),
    Guard(
        "a loss that is not finite stops the run", "run.py",
        "        if not math.isfinite(row.get(name, 0.0)):", "        if False:",
        ("tests/test_run.py::test_a_role_that_diverges_stops_the_run_and_is_never_saved",),
    ),
    Guard(
        "a stopped run names the step that is saved", "run.py",
        "stopped after step {run.saved}", "stopped after step {run.step}",
        ("tests/test_run.py::test_a_second_ctrl_c_names_the_step_that_a_resumed_run_goes_on_from",),
    ),
    Guard(
        "what has nothing to be compared with is refused", "run.py",
        "        if getattr(cfg, name) == 1:", "        if False:",
        (
            "tests/test_run.py::test_a_setting_out_of_its_bounds_is_refused_by_name",
            "tests/test_run.py::test_golden_tests_need_no_suites_but_several_programs",
        ),
    ),
    Guard(
        "references that fail their own tests are refused", "run.py",
        "    if 2 * len(bad) > len(sample):", "    if False:",
        ("tests/test_run.py::test_references_that_fail_their_own_tests_are_refused",),
    ),
    Guard(
        "a run that cannot learn says so", "run.py",
        "        if self.flat == 3:", "        if False:",
        ("tests/test_run.py::test_a_run_that_cannot_learn_says_why",),
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
