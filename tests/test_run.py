"""Whole runs of the command line on the embedded models, made small: files, baselines, resume, Ctrl-C, refusals."""

import dataclasses
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import codea1
import run as runs
from asserts import parse_assert
from run import Config, check_config, make_config, memory_bytes
from sandbox import Sandbox, Status
from tasks import Question, Test, load_questions, save_questions

ROOT = Path(codea1.__file__).parent
FIGURES = {"golden_t1", "golden_greedy", "suite_right", "assert_accuracy", "kill", "mul",
           "attack_success", "sight"}
SMALL = ["--steps", "4", "--batch-questions", "3", "--programs", "3", "--suites", "3", "--eval-samples", "1",
         "--save-every", "2", "--workers", "2", "--threads", "1"]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> list[str]:
    """Flags of a run of seconds: four steps, and two held-out questions to evaluate."""
    path = tmp_path_factory.mktemp("questions") / "held.jsonl"
    save_questions(path, load_questions(ROOT / "tiny/tune.jsonl.gz")[:2])
    return [*SMALL, "--final-questions", str(path), "--eval-questions", ""]


def rows(path: Path) -> list[dict]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def run(out: Path, flags: list[str], name: str = "run") -> Path:
    assert codea1.main([*flags, "--out", str(out), "--name", name]) == 0
    return out / name


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory) -> Path:
    """A run of four steps that nothing stopped."""
    return run(tmp_path_factory.mktemp("whole"), small)


def test_a_run_writes_every_file_and_every_logged_name_is_explained(whole):
    metrics, final = rows(whole / "metrics.jsonl"), json.loads((whole / "final.json").read_text())
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    named = set(re.findall(r"[a-z0-9_]+", "\n".join(
        text.split("|")[1] for text in (ROOT / "docs/metrics.md").read_text().splitlines() if text.startswith("| "))))
    assert set(metrics[0]) <= named
    assert FIGURES <= set(final["before"]) & set(final["after"]) & named
    assert set(metrics[0]["seconds"]) == {"programs", "suites", "execution", "update_coder", "update_tester", "total"}
    samples = rows(whole / "samples.jsonl")
    assert len(samples) == 4 * 3 and all(len(s["suites"]) == len(s["reward_tester"]) == 3 for s in samples)
    assert json.loads((whole / "config.json").read_text())["seed"] == 0


def test_checkpoints_open_in_transformers_with_the_same_logits(whole):
    transformers = pytest.importorskip("transformers")
    from model import Qwen2

    ids = torch.arange(5, 25)[None]
    for role in ("coder", "tester"):
        folder = whole / "checkpoints/step_000004" / role
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(folder)
        with torch.no_grad():
            torch.testing.assert_close(theirs(ids).logits, Qwen2.from_pretrained(folder)(ids), atol=1e-4, rtol=1e-4)


KILL_AT = """
import os, signal, sys
import torch
import codea1, grpo

def dies(function, call, after):
    count = 0
    def wrapped(*args, **kwargs):
        nonlocal count
        count += 1
        if count == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if count == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return wrapped

where = sys.argv.pop(1)
if where == "rollout":  # the suites of step 3 are being written
    codea1.sample_suites = dies(codea1.sample_suites, 3, False)
elif where == "update":  # step 3: the coder has learned, the tester not yet
    grpo.Policy.step = dies(grpo.Policy.step, 5, True)
else:  # the checkpoint of step 4 is half written
    torch.save = dies(torch.save, 3, True)
sys.exit(codea1.main(sys.argv[1:]))
"""


def same_run(a: Path, b: Path) -> None:
    """Metrics but for the times, samples, weights, moments and book are equal, bit for bit."""
    for one, two in zip(rows(a / "metrics.jsonl"), rows(b / "metrics.jsonl"), strict=True):
        for row in (one, two):
            row.pop("seconds"), row.pop("tokens_per_second")
        assert one == two
    assert rows(a / "samples.jsonl") == rows(b / "samples.jsonl")
    folders = [x / "checkpoints/step_000004" for x in (a, b)]
    assert (folders[0] / "book.json").read_text() == (folders[1] / "book.json").read_text()
    for role in ("coder", "tester"):
        weights = [(f / role / "model.safetensors").read_bytes() for f in folders]
        assert weights[0] == weights[1]
        states = [torch.load(f / f"{role}.pt", weights_only=True) for f in folders]
        flat = [torch.utils._pytree.tree_leaves(s) for s in states]
        assert all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
                   for x, y in zip(flat[0], flat[1], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["rollout", "update", "save"])
def test_two_steps_a_kill_and_two_more_are_four_steps(where, small, whole, tmp_path, capsys):
    done = subprocess.run([sys.executable, "-c", KILL_AT, where, *small, "--out", str(tmp_path), "--name", "run"],
                          cwd=ROOT, capture_output=True, timeout=400)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert codea1.main(["--resume", str(tmp_path / "run")]) == 0
    assert ("skipping the incomplete checkpoint" in capsys.readouterr().err) == (where == "save")
    same_run(whole, tmp_path / "run")


def test_the_same_seed_gives_the_same_run_with_another_number_of_sandbox_workers(small, whole, tmp_path):
    same_run(whole, run(tmp_path, [*small, "--workers", "1"]))


@pytest.mark.parametrize("flags", [
    ["--reward", "golden"], ["--self-play"], ["--self-play", "--black-box"], ["--black-box"], ["--no-book"],
    ["--alpha", "0"], ["--alpha", "1"], ["--wrong-answers", "drop"], ["--kl-coef", "0"], ["--topvar", "2"],
], ids=" ".join)
def test_every_baseline_runs(flags, small, tmp_path):
    path = run(tmp_path, [*small, "--steps", "2", *flags])
    metrics, last = rows(path / "metrics.jsonl"), path / "checkpoints/step_000002"
    alone = flags[0] in ("--reward", "--self-play")
    assert (last / "coder").is_dir() and (last / "tester").is_dir() != alone
    assert ("reward_tester" in metrics[0]) == (flags[0] != "--reward")
    if flags == ["--no-book"]:
        assert all(row["book_size"] == row["book_added"] == row["pass_hist"] == 0 for row in metrics)
    if flags == ["--kl-coef", "0"]:
        assert metrics[-1]["kl_coder"] == 0


def test_the_black_box_tester_is_not_shown_the_program(small, tmp_path, monkeypatch):
    shown = []
    real = codea1.tester_messages
    monkeypatch.setattr(codea1, "tester_messages", lambda *args: shown.append(args[1]) or real(*args))
    run(tmp_path / "a", [*small, "--steps", "1", "--black-box"])
    assert shown and not any(shown)
    shown.clear()
    run(tmp_path / "b", [*small, "--steps", "1"])
    assert any("def " in text for text in shown)


def test_ctrl_c_saves_and_says_how_to_go_on(small, tmp_path):
    flags = [*small, "--steps", "400", "--save-every", "0", "--out", str(tmp_path), "--name", "run"]
    child = subprocess.Popen([sys.executable, "codea1.py", *flags], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    log, end = tmp_path / "run/metrics.jsonl", time.monotonic() + 60
    while not (log.exists() and len(log.read_text().splitlines()) >= 2) and time.monotonic() < end:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and f"codea1 --resume {tmp_path / 'run'}" in err
    saved = runs.newest_checkpoint(tmp_path / "run")
    assert saved is not None and int(saved.name[-6:]) == len(rows(log)) >= 2


def test_a_second_ctrl_c_names_the_step_that_a_resumed_run_goes_on_from(small, whole, tmp_path, monkeypatch, capsys):
    """It named the last step that was done, which is not saved where the second stops the saving."""

    def asked_in_step_3(function):
        def wrapped(run, *rest):
            function(run, *rest)
            if 3 in (run.step, rest[0]):
                os.kill(os.getpid(), signal.SIGINT)
        return wrapped

    for place, name in ((runs.Run, "log"), (runs, "write_checkpoint")):
        monkeypatch.setattr(place, name, asked_in_step_3(getattr(place, name)))
    assert codea1.main([*small, "--out", str(tmp_path), "--name", "run"]) == 130
    assert f"stopped after step 2; go on with: codea1 --resume {tmp_path / 'run'}" in capsys.readouterr().err
    monkeypatch.undo()
    assert codea1.main(["--resume", str(tmp_path / "run")]) == 0
    assert "going on with" in (err := capsys.readouterr().err) and "after step 2" in err
    same_run(whole, tmp_path / "run")


BROKEN = {"raises": "raise ValueError", "wrong": "return 'wrong'", "no module": "import nothing_of_that_name"}


@pytest.mark.parametrize("how", BROKEN)
def test_references_that_fail_their_own_tests_are_refused(how, small, tmp_path, capsys):
    """A run on such a file had nothing but zeros for all of its steps, and ended with status 0."""
    good, file = load_questions(ROOT / "tiny/train.jsonl.gz")[:20], tmp_path / "q.jsonl"
    bad = []
    for q in good:
        body = f"def {q.entry_point}(*args):\n    {BROKEN[how]}\n"
        bad.append(replace(q, reference=body if how != "no module" else f"{BROKEN[how]}\n{q.reference}"))
    flags = [*small, "--steps", "1", "--preset", "tiny", "--questions", str(file), "--out", str(tmp_path / "out")]
    save_questions(file, bad)
    assert codea1.main(flags) == 2
    err = capsys.readouterr().err
    assert "7 of 7 references tried fail their own tests" in err and str(file) in err
    assert {"raises": "ValueError", "wrong": "'wrong'", "no module": "ModuleNotFoundError"}[how] in err
    assert os.listdir(tmp_path / "out") == []
    for n_bad, status in ((11, 2), (9, 0)):  # every third of the twenty is tried
        save_questions(file, [*bad[:n_bad], *good[n_bad:]])
        assert codea1.main(flags) == status
    assert os.listdir(tmp_path / "out") != []


def test_a_question_whose_tests_are_not_understood_speaks_against_no_file(tmp_path):
    bare = [replace(q, tests=("assert f() > 2",)) for q in load_questions(ROOT / "tiny/train.jsonl.gz")[:3]]
    with Sandbox(1) as box:
        assert runs.check_references(Config(), bare, box) is None
        assert runs.check_references(Config(), [replace(q, tests=()) for q in bare], box) is None


@pytest.mark.parametrize("flags, text", [
    (["--reward", "golden", "--coder-reply-limit", "1"], "programs are cut at --coder-reply-limit 1"),
    (["--prompt-style", "instruct", "--coder-prompt-limit", "999"], "--prompt-style instruct"),
    (["--tester-reply-limit", "2", "--programs", "2", "--temperature", "0.01"], "--tester-reply-limit 2"),
    (["--self-play", "--temperature", "0.01"], "no valid asserts"),
], ids=["programs cut", "style", "suites cut", "self-play"])
def test_a_run_that_cannot_learn_says_why(flags, text, small, tmp_path, capsys):
    """All rewards were equal in every step, and the run ended as if all were well."""
    run(tmp_path, [*small, "--final-questions", "", *flags])
    err = capsys.readouterr().err
    assert err.count("three steps without a difference in rewards") == 1 and text in err


def test_a_run_that_learns_says_nothing_of_it(small, tmp_path, capsys):
    run(tmp_path, [*small, "--final-questions", ""])
    assert "without a difference" not in capsys.readouterr().err


def test_a_terminal_that_is_closed_is_a_reason_to_save(small, tmp_path):
    """SIGHUP killed the run at once, and its steps were lost. A shell and the kernel both send it."""
    flags = [*small, "--steps", "400", "--save-every", "0", "--out", str(tmp_path), "--name", "run"]
    child = subprocess.Popen([sys.executable, "codea1.py", *flags], cwd=ROOT, stderr=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    for _ in range(2):
        child.stdout.readline()
    child.stdout.close()
    child.stderr.close()
    child.send_signal(signal.SIGHUP)
    time.sleep(0.02)
    child.send_signal(signal.SIGHUP)
    assert child.wait(60) == 130
    saved = runs.newest_checkpoint(tmp_path / "run")
    assert saved is not None and int(saved.name[-6:]) == len(rows(tmp_path / "run/metrics.jsonl")) >= 2


def test_a_run_under_nohup_goes_on_behind_a_closed_terminal(small, tmp_path):
    flags = [*small, "--steps", "3", "--out", str(tmp_path), "--name", "run", "--final-questions", ""]
    child = subprocess.Popen(["nohup", sys.executable, "codea1.py", *flags], cwd=ROOT, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child.stdout.readline()
    child.send_signal(signal.SIGHUP)
    child.communicate(timeout=60)
    assert child.returncode == 0 and len(rows(tmp_path / "run/metrics.jsonl")) == 3


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both", "from the start"])
def test_nobody_reads_what_is_printed_and_no_step_is_lost(closed, small, tmp_path):
    """`codea1 | head -1` ended with BrokenPipeError, without a checkpoint."""
    flags = [*small, "--steps", "2", "--out", str(tmp_path), "--name", "run"]
    command = [sys.executable, "codea1.py", *flags]
    if closed == "from the start":
        command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if closed in ("stdout", "both"):
        child.stdout.close()
    if closed in ("stderr", "both"):
        child.stderr.close()
    left = "" if child.stderr.closed else child.stderr.read()
    assert child.wait(100) == 0
    assert "Error" not in left and "ignored" not in left
    assert len(rows(tmp_path / "run/metrics.jsonl")) == 2 and (tmp_path / "run/final.json").exists()


def test_a_trainer_in_a_thread_trains(small, tmp_path):
    """`signal only works in main thread` ended the run before its first step."""
    before, ended = signal.getsignal(signal.SIGINT), []
    flags = [*small, "--steps", "1", "--out", str(tmp_path), "--name", "run"]
    thread = threading.Thread(target=lambda: ended.append(codea1.main(flags)))
    thread.start()
    thread.join()
    assert ended == [0] and len(rows(tmp_path / "run/metrics.jsonl")) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_two_runs_of_one_second_get_two_folders(small, tmp_path, capsys, monkeypatch):
    """They wrote into one folder, and both ended with exit status 0."""
    monkeypatch.setattr(runs.time, "strftime", lambda text: "tiny-1")
    flags = [*small, "--steps", "1", "--out", str(tmp_path)]
    _, lock = runs.new_folder(make_config({"out": str(tmp_path)}), named=False)
    with lock:
        assert os.listdir(tmp_path) == ["tiny-1"]
        assert codea1.main([*flags, "--name", "tiny-1"]) == 2
        assert "holds a run already" in capsys.readouterr().err
        assert codea1.main(flags) == 0
    assert os.listdir(tmp_path / "tiny-1") == ["lock"] and len(rows(tmp_path / "tiny-1-2/metrics.jsonl")) == 1
    assert codea1.main([*flags, "--name", "tiny-1"]) == 0  # what a crash while loading leaves is nobody's


@pytest.mark.parametrize("flags", [
    ["--batch-questions", "100000"], ["--warmup", "9"], ["--questions", "nothing.jsonl"], ["--tester", "nothing"]])
def test_a_run_that_is_refused_leaves_no_folder(flags, small, tmp_path):
    assert codea1.main([*small, *flags, "--preset", "tiny", "--out", str(tmp_path), "--name", "run"]) == 2
    assert os.listdir(tmp_path) == []


def test_a_run_in_use_is_not_resumed_by_a_second_one(whole, tmp_path, capsys):
    """Two processes wrote into its files. A lock that a kill leaves behind would be as bad."""
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    holds = f"import fcntl, time; f = open({str(path / 'lock')!r}, 'a'); fcntl.flock(f, 2); print('held', flush=True)"
    child = subprocess.Popen([sys.executable, "-c", holds + "; time.sleep(99)"], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"held\n"
    assert codea1.main(["--resume", str(path)]) == 2
    assert f"{path} is in use" in capsys.readouterr().err
    child.kill()
    child.communicate()
    assert codea1.main(["--resume", str(path)]) == 0


def test_a_folder_that_holds_a_run_is_not_written_over(small, whole, capsys):
    assert codea1.main([*small, "--out", str(whole.parent), "--name", whole.name]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_resumed_run_refuses_what_would_make_it_another_run(small, whole, tmp_path, capsys):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    assert codea1.main(["--resume", str(path), "--programs", "5"]) == 2
    assert "--programs was 3, now 5" in capsys.readouterr().err
    assert codea1.main(["--resume", str(path), "--coder", str(ROOT / "tiny/tester")]) == 2
    assert "do not hold the models" in capsys.readouterr().err
    config = json.loads((path / "config.json").read_text())
    changed = tmp_path / "changed.jsonl"
    save_questions(changed, load_questions(config["questions"])[:50])
    for edit, message in (({"questions": str(changed)}, "has changed since"),
                          ({"coder": config["tester"], "tester": config["coder"]}, "do not hold the models")):
        (path / "config.json").write_text(json.dumps({**config, **edit}))
        assert codea1.main(["--resume", str(path)]) == 2
        assert message in capsys.readouterr().err
    assert codea1.main(["--resume", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_run_goes_on_wherever_its_files_have_moved(small, tmp_path, monkeypatch, capsys):
    """Paths were kept as they were given, and compared: a run could not go on from another directory, nor behind
    a move, although its models and questions were the same."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "tiny/coder", "mdl")
    shutil.copy(ROOT / "tiny/train.jsonl.gz", "qq.jsonl.gz")
    shutil.copy(small[small.index("--final-questions") + 1], "held.jsonl")
    files = ["--preset", "tiny", "--coder", "mdl", "--tester", "", "--questions", "qq.jsonl.gz"]
    run(Path("rm"), [*small, "--steps", "2", *files, "--final-questions", "held.jsonl"], "a")
    monkeypatch.chdir("/")
    resume = ["--resume", str(tmp_path / "rm/a")]
    assert codea1.main(resume) == 0
    for name in ("mdl", "qq.jsonl.gz", "held.jsonl"):
        (tmp_path / name).rename(tmp_path / f"new-{name}")
    assert codea1.main(resume) == 2
    assert f"{tmp_path / 'mdl'} is not there: give the place where it is by --coder" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    moved = ["--coder", "new-mdl", "--questions", "new-qq.jsonl.gz", "--final-questions", "new-held.jsonl"]
    assert codea1.main([*resume, *moved]) == 0
    monkeypatch.chdir("/")
    assert codea1.main(resume) == 0  # where they are now is known


def test_what_a_tester_could_break_is_counted_beside_what_it_broke():
    """Its reward alone does not say whether a tester that breaks little is weak, or its coder good."""
    question = Question("q", "", "double", "def double(x):\n    return 2 * x\n", ())
    one, two, old = (Test(f"double({x})", str(2 * x)) for x in (1, 2, 3))
    p, f, t, n = Status.PASS, Status.FAIL, Status.TIMEOUT, Status.NOT_RUN
    slip = "def double(x):\n    return 2 * x if x != {} else 0\n"
    rows = [  # a program, the tests of its own two suites, what it did with these and with `old`
        (question.reference, [one], {one: p, old: p}),  # right: passes `two` as well
        (slip.format(1), [one, two], {one: f, two: p, old: p}),  # broken by its own
        (slip.format(2), [one], {one: p, old: p}),  # wrong, as another program's test shows
        (slip.format(3), [one, two], {one: p, two: p, old: t}),  # wrong by the book alone
        (slip.format(9), [two], {two: p, old: n}),  # wrong, but no test shows it
        ("def double(:", [one], {one: Status.ERROR, old: Status.ERROR}),  # does not load
    ]
    suites = []
    for _, tests, _ in rows:
        parts = tests[:1], tests[1:]
        suites.append([codea1.Suite(tuple(part), 0) for part in parts])
    loads, status = [True] * 5 + [False], [done for _, _, done in rows]
    e = codea1.Execution(suites, [old], [], loads, status)
    replies = codea1.Replies([], [], [], [program for program, _, _ in rows])
    with Sandbox(workers=1) as box:
        found = runs.wrong_metrics([question], [replies], [e], box)
        assert found == {"wrong_programs": 3 / 5, "broken_programs": 1 / 3}
        twice = runs.wrong_metrics([question] * 2, [replies] * 2, [e] * 2, box)
        assert twice == found  # shares of all programs of a step
        empty = codea1.Execution([[]], [], [], [True], [{}])
        alone = codea1.Replies([], [], [], [question.reference])
        assert set(runs.wrong_metrics([question], [alone], [empty], box).values()) == {0.0}


@pytest.mark.parametrize("name", ["questions", "eval_questions", "final_questions"])
@pytest.mark.parametrize("place", ["as it was", "moved"])
def test_a_file_with_other_contents_is_refused_on_resume(name, place, whole, small, tmp_path, capsys):
    """Another evaluation file was accepted: before and after were figures of different questions."""
    path, file = tmp_path / "run", tmp_path / "file.jsonl"
    shutil.copytree(whole, path)
    config = json.loads((path / "config.json").read_text())
    save_questions(file, load_questions(ROOT / "tiny/train.jsonl.gz")[:5])
    flags = ["--" + name.replace("_", "-"), str(file)]
    if place == "as it was":
        (path / "config.json").write_text(json.dumps({**config, name: str(file)}))
        flags = []
    assert codea1.main(["--resume", str(path), *flags]) == 2
    err = capsys.readouterr().err
    assert f"{file} has changed since {path} started" in err and "--" + name.replace("_", "-") in err


def damage(path: Path, name: str, how: str) -> None:
    """Damage a file of the fourth step's checkpoint."""
    file = path / "checkpoints/step_000004" / name
    data = file.read_bytes()
    half = len(data) // 2
    if how == "missing":
        return file.unlink()
    other = {
        "flipped": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
        "cut": data[:half],
        "of another step": (path / "checkpoints/step_000002" / name).read_bytes(),
    }[how]
    assert other != data
    file.write_bytes(other)


@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "of another step"])
@pytest.mark.parametrize("name", ["coder.pt", "tester.pt", "book.json", "manifest.json", "coder/model.safetensors",
                                  "tester/model.safetensors"])
def test_a_damaged_checkpoint_is_not_resumed(name, how, whole, tmp_path, capsys):
    """Files were known by their sizes alone: a flipped byte went into the run."""
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    assert runs.newest_checkpoint(path).name == "step_000004"
    damage(path, name, how)
    assert runs.newest_checkpoint(path).name == "step_000002"
    err = capsys.readouterr().err
    assert "skipping the incomplete checkpoint" in err and "step_000004: its " in err
    assert name == "manifest.json" or f"its {name} is" in err


@pytest.mark.parametrize("pair", [("coder.pt", "tester.pt"), ("coder/model.safetensors", "tester/model.safetensors")])
def test_exchanged_files_of_a_checkpoint_are_found(pair, whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    one, two = [path / "checkpoints/step_000004" / name for name in pair]
    data = one.read_bytes()
    assert data != two.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    assert runs.newest_checkpoint(path).name == "step_000002"


def test_a_run_with_a_damaged_checkpoint_goes_on_from_the_one_before(whole, tmp_path, capsys):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    damage(path, "tester.pt", "flipped")
    (path / "checkpoints/step_000001.part").mkdir()
    (path / "checkpoints/step_000003").mkdir()  # has no manifest
    assert codea1.main(["--resume", str(path)]) == 0
    assert "after step 2" in capsys.readouterr().err
    assert sorted(os.listdir(path / "checkpoints")) == ["step_000002", "step_000004"]  # nothing half-written stays
    same_run(whole, path)


def test_a_damaged_newer_checkpoint_does_not_cost_the_good_one(whole, tmp_path):
    """It was kept for its number, damaged as it was, and a good one went in its place."""
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    damage(path, "book.json", "cut")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "steps": 3, "warmup": 0}))
    assert codea1.main(["--resume", str(path), "--keep-checkpoints", "2"]) == 0
    assert {"step_000002", "step_000003"} <= set(os.listdir(path / "checkpoints"))


def test_a_full_disk_says_so_and_costs_no_checkpoint(small, tmp_path):
    """Here a file that may not grow. It ended with a traceback, and half a checkpoint took the last of the room."""
    flags = [*small, "--steps", "400", "--out", str(tmp_path), "--name", "run", "--final-questions", ""]
    child = subprocess.Popen([sys.executable, "codea1.py", *flags], cwd=ROOT, stderr=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, text=True)
    folder = tmp_path / "run/checkpoints/step_000002"
    while not folder.exists() and child.poll() is None:
        time.sleep(0.01)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    err = child.communicate(timeout=100)[1]
    saved = runs.newest_checkpoint(tmp_path / "run")
    assert child.returncode == 1 and saved is not None
    assert "cannot be written" in err and f"behind step {int(saved.name[-6:])} with: codea1 --resume" in err
    assert "Traceback" not in err and not list((tmp_path / "run/checkpoints").glob("*.part"))


def test_a_fault_on_the_way_loses_no_step(small, tmp_path, monkeypatch, capsys):
    """A run that died of an error, and not of Ctrl-C, lost everything since its last checkpoint."""
    real, steps = codea1.sample_suites, []

    def fails_in_the_third_step(*args):
        steps.append(1)
        if len(steps) == 3:
            raise MemoryError("out of memory")
        return real(*args)

    monkeypatch.setattr(codea1, "sample_suites", fails_in_the_third_step)
    with pytest.raises(MemoryError):
        run(tmp_path, [*small, "--save-every", "0"])
    assert runs.newest_checkpoint(tmp_path / "run").name == "step_000002"
    assert "stopped after step 2; go on with: codea1 --resume" in capsys.readouterr().err


@pytest.mark.parametrize("role, rate", [("coder", "inf"), ("tester", "inf"), ("tester", "1e30")])
def test_a_role_that_diverges_stops_the_run_and_is_never_saved(role, rate, whole, tmp_path, capsys):
    """It ended with `kl nan` and exit status 0; the broken weights were the newest checkpoint, and a resumed run
    failed in the same way. At 1e30 all weights are finite, but no logits."""
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    shutil.rmtree(path / "checkpoints/step_000004")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, f"{role}_lr": float(rate)}))
    assert codea1.main(["--resume", str(path), "--save-every", "1"]) == 1
    err = capsys.readouterr().err
    assert f"the {role} has diverged in step 3" in err and "go on behind step 2 with: codea1 --resume" in err
    assert os.listdir(path / "checkpoints") == ["step_000002"]
    assert "NaN" not in (path / "metrics.jsonl").read_text()


def test_flags_that_a_run_has_already_may_be_given_again_on_resume(whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    cfg = runs.resume_config(path, {"name": "run", "programs": 3, "device": "auto"})
    assert (cfg.out, cfg.name, cfg.programs, cfg.device != "auto") == (str(tmp_path), "run", 3, True)


def test_questions_without_golden_tests_are_not_evaluated_on(tmp_path, capsys):
    """The run stopped at its first evaluation, many steps later."""
    bare = [replace(q, tests=(), hidden=None) for q in load_questions(ROOT / "tiny/train.jsonl.gz")[:3]]
    full = load_questions(ROOT / "tiny/tune.jsonl.gz")[:2]
    save_questions(tmp_path / "mixed.jsonl", [*bare, *full])
    assert runs.evaluation_questions(str(tmp_path / "mixed.jsonl")) == full
    assert "3 of 5 questions have no golden tests" in capsys.readouterr().err
    odd = replace(full[0].hidden, golden=(*full[0].golden, f"assert {full[0].entry_point}([1]) != 2"))
    save_questions(tmp_path / "odd.jsonl", [replace(full[0], hidden=odd)])
    assert runs.evaluation_questions(str(tmp_path / "odd.jsonl")) == full[:1]
    assert "1 golden tests are of a form that is not understood" in capsys.readouterr().err
    save_questions(tmp_path / "bare.jsonl", bare)
    assert codea1.main([*SMALL, "--eval-questions", str(tmp_path / "bare.jsonl"), "--out", str(tmp_path)]) == 2
    assert "has no question with golden tests" in capsys.readouterr().err


def test_golden_reward_counts_no_test_that_nothing_can_pass(tmp_path, capsys):
    """A test of a form that is not understood was an error for every program, so that none could earn it all."""
    first, second, *_ = load_questions(ROOT / "tiny/train.jsonl.gz")
    odd = "assert " + first.entry_point + "([1]) > 2"
    save_questions(tmp_path / "q.jsonl", [replace(first, tests=(*first.tests, odd)), replace(second, tests=(odd,))])
    cfg = runs.make_config({"questions": str(tmp_path / "q.jsonl"), "preset": "tiny", "reward": "golden"})
    assert [q.tests for q in runs.usable_questions(cfg)] == [first.tests]
    assert "2 tests are of a form that is not understood" in capsys.readouterr().err


def test_an_incomplete_checkpoint_is_skipped_aloud(whole, tmp_path, capsys):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "checkpoints/step_000004/book.json").write_text("{")
    assert runs.newest_checkpoint(path).name == "step_000002"
    assert "skipping the incomplete checkpoint" in capsys.readouterr().err


def test_old_checkpoints_go_and_the_newest_stay(small, tmp_path):
    path = run(tmp_path, [*small, "--save-every", "1", "--keep-checkpoints", "2"])
    assert sorted(p.name for p in (path / "checkpoints").iterdir()) == ["step_000003", "step_000004"]


@pytest.mark.slow
def test_an_installed_wheel_runs_from_any_folder(small, tmp_path):
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    wheel = next(tmp_path.glob("codea1-*.whl"))
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)], check=True)
    elsewhere = tmp_path / "elsewhere"
    litter(elsewhere)
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, str(site / "bin/codea1"), "--steps", "1", "--batch-questions", "2",
                           "--eval-samples", "1", "--name", "run"],
                          cwd=elsewhere, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    config = json.loads((elsewhere / "runs/run/config.json").read_text())
    assert config["questions"].startswith(str(site)) and "golden_t1" in done.stdout
    argv = ["--model", site / "tiny/coder", "--data", site / "tiny/tune.jsonl.gz", "--limit", "4", "-n", "4"]
    done = subprocess.run([sys.executable, site / "bin/codea1-eval", "code", *argv, "--max-new-tokens", "96"],
                          cwd=elsewhere, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pass"]["avg"] > 0


def litter(folder):
    """A folder of a user's own files, with names that modules of this project have too."""
    folder.mkdir()
    for name in ("asserts", "benchmarks", "eval", "grpo", "jail", "mistake_book", "model", "run", "sandbox", "tasks"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('this is the {name} of another project')\n")


def test_files_of_the_same_names_in_the_working_folder_are_not_imported(tmp_path):
    """`python -m codea1` in a folder with an eval.py of one's own ran that one."""
    litter(tmp_path / "work")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = ["--steps", "1", "--batch-questions", "0"]  # refused once everything is imported
    done = subprocess.run([sys.executable, "-m", "codea1", *argv], cwd=tmp_path / "work", env=env,
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and "--batch-questions is 0" in done.stderr, done.stderr


# ---- settings ----


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
    ("coder_lr", float("nan")), ("alpha", 2.0), ("top_p", 0.0), ("temperature", 0.0), ("programs", 0),
    ("programs", 1), ("suites", 1)])
def test_a_setting_out_of_its_bounds_is_refused_by_name(name, value):
    """A timeout of 0 let every program fail, and a run went on for hours with nothing but zeros."""
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} is {value}"):
        check_config(Config(coder="C", questions="F", **{name: value}), 9688)


def test_golden_tests_need_no_suites_but_several_programs():
    """Advantages are taken inside a group: one of one reply has none, and a run of such steps trains nothing."""
    golden = Config(coder="C", questions="F", reward="golden", suites=1)
    assert check_config(golden, 9688).suites == 1
    with pytest.raises(ValueError, match="--programs is 1: it must be at least 2"):
        check_config(replace(golden, programs=1), 9688)


def test_golden_pass_new_counts_loading_programs_alone():
    """As the adversarial one does: a program that does not load says nothing about tests."""
    test = parse_assert("assert f(1) == 2")
    suites = [[codea1.Suite((test,), 0)]] * 2
    ran = codea1.Execution(suites, [], [], [True, False], [{test: Status.PASS}, {test: Status.ERROR}])
    assert runs.coder_metrics([codea1.score(ran, 8, 0.5)])["pass_new"] == 1.0


def test_the_book_is_a_dash_where_nothing_was_replayed():
    row = dict(step=1, reward_coder=0.5, pass_new=0.5, seconds={"total": 1.0}, reward_tester=0.5, pass_hist=0.0,
               r_val=0.5, r_adv=0.5, book_size=0, book_added=0, book_removed=0, kl_coder=0.0, kl_tester=0.0,
               loads_rate=1.0, truncated_coder=0.0, truncated_tester=0.0)
    assert "book -)" in runs.line(row, 4, False) and "book 0.00)" in runs.line(row, 4, True)


def test_every_number_among_the_settings_has_bounds():
    numbers = {f.name for f in dataclasses.fields(Config) if type(f.default) in (int, float)}
    bounded = {f.name for f in dataclasses.fields(Config) if f.metadata.get("least") is not None}
    assert bounded == numbers and len(numbers) > 30


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
    monkeypatch.setattr(runs.torch.cuda, "get_device_properties", lambda device: card)
    cfg = Config(coder=str(tmp_path), tester=str(tmp_path), questions="F", device="cuda", dtype="bfloat16", **flags)
    if refused is None:
        return runs.check_memory(cfg)
    with pytest.raises(ValueError, match=refused):
        runs.check_memory(cfg)


def test_steps_follow_from_the_epochs_and_drop_the_last_incomplete_batch():
    assert check_config(Config(coder="C", questions="F"), 9688).steps == 111


def test_every_setting_is_explained_by_help(capsys):
    with pytest.raises(SystemExit):
        codea1.main(["--help"])
    text = capsys.readouterr().out
    for name in Config.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in text


def test_unknown_and_abbreviated_flags_are_refused(capsys):
    for flag in ("--learning-rate=1", "--batch=4", "--steps=many"):
        with pytest.raises(SystemExit) as end:
            codea1.main([flag])
        lines = capsys.readouterr().err.splitlines()
        assert end.value.code == 2 and len(lines) == 2  # and not the whole usage
        assert flag.partition("=")[0] in lines[0] and "codea1 --help" in lines[1]


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as end:
        codea1.main(["--version"])
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert end.value.code == 0 and capsys.readouterr().out == f"codea1 {version}\n"


@pytest.mark.parametrize("flag", ["--coder", "--tester"])
def test_a_model_of_the_hub_is_told_how_to_become_a_folder(flag, small, tmp_path, capsys):
    flags = [*small, "--preset", "tiny", "--out", str(tmp_path), flag]
    assert codea1.main([*flags, "Qwen/Qwen2.5-Coder-1.5B"]) == 2
    err = capsys.readouterr().err
    download = "huggingface-cli download Qwen/Qwen2.5-Coder-1.5B --local-dir Qwen2.5-Coder-1.5B"
    assert f"{download}, then {flag} Qwen2.5-Coder-1.5B" in err and err.count("\n") == 1
    assert codea1.main([*flags, "/nowhere/at/all"]) == 2
    err = capsys.readouterr().err
    assert f"{flag} is '/nowhere/at/all': there is no such folder" in err and "huggingface" not in err


def test_memory_sum_by_hand():
    """1.5B twice with one reference in bfloat16: 2 x 18 + 2 bytes a parameter; offload: 18 + 2 + 2."""
    n = 1_543_714_304
    assert memory_bytes(n, n, 2, False, 1) == 38 * n
    assert memory_bytes(n, n, 2, True, 1) == 22 * n
    assert memory_bytes(n, 0, 2, False, 1) == 20 * n
