"""The loop and its parts: rewards, TopVar, validation, book, minibatches, settings. No model is loaded here."""

import dataclasses
import itertools
import json
import statistics
import types

import pytest

import codea1
from codea1 import (
    Config,
    Execution,
    Suite,
    check_config,
    cut,
    make_config,
    memory_bytes,
    reward_coder,
    reward_tester,
    score,
    topvar,
    update_book,
    validate,
)
from mistake_book import MistakeBook
from sandbox import Status
from tasks import Question, Test, extract_tests

P, F, E, T, N = Status.PASS, Status.FAIL, Status.ERROR, Status.TIMEOUT, Status.NOT_RUN
QUESTION = Question("inc", "Add one.", "inc", "def inc(x):\n    return x + 1\n", ("assert inc(1) == 2",))


def suite_of(reply: str, k: int = 8, mode: str = "relabel") -> Suite:
    """The reply judged by x + 1 on integers; other calls have no value."""
    asserts = extract_tests(reply, "inc", k)
    truth = {t.call: int(t.call[4:-1]) + 1 for t in asserts if t is not None and t.call[4:-1].isdigit()}
    return validate(asserts, truth, mode)


# The worked rows of the paper's figure: K 3, alpha 0.5, half of the history failed.


def test_worked_rows_one_and_three_of_the_figure():
    history = [P, F]
    assert reward_tester(3, 0, [F, P, P], history, 3, 0.5)[0] == pytest.approx(0.708, abs=5e-4)
    assert reward_tester(3, 0, [F, F, P], history, 3, 0.5)[0] == pytest.approx(0.792, abs=5e-4)


def test_worked_row_two_follows_the_formula_not_the_figure():
    """The figure prints Adv 0 and reward .333 for two valid tests and no new failure; no formula gives that. That of
    the text gives Adv (0 - 1/2 + 1)/2 = .25 and reward .458."""
    reward, r_val, r_adv = reward_tester(2, 1, [P, P], [P, F], 3, 0.5)
    assert (r_val, r_adv, reward) == pytest.approx((2 / 3, 0.25, 0.458), abs=5e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_alpha_weighs_validity_against_breaking(alpha):
    reward, r_val, r_adv = reward_tester(4, 2, [F, F, P, P], [], 8, alpha)
    assert (r_val, r_adv) == (0.5, 0.25) and reward == pytest.approx(alpha * 0.5 + (1 - alpha) * 0.25)


def test_a_suite_without_a_valid_test_earns_nothing_even_with_a_history_that_was_passed():
    assert reward_tester(0, 8, [], [P, P], 8, 0.5) == (0.0, 0.0, 0.0)
    assert reward_tester(0, 0, [], [P], 8, 0.5) == (0.0, 0.0, 0.0)


def test_more_asserts_than_asked_for_do_not_raise_validity_above_one():
    reply = "\n".join(f"assert inc({i}) == {i + 1}" for i in range(20))
    suite = suite_of(reply, k=5)
    assert len(suite.tests) == 5 and suite.n_invalid == 0
    assert reward_tester(len(suite.tests), suite.n_invalid, [P] * 5, [], 5, 1.0)[0] == 1.0


def test_tests_that_never_ran_are_neither_passed_nor_failed():
    assert reward_coder(True, [[P, N, N, N]], []) == 1.0
    assert reward_coder(True, [[N, N]], []) == 0.0
    assert reward_tester(2, 0, [N, N], [N, N], 2, 0.0)[0] == 0.5  # fail_new 0, fail_hist 0: (0 - 0 + 1) / 2


def test_coder_reward_is_half_history_half_new():
    assert reward_coder(True, [[P, F], [P, P]], [P, F, F, F]) == pytest.approx((0.25 + 0.75) / 2)


def test_a_suite_without_valid_tests_is_left_out_of_the_coders_mean():
    assert reward_coder(True, [[], [P, F]], []) == 0.5
    assert reward_coder(True, [[], []], [P]) == 1.0


def test_no_test_at_all_earns_nothing():
    assert reward_coder(True, [], []) == 0.0
    assert reward_coder(True, [[], []], []) == 0.0


def test_a_program_that_does_not_load_earns_nothing_and_neither_do_its_suites():
    test = Test("inc(1)", "2")
    suite = Suite((test,), 0)
    e = Execution([[suite], [suite]], [test], [], [False, True], [{test: E}, {test: F}])
    rewards = score(e, 1, 0.5)
    assert rewards.coder == [0.0, 0.0] and rewards.tester[0] == [0.0] and rewards.tester[1][0] > 0


def test_wrong_answers_are_relabelled_or_dropped_and_count_as_invalid_either_way():
    reply = "assert inc(1) == 2\nassert inc(2) == 9\n"
    relabelled, dropped = suite_of(reply), suite_of(reply, mode="drop")
    assert [(t.call, t.expected) for t in relabelled.tests] == [("inc(1)", "2"), ("inc(2)", "3")]
    assert [t.call for t in dropped.tests] == ["inc(1)"]
    assert relabelled.n_invalid == dropped.n_invalid == 1


def test_one_breaking_call_in_many_forms_counts_once():
    """Otherwise the tester would learn to assert one breaking call K times over."""
    reply = "assert inc(1) == 2\nassert inc(1) == 2\nassert str(inc(1)) == '2'\nassert not inc(1) is None\n"
    suite = suite_of(reply)
    assert len(suite.tests) == 1 and suite.n_invalid == 3


def test_malformed_and_failing_asserts_cost_one_each():
    suite = suite_of("assert inc(1) == 2\nassert inc('a') == 1\nassert inc(3) > 2\nassert True\n")
    assert len(suite.tests) == 1 and suite.n_invalid == 3


def test_topvar_agrees_with_brute_force_on_ties_and_flat_groups():
    values = (0.0, 0.5, 1.0)
    for rewards in itertools.product(itertools.product(values, repeat=2), repeat=3):
        spread = [statistics.pstdev(r) for r in rewards]
        want = [] if max(spread) == 0 else [spread.index(max(spread))]
        assert topvar([list(r) for r in rewards], 1) == want


def test_topvar_of_several_keeps_programs_with_spread_alone():
    assert topvar([[0, 1], [1, 1], [], [0, 2], [0, 1]], 4) == [3, 0, 4]


def test_book_takes_failures_of_loading_programs_and_loses_what_is_passed():
    old, new, missed = Test("inc(1)", "2"), Test("inc(2)", "3"), Test("inc(3)", "4")
    book = MistakeBook()
    book.update("inc", [old], [])
    e = Execution([[Suite((new,), 0)], [Suite((missed,), 0)]], [old], [], [True, False],
                  [{old: P, new: F}, {old: E, missed: E}])
    assert update_book(book, QUESTION, e) == (1, 1)
    assert book.replay("inc", 8) == [new]


def test_a_failure_counts_once_per_suite_that_holds_the_test():
    one, two = Test("inc(1)", "2"), Test("inc(2)", "3")
    book = MistakeBook()
    e = Execution([[Suite((two,), 0), Suite((one, two), 0)]], [], [], [True], [{one: F, two: F}])
    update_book(book, QUESTION, e)
    assert book.replay("inc", 8) == [two, one]


def test_tests_that_never_ran_stay_out_of_the_book():
    test = Test("inc(1)", "2")
    book = MistakeBook()
    assert update_book(book, QUESTION, Execution([[Suite((test,), 0)]], [], [], [True], [{test: N}])) == (0, 0)
    assert len(book) == 0


def test_a_replayed_test_that_the_ground_truth_denies_is_evicted():
    test = Test("inc(1)", "7")
    book = MistakeBook()
    book.update("inc", [test], [])
    update_book(book, QUESTION, Execution([[]], [], [test], [True], [{}]))
    assert book.replay("inc", 8) == []


@pytest.mark.parametrize("n, parts", [(1, 2), (2, 2), (5, 2), (7, 3), (3, 5)])
def test_minibatches_are_whole_questions_in_order(n, parts):
    batches = cut([[f"{q}{m}" for m in range(2)] for q in range(n)], parts)
    assert [g for b in batches for g in b] == [f"{q}{m}" for q in range(n) for m in range(2)]
    assert len(batches) == min(n, parts) and all(len(b) % 2 == 0 for b in batches)
    assert max(map(len, batches)) - min(map(len, batches)) <= 2


def test_naming_a_checkpoint_selects_the_papers_settings():
    cfg = make_config({"coder": "C", "questions": "F"})
    assert (cfg.preset, cfg.batch_questions, cfg.asserts, cfg.coder_lr, cfg.tester) == ("paper", 256, 8, 1e-6, "C")
    assert make_config({}).preset == "tiny"
    assert make_config({"coder": "C", "preset": "tiny"}).preset == "tiny"


def test_the_embedded_default_runs_for_any_number_of_steps():
    assert [make_config({"steps": n}).warmup for n in (1, 3, 90)] == [0, 2, 5]
    assert check_config(make_config({"steps": 1}), 384).steps == 1
    with pytest.raises(ValueError, match="--warmup below 3"):
        check_config(make_config({"steps": 3, "warmup": 3}), 384)


def test_settings_that_cannot_work_say_what_to_set():
    cfg = Config(coder="C", questions="F", batch_questions=4)
    with pytest.raises(ValueError, match="--batch-questions to at most 3"):
        check_config(cfg, 3)
    with pytest.raises(ValueError, match="--warmup below 9"):
        check_config(cfg, 12)
    with pytest.raises(ValueError, match="unknown setting"):
        make_config({"lr": 1})
    with pytest.raises(ValueError, match="--coder DIR"):
        make_config({"questions": "F"})


@pytest.mark.parametrize("name, value", [
    ("steps", -1), ("timeout", 0.0), ("workers", -1), ("memory_mb", 1), ("save_every", -3), ("kl_coef", -1.0),
    ("coder_lr", float("nan")), ("alpha", 2.0), ("top_p", 0.0), ("temperature", 0.0), ("programs", 0)])
def test_a_setting_out_of_its_bounds_is_refused_by_name(name, value):
    """A timeout of 0 let every program fail, and a run went on for hours with nothing but zeros."""
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} is {value}"):
        check_config(Config(coder="C", questions="F", **{name: value}), 9688)


def test_every_number_among_the_settings_has_bounds():
    numbers = {f.name for f in dataclasses.fields(Config) if type(f.default) in (int, float)}
    assert set(codea1.BOUNDS) == numbers


def test_a_device_that_is_not_there_is_refused_by_name():
    with pytest.raises(ValueError, match="--device is 'tpu'"):
        make_config({"device": "tpu"})


QWEN = {  # size: hidden, layers, heads, kv heads, MLP, rows, tied
    "1.5B": (1536, 28, 12, 2, 8960, 151936, True), "3B": (2048, 36, 16, 2, 11008, 151936, True),
    "7B": (3584, 28, 28, 4, 18944, 152064, False)}


@pytest.mark.parametrize("size, flags, gib, refused", [
    ("1.5B", {}, 80, "55 GiB .* 35 GiB .* --checkpointing, --offload"), ("1.5B", {"checkpointing": True}, 80, None),
    ("3B", {"checkpointing": True}, 80, "There are --offload"),
    ("3B", {"checkpointing": True, "offload": True}, 80, None),
    ("7B", {"checkpointing": True, "offload": True}, 141, "7.62 . 7.62 billion parameters need 156 GiB")])
def test_what_does_not_fit_on_a_gpu_is_refused_with_its_sum(size, flags, gib, refused, tmp_path, monkeypatch):
    hidden, layers, heads, kv, inner, rows, tied = QWEN[size]
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "qwen2", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "intermediate_size": inner, "vocab_size": rows, "tie_word_embeddings": tied}))
    card = types.SimpleNamespace(total_memory=gib << 30)
    monkeypatch.setattr(codea1.torch.cuda, "get_device_properties", lambda device: card)
    cfg = Config(coder=str(tmp_path), tester=str(tmp_path), questions="F", device="cuda", dtype="bfloat16", **flags)
    if refused is None:
        return codea1.check_memory(cfg)
    with pytest.raises(ValueError, match=refused):
        codea1.check_memory(cfg)


def test_one_breaking_call_in_many_spellings_is_one_test():
    """What a tester finds: f(1, 2), f(1, b=2), f(b=2, a=1) and f(True, 2.0) are one call, and earned four times."""
    reference = "def f(a, b, c=3):\n    return a + b + c\n"
    spellings = ["f(1, 2)", "f(1, b=2)", "f(b=2, a=1)", "f(True, 2.0)", "f(1, 2, 3)", "f(1, 3)"]
    asserts = extract_tests("\n".join(f"assert {call} == 6" for call in spellings), "f", 8)
    truth = {test.call: 7 if "3)" in test.call and "2" not in test.call else 6 for test in asserts}
    suite = validate(asserts, truth, "relabel", reference)
    assert ([test.call for test in suite.tests], suite.n_invalid) == (["f(1, 2)", "f(1, 3)"], 5)


def test_suites_that_did_not_all_run_do_not_train_the_tester():
    """A program that hangs on everything is given up after some calls: its suites differ by their order alone, and
    TopVar would take it for the program to learn from."""
    tests = [Test(f"inc({i})", str(i + 1)) for i in range(4)]
    suites = [Suite(tuple(tests[:2]), 0), Suite(tuple(tests[2:]), 0)]
    hangs = dict(zip(tests, (T, T, N, N), strict=True))
    fails = dict(zip(tests, (F, F, P, P), strict=True))
    rewards = score(Execution([suites, suites], [], [], [True, True], [hangs, fails]), 2, 0.5)
    assert rewards.tester[0] == rewards.tester[1] and rewards.whole == [False, True]


def test_steps_follow_from_the_epochs_and_drop_the_last_incomplete_batch():
    assert check_config(Config(coder="C", questions="F"), 9688).steps == 111


def test_every_setting_is_explained_by_help(capsys):
    with pytest.raises(SystemExit):
        codea1.main(["--help"])
    text = capsys.readouterr().out
    for name in Config.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in text


def test_unknown_and_abbreviated_flags_are_refused(capsys):
    for flag in ("--learning-rate=1", "--batch=4"):
        with pytest.raises(SystemExit):
            codea1.main([flag])


def test_memory_sum_by_hand():
    """1.5B twice with one reference in bfloat16: 2 x 18 + 2 bytes a parameter; offload: 18 + 2 + 2."""
    n = 1_543_714_304
    assert memory_bytes(n, n, 2, False, 1) == 38 * n
    assert memory_bytes(n, n, 2, True, 1) == 22 * n
    assert memory_bytes(n, 0, 2, False, 1) == 20 * n
