"""Evaluation: estimators, suites against mutants, the oracles of the benchmarks, and the commands."""

import gzip
import json
import random
import shutil
from argparse import Namespace
from math import comb
from pathlib import Path
from statistics import fmean, stdev

import pytest

import eval as evaluation
from eval import evaluate_coder, evaluate_tester, pass_at_k
from model import Qwen2
from sandbox import Sandbox, Value
from tasks import Hidden, Question, extract_tests, load_questions

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
        def ask_model(model, tokenizer, chats, n, **_):
            return [list(group[:n]) for group in texts]

        monkeypatch.setattr(evaluation, "ask_model", ask_model)

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
    assert report == evaluation.Figure(50.0, 0.0, {"clamps": 50.0})


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
    accuracy, kill = 100 * (2 + 1 + 1 + 0) / 8, 100 * (2 + 1 + 0 + 0) / 8
    wanted = {"suite_right": 25.0, "assert_accuracy": accuracy, "kill": kill, "mul": accuracy * kill / 100,
              "attack_success": 100.0, "sight": 0.0}  # the first suite alone, whatever is shown
    assert {name: figure.value for name, figure in report.items()} == pytest.approx(wanted)
    for figure in report.values():
        assert (figure.stderr, figure.by_family) == (0.0, {"clamps": pytest.approx(figure.value)})


def test_a_broken_mutant_is_no_kill(box, say):
    broken = Question("q", "", "clamp", CLAMP, (), Hidden(GOLDEN, ("def clamp(:", *MUTANTS), "clamps", "heldout"))
    say(["assert clamp(5, 0, 3) == 3"])
    report = evaluate_tester(None, None, [broken], box, suites=1, asserts=1, **SAMPLING)
    assert report["kill"].value == 50.0


def test_duplicates_and_asserts_beyond_the_first_k_earn_nothing(box, say):
    twice = "assert clamp(1, 0, 3) == 1\n" * 2
    say([twice + "assert clamp(5, 0, 3) == 3\nassert clamp(-1, 0, 3) == 0"])
    report = evaluate_tester(None, None, [QUESTION], box, suites=1, asserts=2, **SAMPLING)
    assert (report["suite_right"].value, report["kill"].value) == (100.0, 0.0)


def test_a_hanging_mutant_is_killed_by_the_test_that_hangs(box, say):
    loop = "def clamp(x, low, high):\n    while x > high:\n        pass\n    return max(low, x)\n"
    question = Question("q", "", "clamp", CLAMP, (), Hidden(GOLDEN, (loop,), "clamps", "heldout"))
    reply = "assert clamp(1, 0, 3) == 1\nassert clamp(5, 0, 3) == 3\nassert clamp(6, 0, 3) == 3"
    ((score,),) = evaluation.score_suites([question], [[extract_tests(reply, "clamp", 3)]], 3, box)
    assert (score.kills, score.timeouts, score.mutants) == ((0, 1, 1), 1, 1)


# ---- a tester that reads ----

LOW, HIGH, NEITHER = "assert clamp(-1, 0, 3) == 7", "assert clamp(5, 0, 3) == 7", "assert clamp(1, 0, 3) == 1"
AIMED = dict(suites=16, asserts=2, **SAMPLING)  # 4 suites for each mutant that is shown


@pytest.fixture
def tester(monkeypatch):
    """Makes reply(text of the chat, its place, number of the sample) the model; the sizes n that it
    was asked for are returned."""

    def install(reply):
        asked = []

        def ask_model(model, tokenizer, chats, n, *, seed, **_):
            assert seed == 0
            asked.append(n)
            texts = [chat[0]["content"] for chat in chats]
            return [[reply(text, place, i) for i in range(n)] for place, text in enumerate(texts)]

        monkeypatch.setattr(evaluation, "ask_model", ask_model)
        return asked

    return install


def with_mutants(*mutants):
    return Question("q", "", "clamp", CLAMP, (), Hidden(GOLDEN, mutants, "clamps", "heldout"))


def figures_of(questions, box, **other):
    return evaluate_tester(None, None, questions, box, **{**AIMED, **other})


def test_sight_is_what_a_tester_gains_by_reading(box, tester):
    """With kill alone, a tester that saw nothing had the figures of one that reads."""

    def reads(text, place, i):
        if MUTANTS[0] in text:
            return LOW if i < 3 else HIGH  # 3 of 4 suites break the mutant that is shown
        if MUTANTS[1] in text:
            return HIGH if i == 2 else NEITHER  # 1 of 4
        return LOW if i == 1 else NEITHER  # of the first 4: 1 breaks the one, none the other

    asked = tester(reads)
    figures = figures_of([QUESTION], box)
    assert figures["attack_success"].value == pytest.approx((75 + 25) / 2)
    assert figures["sight"].value == pytest.approx((75 - 25 + 25 - 0) / 2)
    assert figures["sight"].by_family == {"clamps": figures["sight"].value}
    assert figures["kill"].value == pytest.approx(100 * 1 / 32)  # as before: of 16 suites, 2 mutants
    assert asked == [16, 4, 4]


def test_a_tester_that_does_not_read_has_no_sight(box, tester):
    """Its random numbers hang on the place of a question. With other numbers for the mutants than
    for the reference, noise was in a figure that is 0, and its error was twice as large."""
    questions = [with_mutants(MUTANTS[0]), with_mutants(*MUTANTS), with_mutants(MUTANTS[1])]
    tester(lambda text, place, i: [LOW, HIGH, NEITHER][(place + i) % 3])
    figures = figures_of(questions, box)
    assert (figures["sight"].value, figures["sight"].stderr) == (0.0, 0.0)
    # Places 0, 1, 2 say LHNL, HNLH, NLHN: 2 of 4; 1 of 4 and 2 of 4; 1 of 4.
    assert figures["attack_success"].value == pytest.approx(100 * (2 / 4 + 3 / 8 + 1 / 4) / 3)


def test_the_error_of_sight_is_that_of_the_paired_difference(box, tester):
    """Against plain Python: the mutants are run here, and the differences taken one by one."""
    odd = "def clamp(x, low, high):\n    return {} if x == {} else max(low, min(x, high))\n"
    chosen = random.Random(5)
    questions = []
    for i in range(6):
        mutants = [odd.format(x + 50, x) for x in chosen.sample(range(-2, 6), 1 + i % 3)]
        questions.append(with_mutants(*mutants, *(["def clamp(:"] if i == 4 else [])))

    def reply(text, place, i):
        drawn = random.Random(f"{text} {place} {i}")
        return "\n".join(f"assert clamp({drawn.randrange(-2, 6)}, 0, 3) == 1" for _ in range(2))

    def share(question, place, shown, mutant):
        broken, spaces = 0, ({}, {})
        for program, space in zip((CLAMP, mutant), spaces, strict=True):
            exec(program, space)
        for i in range(4):
            calls = [line[7:-5] for line in reply("\n" + shown, place, i).split("\n")]
            broken += any(eval(call, spaces[0]) != eval(call, spaces[1]) for call in calls)
        return broken / 4

    tester(reply)
    figures = figures_of(questions, box)
    aimed, gained = [], []
    for place, question in enumerate(questions):
        mutants = [m for m in question.hidden.mutants if m != "def clamp(:"]
        own = fmean(share(question, place, m, m) for m in mutants)
        aimed.append(100 * own)
        gained.append(100 * (own - fmean(share(question, place, CLAMP, m) for m in mutants)))
    for name, values in (("attack_success", aimed), ("sight", gained)):
        assert stdev(values) > 0
        assert figures[name].value == pytest.approx(fmean(values)), name
        assert figures[name].stderr == pytest.approx(stdev(values) / 6**0.5), name


def test_black_box_samples_no_more_and_has_no_sight(box, tester):
    seen = []
    asked = tester(lambda text, place, i: seen.append(text) or (LOW if i in (1, 7) else NEITHER))
    figures = figures_of([QUESTION], box, black_box=True)
    assert asked == [16] and set(seen) == {"Clamp x.\ntest"}
    assert figures["attack_success"].value == pytest.approx(100 * 1 / 8)  # 1 of 4 suites, one mutant
    assert (figures["sight"].value, figures["sight"].stderr) == (0.0, 0.0)


def test_a_mutant_that_does_not_load_is_not_attacked(box, tester):
    """It fails every test: each suite would break it, read or not."""
    broken = "def clamp(:"
    tester(lambda text, place, i: LOW if MUTANTS[0] in text or broken in text else NEITHER)
    figures = figures_of([with_mutants(broken), with_mutants(broken, *MUTANTS), with_mutants(broken)], box)
    assert figures["attack_success"].value == figures["sight"].value == pytest.approx(50.0)
    assert figures["sight"].stderr == 0.0  # one question is left


def test_few_mutants_come_from_all_over_the_question():
    """Questions have those of one kind side by side: the first three were all of one."""
    question = with_mutants(*map(str, range(9)))
    assert evaluation.few_mutants(question, 3) == ["1", "4", "7"]
    assert evaluation.few_mutants(question, 1) == ["4"]
    assert evaluation.few_mutants(question, 20) == list(question.hidden.mutants)
    bare = Question("q", "", "double", "def double(x):\n    return 2 * x\n", ())
    assert len(evaluation.few_mutants(bare, 3)) == 3  # made


# ---- commands ----

DOUBLE = {"task_id": "Mbpp/3", "prompt": "", "canonical_solution": "def double(x):\n    return 2 * x\n",
          "entry_point": "double", "base_input": [[1], [2]], "plus_input": [[0], [-3], ["ab"]], "atol": 0}  # fmt: skip
GREET = {"task_id": "Mbpp/4", "prompt": "", "canonical_solution": "def greet(x):\n    return 'hi ' + x\n",
         "entry_point": "greet", "base_input": [["a"]], "plus_input": [[""]], "atol": 0}  # fmt: skip
ONLY_BASE = "def double(x):\n    return x + x if x > 0 else x\n"


@pytest.fixture
def write(tmp_path):
    def write(name, rows):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    return write


@pytest.fixture
def models(monkeypatch):
    """Makes reply(chat, seed) the model of every command; the list of all chats it saw is returned."""

    def install(reply):
        seen = []

        def replies(model, tokenizer, chats, n, *, seed, **_):
            seen.extend(json.loads(json.dumps(chats)))
            return [[reply(chat, seed + i) for i in range(n)] for chat in chats]

        monkeypatch.setattr(evaluation, "load_model", lambda path, device, dtype: (path, None))
        monkeypatch.setattr(evaluation, "ask_model", replies)
        return seen

    return install


def run(tmp_path, *argv):
    evaluation.main([*argv, "--workers", "2"])
    return json.loads((tmp_path / "out" / "results.json").read_text())


def test_code_scores_base_and_plus(tmp_path, write):
    data = write("data.jsonl", [DOUBLE, GREET])
    right = [{"task_id": row["task_id"], "solution": row["canonical_solution"]} for row in (DOUBLE, GREET)]
    samples = write("samples.jsonl", [right[0], {"task_id": "Mbpp/3", "solution": ONLY_BASE}, right[1], right[1]])
    result = run(tmp_path, "code", "--data", data, "--samples", samples, "--out", str(tmp_path / "out"))
    assert result["base"] == {"avg": 100.0, "pass@1": 100.0, "pass@2": 100.0}
    assert result["plus"] == {"avg": 75.0, "pass@1": 75.0, "pass@2": 100.0}
    written = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert [set(row) for row in written] == [{"task_id", "solution"}] * 4
    assert (tmp_path / "out" / "samples.jsonl").read_text() == Path(samples).read_text()


def test_tasks_without_a_sample_are_an_error_and_not_a_smaller_benchmark(tmp_path, write):
    data = write("data.jsonl", [DOUBLE, GREET])
    samples = write("samples.jsonl", [{"task_id": "Mbpp/3", "solution": ONLY_BASE}])
    with pytest.raises(SystemExit, match="no sample of 1 tasks"):
        run(tmp_path, "code", "--data", data, "--samples", samples, "--out", str(tmp_path / "out"))


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz"])
@pytest.mark.parametrize("form", ["as it is", "byte-order mark", "CRLF", "separators in a text"])
def test_samples_are_read_as_other_tools_write_them(tmp_path, write, capsys, form, name):
    """A byte-order mark made line 1 "no sample", a .gz a decoding error without the file's name."""
    right = DOUBLE["canonical_solution"] + ("# \u2028 \x85 é\n" if form.startswith("separators") else "")
    rows = [{"task_id": task, "solution": right} for task in ("Mbpp/3", "Mbpp/3", "Mbpp/99")]
    raw = "\n".join([*(json.dumps(row, ensure_ascii=False) for row in rows), "", ""]).encode()
    if form == "byte-order mark":
        raw = b"\xef\xbb\xbf" + raw
    if form == "CRLF":
        raw = raw.replace(b"\n", b"\r\n")
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    argv = ["--data", write("d.jsonl", [DOUBLE]), "--samples", str(tmp_path / name), "--out", str(tmp_path / "out")]
    result = run(tmp_path, "code", *argv)
    assert (result["plus"]["avg"], result["n"]) == (100.0, 2)
    assert "samples of 1 tasks that the data do not have (Mbpp/99 ...)" in capsys.readouterr().err


@pytest.mark.parametrize("line", [
    '{"task_id": "Mbpp/3", "completion": "x"}', "{", "[]", '"x"', "null", '{"task_id": "Mbpp/3", "solution": null}',
    '{"task_id": "Mbpp/3", "solution": ["def f(): pass"]}', '{"task_id": 3, "solution": "x"}',
    '{"task_id": "Mbpp/3"}', '{"task_id": ["Mbpp/3"], "solution": "x"}'])  # fmt: skip
def test_a_file_that_holds_no_samples_is_refused_by_name_and_line(tmp_path, write, line):
    (tmp_path / "samples.jsonl").write_text(json.dumps({"task_id": "Mbpp/3", "solution": ""}) + "\n" + line)
    argv = ["--data", write("data.jsonl", [DOUBLE]), "--samples", str(tmp_path / "samples.jsonl")]
    with pytest.raises(SystemExit, match="samples.jsonl, line 2: a sample has") as status:
        run(tmp_path, "code", *argv, "--out", str(tmp_path / "out"))
    assert ("completion, and call it solution" in str(status.value)) == ("completion" in line)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"


@pytest.mark.parametrize("flag", ["--data", "--samples"])
@pytest.mark.parametrize(("name", "raw", "words"), [
    ("f.jsonl.gz", gzip.compress(json.dumps(DOUBLE).encode() * 9)[:-20], "damaged or cut .*: fetch or write it again"),
    ("f.jsonl.gz", b"\x1f\x8b" + b"x" * 99, "damaged or cut"), ("f.jsonl.gz", b"{}", "damaged or cut"),
    ("f.jsonl", "é".encode("latin-1"), "damaged or cut"), ("f.jsonl", POINTER.encode(), "`git lfs pull`"),
    ("f.jsonl.gz", POINTER.encode(), "`git lfs pull`"), ("f.jsonl", b"[" * 99999, ", (record|line) 1: "),
])  # fmt: skip
def test_a_broken_file_is_one_line_that_names_it(tmp_path, write, flag, name, raw, words):
    """A cut .gz was a traceback, a pointer of git-LFS "line 1 column 1 (char 0)"."""
    (tmp_path / name).write_bytes(raw)
    given = {"--data": write("d.jsonl", [DOUBLE]), "--samples": write("s.jsonl", []), flag: str(tmp_path / name)}
    argv = [text for pair in given.items() for text in pair]
    with pytest.raises(SystemExit, match=f"eval.py: .*{name}.*{words}") as status:
        evaluation.main(["code", *argv, "--out", str(tmp_path / "out")])
    assert "\n" not in str(status.value)


@pytest.mark.parametrize(("batch", "again"), [(1, 2), (3, 3)])
def test_an_interrupted_run_goes_on_and_ends_as_an_uninterrupted_one(tmp_path, write, models, batch, again):
    tasks = [DOUBLE | {"task_id": f"Mbpp/{i}"} for i in (600, 601, 602)]
    argv = ["code", "--data", write("data.jsonl", tasks), "--model", "m", "-n", "2", "--batch", str(batch), "--out"]

    def reply(chat, seed):
        return f"```python\ndef double(x):\n    return {'2' if seed % 2 else '3'} * x  # {seed}\n```"

    models(reply)
    whole = run(tmp_path, *argv, str(tmp_path / "out"))
    records = (tmp_path / "out" / "tasks.jsonl").read_text()
    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "out", cut)
    (cut / "tasks.jsonl").write_text(records[: records.index("\n") + 40])  # in the middle of the second record
    seen = models(reply)
    evaluation.main([*argv, str(cut)])
    assert len(seen) == again  # a batch is sampled as a whole
    assert (cut / "tasks.jsonl").read_text() == records
    assert json.loads((cut / "results.json").read_text())["plus"] == whole["plus"]
    assert whole["plus"]["pass@1"] == 50.0
    with pytest.raises(SystemExit, match="other settings"):
        evaluation.main([*argv, str(cut), "--seed", "1"])


@pytest.mark.parametrize("which", ["samples.jsonl", "data.jsonl"])
def test_another_file_under_the_same_name_is_never_answered_from_the_old_journal(tmp_path, write, which):
    """Right programs got the figures of the wrong ones that the file had held before."""
    wrong = {"task_id": "Mbpp/3", "solution": "def double(x):\n    return None\n"}
    argv = ["--data", write("data.jsonl", [DOUBLE]), "--samples", write("samples.jsonl", [wrong])]
    argv = ["code", *argv, "--out", str(tmp_path / "out")]
    assert run(tmp_path, *argv)["plus"]["avg"] == run(tmp_path, *argv)["plus"]["avg"] == 0.0
    right = {"samples.jsonl": wrong | {"solution": DOUBLE["canonical_solution"]},
             "data.jsonl": DOUBLE | {"canonical_solution": wrong["solution"]}}
    write(which, [right[which]])
    with pytest.raises(SystemExit, match=f"contents of .*{which}.*give another --out, or remove the folder"):
        run(tmp_path, *argv)
    argv[-1] = str(tmp_path / "new" / "out")
    assert run(tmp_path / "new", *argv)["plus"]["avg"] == 100.0


@pytest.mark.parametrize("file", ["model-00001-of-00002.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("command", ["code --model", "tests --model", "best-of --tester t --coder",
                                     "best-of --coder c --tester"])
def test_other_weights_in_the_same_folder_are_never_answered_from_the_old_journal(
    tmp_path, write, models, command, file
):
    """The figures of a model that was trained on came from the model that had lain there before."""
    models(lambda chat, seed: "assert double(1) == 2")
    model = tmp_path / "model"
    model.mkdir()
    (model / file).write_bytes(b"one")
    argv = [*command.split(), str(model), "--data", write("data.jsonl", [DOUBLE]), "--out", str(tmp_path / "out")]
    run(tmp_path, *argv)
    (model / "notes.md").write_text("decides nothing")
    run(tmp_path, *argv)
    (model / file).write_bytes(b"two")
    with pytest.raises(SystemExit, match=f"contents of .*model/{file}"):
        run(tmp_path, *argv)


def test_a_command_that_failed_at_once_may_be_given_again_when_its_cause_is_gone(tmp_path, write, models):
    """A model's folder held pointers of git-LFS; behind `git lfs pull` the command was refused."""
    model, argv = tmp_path / "model", ["--data", write("d.jsonl", [DOUBLE]), "--out", str(tmp_path / "out")]
    argv = ["code", "--model", str(model), *argv]
    model.mkdir()
    (model / "config.json").write_text(POINTER)
    with pytest.raises(SystemExit, match="config.json is a git-LFS pointer"):
        evaluation.main(argv)
    (model / "config.json").write_text("{}")
    models(lambda chat, seed: DOUBLE["canonical_solution"])
    assert run(tmp_path, *argv)["plus"]["avg"] == 100.0


def test_a_program_that_sleeps_past_the_wall_limit_fails(tmp_path, write):
    slow = "import time\ndef double(x):\n    time.sleep(5 if x == 2 else 0)\n    return 2 * x\n"
    samples = write("s.jsonl", [{"task_id": "Mbpp/3", "solution": slow}])
    argv = ["--data", write("d.jsonl", [DOUBLE]), "--samples", samples, "--out", str(tmp_path / "out")]
    result = run(tmp_path, "code", *argv)
    assert (result["base"]["avg"], result["plus"]["avg"]) == (0.0, 0.0)


def test_greedy_programs_are_sampled_once(tmp_path, write, models):
    seen = models(lambda chat, seed: "def double(x):\n    return 2 * x\n")
    argv = ["--data", write("d.jsonl", [DOUBLE]), "--model", "m", "-n", "4", "--out", str(tmp_path / "out")]
    result = run(tmp_path, "code", *argv, "--greedy")
    assert (result["n"], result["plus"]) == (1, {"avg": 100.0, "pass@1": 100.0}) and len(seen) == 1


def test_a_file_of_scripts_alone_is_refused_with_what_to_use(tmp_path, write):
    """Their road to a verdict is gone: EvalPlus' own files give the same tests, base column included."""
    task = {"task_id": "HumanEval/900", "prompt": "def double(x):\n", "canonical_solution": "    return 2 * x\n",
            "entry_point": "double", "test": "def check(candidate):\n    for x in [1, 2]: assert candidate(x) == 2 * x"}
    argv = ["--data", write("d.jsonl", [task]), "--samples", "s.jsonl", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="HumanEvalPlus.jsonl.gz"):
        run(tmp_path, "code", *argv)


def test_humanevals_own_scripts_give_their_asserts(tmp_path, write, capsys):
    task = {"task_id": "HumanEval/900", "prompt": "def double(x):\n", "canonical_solution": "    return 2 * x\n",
            "entry_point": "double", "test": "def check(candidate):\n    assert candidate(2) == 4\n"
            "    assert candidate(2) > 3\n    assert True\n"}  # fmt: skip
    samples = write("s.jsonl", [{"task_id": "HumanEval/900", "solution": f"def double(x):\n    return {x}\n"}
                                for x in ("2 * x", "x + 1", "4")])
    argv = ["--data", write("d.jsonl", [task]), "--samples", samples, "--out", str(tmp_path / "out")]
    assert run(tmp_path, "code", *argv)["pass"]["avg"] == pytest.approx(200 / 3)
    assert "1 golden tests are of a form that is not understood" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--workers", "--batch", "--limit", "-n", "--max-new-tokens"])
@pytest.mark.parametrize("number", ["0", "-1"])
def test_numbers_below_one_are_refused_by_name(tmp_path, write, capsys, flag, number):
    """--limit 0 was a traceback, --workers 0 hung."""
    with pytest.raises(SystemExit) as status:
        evaluation.main(["code", "--data", write("d.jsonl", [DOUBLE]), "--model", "m", flag, number])
    assert status.value.code == 2 and f"{flag}: {number} is below 1" in capsys.readouterr().err


BIG = {"task_id": "BigCodeBench/900", "prompt": "import math\ndef task_func(x):\n    '''Root.'''\n",
       "prompt_wo_doc": "import math\ndef task_func(x):\n", "canonical_solution": "    return math.sqrt(x)\n",
       "entry_point": "task_func", "libs": ["math"],
       "test": "import unittest\nclass TestCases(unittest.TestCase):\n    def test_a(self):\n"
               "        self.assertEqual(task_func(4), 2)\n"}  # fmt: skip


def test_bigcodebench_samples_are_calibrated_and_missing_libraries_skip_a_task(tmp_path, write, models):
    other = BIG | {"task_id": "BigCodeBench/901", "libs": ["surely_not_installed"]}
    models(lambda chat, seed: ["```python\ndef task_func(x):\n    return math.sqrt(x)\n```", "No idea."][seed % 2])
    result = run(tmp_path, "code", "--data", write("d.jsonl", [BIG, other]), "--model", "m", "-n", "2", "--out",
                 str(tmp_path / "out"))
    assert (result["tasks"], result["skipped"], result["pass"]["avg"]) == (1, 1, 50.0)  # an empty body passes nothing
    sample = json.loads((tmp_path / "out" / "samples.jsonl").read_text().splitlines()[0])
    assert sample["solution"].startswith("import math\ndef task_func(x):\n\n    pass\ndef task_func(x):\n")


def test_a_bigcodebench_task_that_needs_what_the_sandbox_refuses_is_skipped(tmp_path, write, models):
    """No program can pass a task that starts a process: counted as failed, every model's score would be too low."""
    other = BIG | {"task_id": "BigCodeBench/902", "canonical_solution": "    return os.system('true')\n",
                   "prompt_wo_doc": "import os\ndef task_func(x):\n"}  # fmt: skip
    models(lambda chat, seed: "```python\ndef task_func(x):\n    return math.sqrt(x)\n```")
    argv = ["code", "--model", "m", "-n", "1", "--out", str(tmp_path / "out"), "--data"]
    result = run(tmp_path, *argv, write("d.jsonl", [BIG, other]))
    assert (result["tasks"], result["skipped"], result["pass"]["avg"]) == (1, 1, 100.0)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(SystemExit, match="no task is left"):
        evaluation.main([*argv, write("d.jsonl", [other])])


def test_tests_asks_in_rounds_and_counts_as_the_benchmark_does(tmp_path, write, models):
    function = {"func_name": "double", "code": "def double(x):\n    return 2 * x\n", "prompt": "Doubles x.",
                "task_id": "7", "test_list": []}  # fmt: skip
    again = function | {"task_id": "8"}
    rounds = {1: "assert double(0) == 0", 3: "assert double(3) == 6"}  # by the length of the chat
    seen = models(lambda chat, seed: rounds[len(chat)])
    argv = ["--data", write("d.jsonl", [function, again]), "--model", "m", "--asserts", "2"]
    result = run(tmp_path, "tests", *argv, "--out", str(tmp_path / "out"))
    assert [len(chat) for chat in seen] == 2 * [1, 1, 3, 3]  # again with a mutant in sight
    assert seen[2][1]["content"] == rounds[1]  # the earlier test is in sight
    assert (result["pass@1"], result["pass@2"], result["whole_suites"]) == (100.0, 100.0, 2)
    # 2 * x: eleven other operators, 3 * x, 1 * x. At 0 all of 0 * 2, 0 / 2, ... agree, at 3 they do not.
    assert result["mut@1"] < result["mut@2"] == 100.0
    assert result["mul"] == result["kill"] == 100.0
    record = json.loads((tmp_path / "out" / "tasks.jsonl").read_text().splitlines()[0])
    assert record["replies"] == list(rounds.values())


@pytest.mark.parametrize("flag", [[], ["--suite"], ["--black-box"]])
def test_tests_tells_a_tester_that_reads(tmp_path, write, models, flag):
    function = {"func_name": "double", "code": "def double(x):\n    return 2 * x\n", "prompt": "Doubles x.",
                "task_id": "7", "test_list": []}  # fmt: skip
    plain = function | {"task_id": "8", "code": "def double(x):\n    pass\n"}  # nothing to mutate
    seen = models(lambda chat, seed: "No idea." if "2 * x" in chat[0]["content"] else "assert double(3) == 6")
    argv = ["--data", write("d.jsonl", [function, plain]), "--model", "m", "--asserts", "1"]
    result = run(tmp_path, "tests", *argv, *flag, "--out", str(tmp_path / "out"))
    records = [json.loads(line) for line in (tmp_path / "out" / "tasks.jsonl").read_text().splitlines()]
    names = "attack_success", "sight"
    wanted = (1.0, 0.0) if flag == ["--black-box"] else (1.0, 1.0)
    assert [tuple(row[name] for name in names) for row in records] == [wanted, (None, None)]
    assert tuple(result[name] / 100 for name in names) == wanted and result["sight_stderr"] == 0.0
    assert len(seen) == (2 if flag == ["--black-box"] else 4)


def test_a_suite_with_a_wrong_assert_is_not_in_the_mutation_score(tmp_path, write, models):
    functions = [{"func_name": "double", "code": "def double(x):\n    return 2 * x\n", "prompt": p, "task_id": p,
                  "test_list": []} for p in ("good", "bad")]  # fmt: skip
    good, bad = "assert double(3) == 6\nassert double(0) == 0", "assert double(3) == 6\nassert double(0) == 1"
    models(lambda chat, seed: good if "good" in chat[0]["content"] else bad)
    argv = ["--data", write("d.jsonl", functions), "--model", "m", "--asserts", "2", "--out", str(tmp_path / "out")]
    result = run(tmp_path, "tests", *argv, "--suite", "--black-box")
    assert (result["asked"], result["black_box"], result["whole_suites"]) == ("at once", True, 1)
    assert (result["pass@2"], result["mut@2"], result["mul"]) == (75.0, 100.0, 75.0)
    assert result["kill"] == 100.0  # with the ground truth's values both suites kill


def values_of(*rows):
    return [[Value(True, out) for out in row] for row in rows]


def test_ties_go_to_the_largest_agreement_then_to_the_shortest():
    tests = extract_tests("assert f(1) == 1\nassert f(2) == 2", "f", 2)
    assert evaluation.pick_best(["aaa", "bb", "cc"], tests, values_of([1, 0], [0, 2], [1, 2])) == 2
    assert evaluation.pick_best(["a", "bbb", "ccc"], tests, values_of([1, 9], [0, 2], [0, 2])) == 1
    assert evaluation.pick_best(["aaaa", "bbb"], tests, values_of([1, 9], [0, 2])) == 1
    assert evaluation.pick_best(["aaaa", "bbb"], tests, values_of([1, 9], [0, 2]), cure=True) == 0
    assert evaluation.pick_best(["aaaa", "bbb"], [], [[], []]) == 1


OWN = {"id": "own", "prompt": "Double x.", "entry_point": "double",
       "reference": "def double(x):\n    return 2 * x\n", "tests": ["assert double(1) == 2"]}
ODD = ["assert double(1) != 3", "assert double(1) < 9", "assert double(1) in (2, 3)",
       "assert isinstance(double(1), int)"]


@pytest.mark.parametrize("hidden", [False, True])
def test_asserts_that_are_not_understood_fail_no_program(tmp_path, write, models, capsys, hidden):
    """One `!=` made every program fail its question: 0.0 for all models, and nothing was said."""

    def question(name, asserts):
        golden = {"golden": asserts, "mutants": [], "family": "f", "split": "heldout"}
        return OWN | {"id": name} | ({"hidden": golden} if hidden else {"tests": asserts})

    rows = [question("mixed", [*ODD, *OWN["tests"]]), question("odd", ODD)]
    models(lambda chat, seed: ["def double(x):\n    return 2 * x\n", "def double(x):\n    return x\n"][seed % 2])
    argv = ["--data", write("q.jsonl", rows), "--model", "m", "-n", "2", "--out", str(tmp_path / "out")]
    result = run(tmp_path, "code", *argv)
    assert (result["tasks"], result["skipped"], result["pass"]["avg"]) == (1, 1, 50.0)
    said = capsys.readouterr().err
    assert "8 golden tests are of a form that is not understood" in said
    assert "1 of 2 questions have no golden tests that are understood" in said
    with pytest.raises(SystemExit, match="no question with golden tests that are understood"):
        evaluation.main(["code", "--data", write("odd.jsonl", rows[1:]), *argv[2:]])


@pytest.mark.parametrize("command", ["code --model m", "best-of --coder c --tester t"])
def test_a_question_whose_reference_fails_its_own_asserts_is_skipped(tmp_path, write, models, capsys, command):
    """No right program passes a wrong assert: counted, it takes the same from every model."""
    models(lambda chat, seed: "def double(x):\n    return 2 * x\n")
    wrong = OWN | {"id": "wrong", "tests": ["assert double(1) == 3"]}
    argv = [*command.split(), "-n", "1", "--out", str(tmp_path / "out"), "--data"]
    result = run(tmp_path, *argv, write("q.jsonl", [wrong, OWN]))
    rates = result.get("pass", {}).get("avg") or result["pairs"]["c + t"]["first"]
    assert (result["tasks"], result["skipped"], rates) == (1, 1, 100.0)
    assert "1 of 2 tasks are skipped: their references fail" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(SystemExit, match="no task is left"):
        evaluation.main([*argv, write("w.jsonl", [wrong])])


def test_best_of_reports_every_pair(tmp_path, write, models):
    def reply(chat, seed):
        if "assert" in chat[0]["content"]:
            return "assert double(1) == 2\nassert double(-1) == -2\nassert double(-2) == -4"
        body = "return x + x if x > 0 else x" if seed % 2 == 0 else "return 2 * x"
        return f"```python\ndef double(x):\n    {body}\n```"

    models(reply)
    argv = ["--data", write("d.jsonl", [DOUBLE]), "--coder", "c1", "c2", "--tester", "t1", "t2", "-n", "2"]
    result = run(tmp_path, "best-of", *argv, "--out", str(tmp_path / "out"))
    assert set(result["pairs"]) == {"c1 + t1", "c1 + t2", "c2 + t1", "c2 + t2"}
    assert set(map(str, result["pairs"].values())) == {str({"first": 0.0, "best": 100.0, "oracle": 100.0})}


def test_exported_tests_carry_the_ground_truths_values(tmp_path, write, models):
    models(lambda chat, seed: "assert double(1) == 2\nassert double(2) == 5\nassert double(1) == 2\nassert double(x)")
    out = tmp_path / "out.jsonl"
    evaluation.main(["export-tests", "--data", write("d.jsonl", [DOUBLE]), "--tester", "t", "u", "--out", str(out)])
    (question,) = load_questions(str(out))
    assert question.tests == ("assert double(1) == 2", "assert double(2) == 4")


@pytest.mark.parametrize(("reply", "count"), [("I cannot.", 0), ("assert double(None) == 1", 1)])
def test_an_export_of_nothing_is_an_error_and_says_why(tmp_path, write, models, reply, count):
    """It wrote an empty file and ended with 0: the training that was to follow failed instead."""
    models(lambda chat, seed: reply)
    argv = ["export-tests", "--data", write("d.jsonl", [DOUBLE]), "--tester", "t", "--out"]
    with pytest.raises(SystemExit, match=f"replies to 1 questions hold {count} asserts"):
        evaluation.main([*argv, str(tmp_path / "out.jsonl")])
    assert not (tmp_path / "out.jsonl").exists()
    kept = write("kept.jsonl", [OWN])
    with pytest.raises(SystemExit, match="nothing to export"):
        evaluation.main([*argv, kept])
    assert len(load_questions(kept)) == 1


def test_commands_do_not_meet_in_one_folder(tmp_path, write, models, monkeypatch):
    """`tests` refused the folder of `code`, and `best-of` wrote over its results."""
    monkeypatch.chdir(tmp_path)
    models(lambda chat, seed: "assert double(1) == 2")
    write("s.jsonl", [{"task_id": "Mbpp/3", "solution": ONLY_BASE}])
    rest = ["--data", write("d.jsonl", [DOUBLE]), "--workers", "2"]
    commands = ["code --model m/a", "code --model n/a", "tests --model m/a", "best-of --coder m/a --tester m/a",
                "best-of --coder m/a --tester n/a", "code --samples s.jsonl"]
    for command in commands:
        evaluation.main([*command.split(), *rest])
    assert len(list((tmp_path / "runs/eval").glob("*/results.json"))) == len(commands)
    assert (tmp_path / "runs/eval/code-m-a/results.json").exists()
    old = (tmp_path / "runs/eval/code-m-a/results.json").read_text()
    for command in commands[2:4]:
        with pytest.raises(SystemExit, match="other settings .*command.* give another --out"):
            evaluation.main([*command.split(), *rest, "--out", "runs/eval/code-m-a"])
    assert (tmp_path / "runs/eval/code-m-a/results.json").read_text() == old


def test_where_exported_tests_go_is_settled_before_they_are_sampled(tmp_path, write, models, capsys):
    """Found out at the end, it costs all that was sampled."""
    asked = []
    models(lambda chat, seed: asked.append(chat) or "assert double(1) == 2")
    argv = ["export-tests", "--data", write("d.jsonl", [DOUBLE]), "--tester", "t"]
    for out in ([], ["--out", str(tmp_path)], ["--out", str(tmp_path / "d.jsonl" / "out.jsonl")]):
        with pytest.raises(SystemExit) as status:
            evaluation.main([*argv, *out])
        assert status.value.code and not asked
    assert "the following arguments are required: --out" in capsys.readouterr().err
    out = tmp_path / "new" / "folder" / "out.jsonl"
    evaluation.main([*argv, "--out", str(out)])
    assert load_questions(str(out))[0].tests == ("assert double(1) == 2",)


def test_the_embedded_models_are_asked_as_they_were_taught(tmp_path):
    """Asked as chat models are, they answer nothing: 0.0, and no word of --prompt-style."""
    tiny, argv = Path(evaluation.__file__).parent / "tiny", ["--limit", "4", "--max-new-tokens", "96"]
    argv += ["--data", str(tiny / "tune.jsonl.gz"), "--out", str(tmp_path / "out")]
    assert run(tmp_path, "code", "--model", str(tiny / "coder"), *argv)["pass"]["avg"] > 0
    shutil.rmtree(tmp_path / "out")
    assert run(tmp_path, "tests", "--suite", "--model", str(tiny / "tester"), *argv)["kill"] > 0
    Qwen2.from_pretrained(tiny / "coder").save_pretrained(tmp_path / "trained")
    assert evaluation.style_of(str(tmp_path / "trained"), Namespace(prompt_style=None)) == "plain"


@pytest.mark.parametrize("flag", [None, "--prompt-style", "--style"])
def test_the_prompt_style_is_the_flags_then_the_folders_own(tmp_path, write, models, flag):
    """codea1 calls the flag --prompt-style; a trained model carries its style along in its folder."""
    seen = models(lambda chat, seed: "assert double(1) == 2")
    (tmp_path / "generation_config.json").write_text('{"prompt_style": "plain"}')
    argv = ["tests", "--black-box", "--data", write("q.jsonl", [OWN]), "--out", str(tmp_path / "out"), "--asserts", "1"]
    run(tmp_path, *argv, "--model", str(tmp_path), *([flag, "instruct"] if flag else []))
    assert (seen[0][0]["content"] == "Double x.\ntest") == (flag is None)
    (tmp_path / "generation_config.json").write_text('{"prompt_style": "odd"}')
    with pytest.raises(SystemExit, match="prompt_style is 'odd', not one of plain, instruct"):
        evaluation.main([*argv[:-4], "--out", str(tmp_path / "new"), "--model", str(tmp_path)])


def test_help_tells_what_each_command_does(capsys):
    for argv in (["--help"], ["code", "--help"], ["tests", "--help"]):
        with pytest.raises(SystemExit):
            evaluation.main(argv)
    text = " ".join(capsys.readouterr().out.split())
    assert "eval.py best-of --coder BASE TRAINED" in text
    assert "its mean over those functions only whose asserts all hold" in text
