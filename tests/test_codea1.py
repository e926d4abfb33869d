"""The steps of the algorithm: validation, rewards, book, TopVar, minibatches. No model is loaded here."""

import itertools
import statistics

import pytest

import sandbox
from asserts import Test, bound_call
from codea1 import (
    Execution,
    Suite,
    cut,
    execute,
    reward_coder,
    reward_tester,
    score,
    topvar,
    update_book,
    validate,
)
from mistake_book import MistakeBook
from run import Config
from sandbox import Sandbox, Status, Truth, Value
from tasks import Question, extract_tests

P, F, E, T, N = Status.PASS, Status.FAIL, Status.ERROR, Status.TIMEOUT, Status.NOT_RUN
QUESTION = Question("inc", "Add one.", "inc", "def inc(x):\n    return x + 1\n", ("assert inc(1) == 2",))


def suite_of(reply: str, k: int = 8, mode: str = "relabel") -> Suite:
    """The reply judged by x + 1 on integers; other calls have no value."""
    asserts = extract_tests(reply, "inc", k)
    inputs = {t.call: int(t.call[4:-1]) for t in asserts if t is not None and t.call[4:-1].isdigit()}
    truths = {call: Truth(Value(True, x + 1), bound_call("inc", [x], {})) for call, x in inputs.items()}
    return validate(asserts, truths, mode)


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
    """Left out of the rates, they made giving up pay: crash on purpose after the tests that pass, and the rest is not
    counted."""
    assert reward_coder(True, [[P, N, N, N]], []) == 0.25
    assert reward_coder(True, [[P, P]], [P, N]) == 0.75
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


def test_questions_without_a_group_leave_no_minibatch_half_empty():
    """TopVar finds nothing in some questions: cut with these, an update had all of its groups in one
    minibatch, and the other step was lost."""
    assert cut([["a"], ["b"], [], []], 2) == [["a"], ["b"]]
    assert cut([[], []], 2) == []


@pytest.mark.parametrize("n, parts", [(1, 2), (2, 2), (5, 2), (7, 3), (3, 5)])
def test_minibatches_are_whole_questions_in_order(n, parts):
    batches = cut([[f"{q}{m}" for m in range(2)] for q in range(n)], parts)
    assert [g for b in batches for g in b] == [f"{q}{m}" for q in range(n) for m in range(2)]
    assert len(batches) == min(n, parts) and all(len(b) % 2 == 0 for b in batches)
    assert max(map(len, batches)) - min(map(len, batches)) <= 2


# ---- what either player could earn without merit, through the sandbox ----


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2, timeout=0.5) as box:
        yield box


def played(box, reference, program, suites, history=(), mode="relabel", k=8):
    """(what a program and its suites, each a list of asserts, earn on a reference; what happened)."""
    question = Question("f", "", "f", reference, ())
    cfg = Config(asserts=k, wrong_answers=mode)
    e = execute(box, question, [program], [["\n".join(suite) for suite in suites]], list(history), cfg)
    return score(e, k, 0.5), e


DIGITS = "def f(n):\n    return sum(int(c) for c in str(abs(n)))\n"
DIGIT_TESTS = ["assert f(11) == 2", "assert f(12) == 3"] + [f"assert f(-{n}) == {n}" for n in range(3, 9)]
NAMED = """
class {name}(Exception): pass
def f(n):
    if n < 0:
        raise {name}
    return sum(int(c) for c in str(n))
"""
BY_METACLASS = """
class S(str):
    def __str__(self): return "not_run"
class M(type):
    __name__ = property(lambda c: S("not_run"))
class X(Exception, metaclass=M): pass
def f(n):
    if n < 0:
        raise X
    return sum(int(c) for c in str(n))
"""


@pytest.mark.parametrize("program", [BY_METACLASS] + [
    NAMED.format(name=name) for name in ("not_run", "timeout", "crash", "malformed", "nondeterministic", "NOT_RUN")])
def test_an_exceptions_name_is_not_the_supervisors_word(box, program):
    """An exception class named not_run made failed tests ones that never ran: R_C rose from 0.25 to 1."""
    rewards, e = played(box, DIGITS, program, [DIGIT_TESTS])
    assert list(e.status[0].values()) == [P, P, E, E, E, E, E, E]
    assert rewards.coder == [0.25] and rewards.whole == [True]
    book = MistakeBook()
    assert update_book(book, Question("f", "", "f", DIGITS, ()), e) == (6, 0)
    question, cfg = Question("f", "", "f", DIGITS, tuple(DIGIT_TESTS)), Config(reward="golden")
    golden = execute(box, question, [program], [[]], [], cfg)
    assert score(golden, 8, 0.5).coder == [0.25]
    errors = [v.error for v in box.values([(program, [f"f(-{n})" for n in range(3, 5)])])[0]]
    assert not set(errors) & set(sandbox.WORDS)


def test_giving_up_earns_less_than_being_wrong(box):
    """A program that ends itself on what it cannot do, and does not load again, once had the rest left out."""
    wrong = "def f(n):\n    return sum(int(c) for c in str(n)) if n >= 0 else 0\n"
    gives_up = "import os\ndef f(n):\n    return sum(int(c) for c in str(n)) if n >= 0 else os._exit(0)\n"
    tests = [f"assert f({n}) == {n}" for n in (1, 2)] + [f"assert f(-{n}) == {n}" for n in range(1, 15)]
    (honest, _), (quitter, e) = (played(box, DIGITS, p, [tests], k=16) for p in (wrong, gives_up))
    assert honest.coder == quitter.coder == [0.125]
    statuses = list(e.status[0].values())
    assert statuses == [P, P] + [E] * 9 + [N] * 5
    assert quitter.r_adv == [9 / 16] and quitter.whole == [False]


def test_one_breaking_call_in_many_spellings_is_one_test(box):
    """What a tester finds: f(1, 2), f(1, b=2), f(b=2, a=1) and f(True, 2.0) are one call, and earned four times."""
    reference = "def f(a, b, c=3):\n    return a + b + c\n"
    spellings = ["f(1, 2)", "f(1, b=2)", "f(b=2, a=1)", "f(True, 2.0)", "f(1, 2, 3)", "f(1, 2, c=3)", "f(1, 3)"]
    _, e = played(box, reference, reference, [[f"assert {call} == 6" for call in spellings]])
    (suite,) = e.suites[0]
    assert ([test.call for test in suite.tests], suite.n_invalid) == (["f(1, 2)", "f(1, 3)"], 6)


COUNT = "def f(xs):\n    return sum(1 for x in xs if x)\n"
EMPTIES = ["[]", "()", "''", "{}", "set()", "frozenset()", "b''", "''*3", "range(0)", "range(5, 5)", "list()", "[] * 4"]


@pytest.mark.parametrize("start", [0, 4])
def test_all_empty_inputs_are_one_breaking_situation(box, start):
    """Seven types of nothing earned seven times what the one situation is worth."""
    program = "def f(xs):\n    first = list(xs)[0]\n    return sum(1 for x in xs if x)\n"
    honest = ["assert f([]) == 0"] + [f"assert f({[1] * i}) == {i}" for i in range(1, 8)]
    rewards, _ = played(box, COUNT, program, [honest, [f"assert f({x}) == 0" for x in EMPTIES[start : start + 8]]])
    assert rewards.tester[0] == [0.5625, 0.125]


def test_one_long_range_in_many_spellings_is_one_call(box):
    """Equal ranges with other ends counted as calls of their own."""
    program = "def f(xs):\n    return len(xs) if len(xs) < 20000 else 0\n"
    honest = ["assert f(range(0, 30000000, 1000)) == 30000"] + [f"assert f({list(range(i))}) == {i}" for i in range(7)]
    hack = [f"assert f(range(0, {29999001 + i}, 1000)) == 30000" for i in range(8)]
    rewards, e = played(box, "def f(xs):\n    return len(xs)\n", program, [honest, hack])
    assert rewards.tester[0] == [0.5625, 0.125] and len(e.suites[0][1].tests) == 1


@pytest.mark.parametrize("asserts", [
    [f"assert f(numbers=[{i}]) == {i}" for i in range(8)],
    [f"assert f([{i}], 0) == {i}" for i in range(8)],
    [f"assert f([{i}], start=0.0) == {i}" for i in range(8)],
    [f"assert f(start=False, numbers=[{i}]) == {i}" for i in range(8)]])
def test_a_right_program_need_not_have_the_references_names_and_defaults(box, asserts):
    """The reference's own name of a parameter, or its default written out, broke every other right program."""
    reference = "def f(numbers, start=0):\n    return sum(numbers) + start\n"
    rewards, _ = played(box, reference, "def f(xs):\n    return sum(xs)\n", [asserts])
    assert rewards.coder == [1.0] and rewards.tester[0] == [0.5]


def test_huge_values_of_one_suite_cost_no_other_suite_and_no_test_of_the_book(box):
    """They used up the room of all: a neighbour's valid tests became none, and the book of the question was erased."""
    reference = "def f(xs):\n    return [x for x in xs]\n"
    huge = [f"assert len(f(range(10**14, 10**14+{980000 + i}))) == {980000 + i}" for i in range(8)]
    history = [Test(f"f([{50 + i}])", f"[{50 + i}]") for i in range(8)]
    ordinary = [f"assert f([{i}]) == [{i}]" for i in range(8)]
    rewards, e = played(box, reference, "def f(xs):\n    return list(xs)[1:]\n", [huge, ordinary], history)
    assert len(e.suites[0][1].tests) == 8 and e.history == history and e.evicted == []
    assert rewards.tester[0][1] > rewards.tester[0][0]


def test_a_replayed_test_that_cannot_be_asked_stays_in_the_book(box):
    """A ground truth that was too slow once, on a busy machine, lost the test for good."""
    reference = "import time\ndef f(x):\n    return time.sleep(9) if x else 0\n"
    slow, wrong, right = Test("f(1)", "None"), Test("f(0)", "5"), Test("f(0)", "0")
    _, e = played(box, reference, reference, [[]], [slow, wrong, right])
    assert (e.history, e.evicted) == ([right], [wrong])


def test_a_dropped_wrong_answer_does_not_make_the_right_one_a_duplicate():
    dropped = suite_of("assert inc(1) == 9\nassert inc(1) == 2\nassert inc(1) == 2\n", mode="drop")
    assert [(t.call, t.expected) for t in dropped.tests] == [("inc(1)", "2")] and dropped.n_invalid == 2
    relabelled = suite_of("assert inc(1) == 9\nassert inc(1) == 2\n")
    assert len(relabelled.tests) == 1 and relabelled.n_invalid == 2


def test_suites_that_did_not_all_run_do_not_train_the_tester():
    """A program that hangs on everything is given up after some calls: its suites differ by their order alone, and
    TopVar would take it for the program to learn from."""
    tests = [Test(f"inc({i})", str(i + 1)) for i in range(4)]
    suites = [Suite(tuple(tests[:2]), 0), Suite(tuple(tests[2:]), 0)]
    hangs = dict(zip(tests, (T, T, N, N), strict=True))
    fails = dict(zip(tests, (F, F, P, P), strict=True))
    rewards = score(Execution([suites, suites], [], [], [True, True], [hangs, fails]), 2, 0.5)
    assert rewards.tester[0] == rewards.tester[1] and rewards.whole == [False, True]
    assert topvar(rewards.comparable, 2) == [1]
