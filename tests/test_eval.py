"""Evaluation: estimators, suites against mutants, the oracles of the benchmarks, and the commands."""

import ast
from math import comb

import pytest

import eval as evaluation
from eval import evaluate_coder, evaluate_tester, mutants, pass_at_k
from sandbox import Sandbox
from tasks import Hidden, Question, extract_tests

CLAMP = "def clamp(x, low, high):\n    return max(low, min(x, high))\n"
MUTANTS = ("def clamp(x, low, high):\n    return min(x, high)\n", "def clamp(x, low, high):\n    return max(low, x)\n")
GOLDEN = ("assert clamp(5, 0, 3) == 3", "assert clamp(-1, 0, 3) == 0", "assert clamp(2, 0, 3) == 2")
QUESTION = Question("clamp", "Clamp x.", "clamp", CLAMP, (), Hidden(GOLDEN, MUTANTS, "clamps", "heldout"))
SAMPLING = dict(style="plain", temperature=1.0, top_p=1.0, max_new_tokens=8, seed=0)


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2) as box:
        yield box


@pytest.fixture
def say(monkeypatch):
    """Makes every model answer with the given replies, one list per question."""

    def say(*texts):
        monkeypatch.setattr(evaluation, "replies", lambda model, tokenizer, chats, n, **_: [list(t) for t in texts])

    return say


# ---- pass@k ----


@pytest.mark.parametrize(("n", "c", "k", "wanted"), [
    (5, 1, 1, 0.2), (5, 1, 5, 1.0), (5, 0, 5, 0.0), (1, 0, 1, 0.0), (5, 5, 2, 1.0),
    (10, 3, 5, 1 - comb(7, 5) / comb(10, 5)), (200, 1, 100, 1 - comb(199, 100) / comb(200, 100)),
])  # fmt: skip
def test_pass_at_k_is_the_unbiased_estimate(n, c, k, wanted):
    assert pass_at_k(n, c, k) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(2, 0, 5), (3, 1, 5), (0, 0, 1), (5, 6, 1), (5, -1, 1), (5, 2, 0)])
def test_pass_at_k_refuses_what_it_cannot_estimate(n, c, k):
    # The usual shortcut "n - c < k: 1.0" reports a perfect pass@5 for two samples that are both wrong.
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(n, c, k)


# ---- held-out measures ----


def test_coder_rate_counts_programs_that_pass_every_golden_assert(box, say):
    say([CLAMP, MUTANTS[0], "no program at all", CLAMP])
    report = evaluate_coder(None, None, [QUESTION], box, n=4, **SAMPLING)
    assert (report.rate, report.stderr, report.by_family, report.n_questions) == (50.0, 0.0, {"clamps": 50.0}, 1)


def test_a_question_without_tests_is_an_error_and_not_a_perfect_score(box, say):
    say([CLAMP])
    with pytest.raises(ValueError, match="no tests"):
        evaluate_coder(None, None, [Question("q", "", "clamp", CLAMP, ())], box, n=1, **SAMPLING)


def test_tester_figures(box, say):
    say(["assert clamp(5, 0, 3) == 3\nassert clamp(-1, 0, 3) == 0",  # both right: kills both mutants
         "assert clamp(5, 0, 3) == 5\nassert clamp(1, 0, 3) == 1",  # wrong answer, fine call: kills one, relabelled
         "assert clamp(1, 0, 3) == 1",  # one is missing, nothing dies
         "assert clamp(1, 2) == 1\nassert clamp(x"])  # a call that raises, one that does not parse
    report = evaluate_tester(None, None, [QUESTION], box, suites=4, asserts=2, **SAMPLING)
    assert report.suite_right == 25.0
    assert report.assert_accuracy == pytest.approx(100 * (2 + 1 + 1 + 0) / 8)
    assert report.kill == pytest.approx(100 * (2 + 1 + 0 + 0) / 8)
    assert report.mul == pytest.approx(report.assert_accuracy * report.kill / 100)
    assert report.by_family["kill"] == {"clamps": report.kill}
    assert report.by_family["mul"] == {"clamps": pytest.approx(report.mul)}
    assert report.stderr == dict.fromkeys(("suite_right", "assert_accuracy", "kill", "mul"), 0.0)


def test_a_broken_mutant_is_no_kill(box, say):
    broken = Question("q", "", "clamp", CLAMP, (), Hidden(GOLDEN, ("def clamp(:", *MUTANTS), "clamps", "heldout"))
    say(["assert clamp(5, 0, 3) == 3"])
    report = evaluate_tester(None, None, [broken], box, suites=1, asserts=1, **SAMPLING)
    assert report.kill == 50.0


def test_duplicates_and_asserts_beyond_the_first_k_earn_nothing(box, say):
    twice = "assert clamp(1, 0, 3) == 1\n" * 2
    say([twice + "assert clamp(5, 0, 3) == 3\nassert clamp(-1, 0, 3) == 0"])
    report = evaluate_tester(None, None, [QUESTION], box, suites=1, asserts=2, **SAMPLING)
    assert (report.suite_right, report.kill) == (100.0, 0.0)


def test_a_hanging_mutant_is_killed_by_the_test_that_hangs(box, say):
    loop = "def clamp(x, low, high):\n    while x > high:\n        pass\n    return max(low, x)\n"
    question = Question("q", "", "clamp", CLAMP, (), Hidden(GOLDEN, (loop,), "clamps", "heldout"))
    reply = "assert clamp(1, 0, 3) == 1\nassert clamp(5, 0, 3) == 3\nassert clamp(6, 0, 3) == 3"
    ((score,),) = evaluation.score_suites([question], [[extract_tests(reply, "clamp", 3)]], 3, box)
    assert (score.kills, score.timeouts, score.mutants) == ((0, 1, 1), 1, 1)


# ---- mutants ----


def test_an_edit_changes_the_text_as_cosmic_ray_does():
    source = "def f(a, b, c):\n    return a + b * c\n"
    assert "def f(a, b, c):\n    return a ** b * c" in mutants(source)["binary + **"]  # (a ** b) * c


def test_conditions_are_negated_at_their_start():
    source = "def f(a, b):\n    if (a) and b:\n        return 1\n    elif b:\n        return 2\n"
    assert mutants(source)["not"] == [ast.unparse(ast.parse(source.replace("if (a)", "if not (a)", 1)))]


def test_no_mutant_equals_the_program_or_another_one_and_all_are_python():
    loop = "    while x is not None and not -x < +2.5:\n        x = [x for x in (True, False)] or 1j\n"
    source = "def f(x):\n    # 1 + 1, é\n" + loop
    made = mutants(source)
    for group in made.values():
        assert len(set(group)) == len(group)
        assert ast.unparse(ast.parse(source)) not in group
    assert made["comparison is not is"] == [ast.unparse(ast.parse(source.replace("is not", "is")))]
    assert made["unary not "] and made["unary - +"] and made["number"] and made["True False"] and made["and or"]
    assert "binary + -" not in made  # only in the comment
