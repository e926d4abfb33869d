"""Evaluation: pass@k of a Code LLM, quality of a Test LLM, and their work together.

The paper's measures: pass@k and avg@n of programs, accuracy and mutation score of tests, best-of-N.
How a benchmark judges a program is in benchmarks.py. A suite is the asserts of one reply, None for
a malformed one. Rates are percentages; the mean of nothing is 0.

Run:  python eval.py --help
"""

import json
import math
import os
import re
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

import tasks as data
from asserts import holds, relabel, to_source
from benchmarks import (
    MAX_MUTANTS,
    Judge,
    Task,
    golden,
    load_judged,
    load_tasks,
    mutants_of,
    open_box,
    program_of,
)
from model import TOKENIZER_FILES, Qwen2, Tokenizer, file_digest, generate, read_json, read_text
from sandbox import Sandbox, SandboxError, Status, Value
from tasks import Hidden, Question, Test

# ---- numbers ----


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate, in [0, 1], of P(one of k samples is right) from c right ones among n:
    1 - C(n - c, k) / C(n, k) (Chen et al. 2021). ValueError unless 0 <= c <= n and 1 <= k <= n."""
    if not (0 <= c <= n and 1 <= k <= n):
        wanted = "0 <= c <= n and 1 <= k <= n"
        raise ValueError(f"pass@k needs {wanted}, got {n=}, {c=}, {k=}: draw at least k samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def percent(values: Iterable[float | None]) -> float:
    """100 times the mean of the values that are not None."""
    known = [value for value in values if value is not None]
    return 100 * sum(known) / len(known) if known else 0.0


@dataclass(frozen=True)
class Figure:
    """A percentage that is a mean over questions."""

    value: float
    stderr: float
    by_family: dict[str, float]


def figure(questions: Sequence[Question], values: Sequence[float | None]) -> Figure:
    """values: one per question, a share or a difference of two, None where there is none."""
    families = defaultdict(list)
    for question, value in zip(questions, values, strict=True):
        families[question.hidden.family if question.hidden else "all"].append(value)
    means = {family: percent(group) for family, group in sorted(families.items())}
    known = [value for value in values if value is not None]
    stderr = 100 * stdev(known) / math.sqrt(len(known)) if len(known) > 1 else 0.0
    return Figure(percent(values), stderr, means)


# ---- programs of a coder ----


def ask_model(
    model: Qwen2, tokenizer: Tokenizer, chats: Sequence[list[dict]], n: int, **sampling
) -> list[list[str]]:
    """n replies as text to each chat; `sampling` goes to `generate`."""
    prompts = [tokenizer.encode_chat(chat) for chat in chats]
    sampling |= {"eos_ids": tokenizer.eos_ids, "vocab_size": len(tokenizer)}
    groups = generate(model, prompts, n=n, **sampling)
    return [[tokenizer.decode(sample.ids) for sample in group] for group in groups]


def evaluate_coder(
    model: Qwen2, tokenizer: Tokenizer, questions: Sequence[Question], box: Sandbox, *,
    style: str, n: int, **sampling,
) -> Figure:
    """`golden` rate of n programs per question; `sampling`: temperature, top_p, max_new_tokens,
    seed."""
    chats = [data.coder_messages(question, style) for question in questions]
    texts = ask_model(model, tokenizer, chats, n, **sampling)
    pairs = []
    for question, group in zip(questions, texts, strict=True):
        pairs += [(question, data.make_solution(question, text)) for text in group]
    passed = iter(golden(pairs, box))
    return figure(questions, [percent(islice(passed, n)) / 100 for _ in questions])


# ---- suites of a tester ----


Suite = list[Test | None]


@dataclass(frozen=True)
class SuiteScore:
    """What the first K asserts of a suite are worth on a question's ground truth and mutants."""

    right: tuple[bool, ...]  # (K,) whether the assert holds as written
    kills: tuple[int, ...]  # (K,) mutants killed by the valid ones of the first 1, 2, ..., K
    timeouts: int  # of kills[-1], those that only ran out of time
    mutants: int  # that load; the others are broken and not counted

    @property
    def kill(self) -> float | None:
        return self.kills[-1] / self.mutants if self.mutants else None


class Checked(NamedTuple):
    """What the ground truth of a question says about tests."""

    holding: set[Test]  # those that hold as written
    valid: dict[Test, Test]  # those whose call gives a plain value -> the same with this value


def check_tests(
    questions: Sequence[Question], suites: Sequence[Sequence[Suite]], box: Sandbox
) -> list[Checked]:
    """What the ground truth says about suites[question][suite], for each question."""
    tests = [list(dict.fromkeys(filter(None, chain.from_iterable(group)))) for group in suites]
    programs = [(question.reference, question.entry_point) for question in questions]
    calls, known, found = defaultdict(list), {}, []  # equal ground truths start once
    for program, group in zip(programs, tests, strict=True):
        calls[program] += [test.call for test in group]
    answers = box.ground_truth((*program, own) for program, own in calls.items())
    for (program, own), truths in zip(calls.items(), answers, strict=True):
        known[program] = dict(zip(own, truths, strict=True))
    for program, group in zip(programs, tests, strict=True):
        checked = Checked(set(), {})
        for test in group:
            value = known[program][test.call].value
            if value.ok and holds(value.value, test):
                checked.holding.add(test)
            if value.ok and (relabelled := relabel(test, value.value)):
                checked.valid[test] = relabelled
        found.append(checked)
    return found


def score_suites(
    questions: Sequence[Question], suites: Sequence[Sequence[Suite]], k: int, box: Sandbox,
    limit: int | None = MAX_MUTANTS,
) -> list[list[SuiteScore]]:
    """Scores suites[question][suite]; the first k asserts of each count, each test once.

    A mutant is killed by a valid test that fails, raises or runs out of time on it. One suite per
    question: a mutant that crashes or hangs is not run further; several: the sandbox's rule for
    such programs, tests not run kill nothing.
    """
    checked = check_tests(questions, [[suite[:k] for suite in group] for group in suites], box)
    tests = [list(dict.fromkeys(one.valid.values())) for one in checked]
    places, jobs = [], []
    for i, question in enumerate(questions):
        for mutant in mutants_of(question, limit):
            places.append(i)
            jobs.append((mutant, question.entry_point, tests[i]))
    rules = {} if max(map(len, suites), default=0) > 1 else {"resumes": 0}
    killers: list[list[dict[Test, Status]]] = [[] for _ in questions]  # of each mutant that loads
    for i, verdict in zip(places, box.judge(jobs, **rules), strict=True):
        if verdict.loads:
            found = zip(tests[i], verdict.statuses, strict=True)
            killers[i].append({t: s for t, s in found if s not in (Status.PASS, Status.NOT_RUN)})
    scores = []
    for group, one, killing in zip(suites, checked, killers, strict=True):
        scores.append([score_suite(suite, k, one, killing) for suite in group])
    return scores


def score_suite(
    suite: Suite, k: int, checked: Checked, killers: list[dict[Test, Status]]
) -> SuiteScore:
    """killers: of each mutant the tests that kill it, and how."""
    suite = [*suite[:k], *[None] * (k - len(suite))]
    kills, reasons = [], defaultdict(set)  # mutant -> the ways in which it died
    for test in suite:
        for mutant, how in enumerate(killers):
            if checked.valid.get(test) in how:
                reasons[mutant].add(how[checked.valid[test]])
        kills.append(len(reasons))
    timeouts = sum(kinds == {Status.TIMEOUT} for kinds in reasons.values())
    right = tuple(test in checked.holding for test in suite)
    return SuiteScore(right, tuple(kills), timeouts, len(killers))


def tester_chats(
    questions: Sequence[Question], k: int, style: str, black_box: bool
) -> list[list[dict]]:
    """The chats that ask for k asserts each, the reference shown unless `black_box`."""
    chats = []
    for question in questions:
        shown = None if black_box else question.reference
        chats.append(data.tester_messages(question, shown, k, style))
    return chats


def few_mutants(question: Question, count: int) -> list[str]:
    """At most `count` of a question's mutants, from the middles of as many equal parts of them."""
    known = mutants_of(question)
    count = min(count, len(known))
    return [known[(2 * i + 1) * len(known) // (2 * count)] for i in range(count)]


class Aim(NamedTuple):
    """Shares of suites that break a mutant, of a question; None where no mutant loads."""

    attack_success: float | None  # of those that were written with this mutant in sight
    sight: float | None  # how much more than of those written with the reference in sight


def aim(
    questions: Sequence[Question], unaimed: Sequence[Sequence[Suite]], count: int, k: int,
    box: Sandbox, write: Callable[[list[Question]], list[list[Suite]]] | None,
) -> list[Aim]:
    """What it gives a tester to see the mutant that its suite is run on, for each question and at
    most `count` mutants of it.

    unaimed: suites written for the reference; write: writes as many for the programs that stand as
    references in its argument, or None if the tester sees no program.
    """
    mutants = [few_mutants(question, count) for question in questions]
    places, targets, suites = [], [], []
    for turn in range(max(map(len, mutants), default=0)):
        shown = []  # a question keeps its place, which decides the random numbers of its suites
        for question, own in zip(questions, mutants, strict=True):
            program = own[turn] if turn < len(own) else question.reference
            shown.append(replace(question, reference=program))
        for i, aimed in enumerate(write(shown) if write else unaimed):
            if turn < len(mutants[i]):
                places.append(i)
                hidden = Hidden((), (mutants[i][turn],), "", "")
                targets.append(replace(questions[i], hidden=hidden))
                # In turn: behind many crashes no test is run, whoever wrote it.
                suites.append(list(chain.from_iterable(zip(aimed, unaimed[i], strict=True))))
    kills: list[list[float]] = [[] for _ in questions]
    for i, group in zip(places, score_suites(targets, suites, k, box), strict=True):
        if group[0].mutants:  # it loads
            kills[i] += [score.kill for score in group]
    aims = []
    for own in kills:
        success, unseen = percent(own[::2]) / 100, percent(own[1::2]) / 100
        aims.append(Aim(success, success - unseen) if own else Aim(None, None))
    return aims


def evaluate_tester(
    model: Qwen2, tokenizer: Tokenizer, questions: Sequence[Question], box: Sandbox, *,
    style: str, suites: int, asserts: int, black_box: bool = False, **sampling,
) -> dict[str, Figure]:
    """Quality of `suites` sampled suites of `asserts` asserts per question; a question's value is
    the mean over its suites.

    suite_right: suites whose K asserts all hold as written. assert_accuracy: asserts that do, of K:
    a missing or malformed one fails. kill: mutants that a suite's valid tests kill, with the ground
    truth's values. mul: assert_accuracy * kill / 100.

    attack_success: suites written for a mutant that the tester is shown, of which a valid test
    fails on it. sight: the same less that of suites written for the reference, on the same mutants
    with the same random numbers; its error is that of the difference. At most 3 mutants of a
    question are shown, for suites / 4 suites each: with 16 suites, three quarters more to sample.
    With black_box nothing is shown: no more is sampled, sight is 0.
    """

    def write(shown: Sequence[Question], n: int) -> list[list[Suite]]:
        chats, groups = tester_chats(shown, asserts, style, black_box), []
        texts = ask_model(model, tokenizer, chats, n, **sampling)
        for question, group in zip(shown, texts, strict=True):
            entry = question.entry_point
            groups.append([data.extract_tests(text, entry, asserts) for text in group])
        return groups

    parsed, few = write(questions, suites), max(suites // 4, 1)
    whole, right, kills = [], [], []
    for group in score_suites(questions, parsed, asserts, box):
        whole.append(percent(all(s.right) for s in group) / 100)
        right.append(percent(ok for s in group for ok in s.right) / 100)
        kills.append(percent(s.kill for s in group) / 100 if group[0].mutants else None)
    accuracy, kill = figure(questions, right), figure(questions, kills)
    both = zip(right, kills, strict=True)
    # The error of a product: that of its linear part.
    linear = [b if b is None else (kill.value * a + accuracy.value * b) / 100 for a, b in both]
    families = {f: a * kill.by_family[f] / 100 for f, a in accuracy.by_family.items()}
    mul = Figure(accuracy.value * kill.value / 100, figure(questions, linear).stderr, families)
    again = None if black_box else partial(write, n=few)
    aims = aim(questions, [group[:few] for group in parsed], 3, asserts, box, again)
    return {
        "suite_right": figure(questions, whole), "assert_accuracy": accuracy, "kill": kill,
        "mul": mul, "attack_success": figure(questions, [one.attack_success for one in aims]),
        "sight": figure(questions, [one.sight for one in aims]),
    }


# ---- what the commands share ----


def digests(args: Namespace) -> dict[str, str]:
    """Of every file that a command's figures depend on: the data, the samples, the models'."""
    given = vars(args)
    models = [given.get("model"), *given.get("coder", []), *given.get("tester", [])]
    paths = [Path(given[name]) for name in ("data", "samples") if given.get(name)]
    for folder in map(Path, filter(None, models)):
        names = "config.json", "generation_config.json", *TOKENIZER_FILES
        paths += [folder / name for name in names if (folder / name).exists()]
        paths += sorted(folder.glob("*.safetensors*"))
    return {f"contents of {path}": file_digest(path) for path in paths}


def keep_settings(folder: Path, args: Namespace) -> None:
    """Write a folder's settings.json; ValueError names what is not as it was for its records."""
    if "digests" not in args:  # once a command: a model of 7B takes half a minute
        args.digests = digests(args)
    free = "run", "out", "workers", "device", "digests"  # no result depends on the first four
    settings = {name: value for name, value in vars(args).items() if name not in free}
    settings |= args.digests
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "settings.json"
    records = [*folder.glob("tasks.jsonl"), *folder.glob("*/tasks.jsonl")]
    begun = path.exists() and any(file.stat().st_size for file in records)
    known = read_json(path) if begun else settings
    names = [name for name in known | settings if known.get(name) != settings.get(name)]
    if names:
        raise ValueError(
            f"{folder} holds records of other settings ({', '.join(names)}): give another --out, "
            "or remove the folder"
        )
    path.write_text(json.dumps(settings, indent=2))


def journal(
    folder: Path, args: Namespace, tasks: Sequence[Task], batch: int,
    work: Callable[[int, Sequence[Task]], list[dict]], shown: Sequence[str],
) -> list[dict]:
    """A record for every task, one JSON line each: work(seed, tasks of a batch) makes them. Started
    again, a command goes on behind the last complete line, in the same batches: it ends with the
    records of an uninterrupted one."""
    keep_settings(folder, args)
    path = folder / "tasks.jsonl"
    text = path.read_text() if path.exists() else ""
    text = text[: text.rfind("\n") + 1]  # without a line that was cut
    path.write_text(text)
    try:
        rows = {row["task_id"]: row for row in map(json.loads, text.splitlines())}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error!r}): remove {folder}") from error
    bar = tqdm(range(0, len(tasks), batch), unit="batch", desc=folder.name, disable=None)
    for start in bar:
        part = tasks[start : start + batch]
        if any(task.question.id not in rows for task in part):
            made = work(start, part)
            with path.open("a") as file:
                for task, row in zip(part, made, strict=True):
                    if task.question.id not in rows:
                        row = rows[task.question.id] = {"task_id": task.question.id, **row}
                        file.write(json.dumps(row) + "\n")
        bar.set_postfix({name: f"{percent_of(rows.values(), name):.1f}" for name in shown})
    return [rows[task.question.id] for task in tasks]


def percent_of(rows: Iterable[dict], name: str) -> float:
    """Percent of what the records say under a name: one bool each, or a list of them."""
    values = [row[name] for row in rows]
    return percent(percent(v) / 100 if isinstance(v, list | tuple) else v for v in values)


def finish(args: Namespace, started: float, **result: Any) -> None:
    result["seconds"] = round(time.monotonic() - started, 1)  # of this start of the command
    (Path(args.out) / "results.json").write_text(json.dumps(result, indent=2))
    print(json.dumps(result, indent=2))


@lru_cache(maxsize=1)  # best-of has up to four models: one is in memory at a time
def load_model(path: str, device: str, dtype: str) -> tuple[Qwen2, Tokenizer]:
    model = Qwen2.from_pretrained(path, dtype=getattr(torch, dtype), device=device)
    return model, Tokenizer.from_pretrained(path)


def style_of(path: str | None, args: Namespace) -> str:
    """A model's prompts: --prompt-style, else what its generation_config.json says, else chats."""
    file = Path(path or "") / "generation_config.json"
    known = read_json(file) if file.exists() else {}
    style = args.prompt_style or known.get("prompt_style", "instruct")
    if style not in data.PROMPTS:
        raise ValueError(f"{file}: prompt_style is {style!r}, not one of {', '.join(data.PROMPTS)}")
    return style


def ask(path: str, args: Namespace, chats: list, n: int, seed: int) -> list[list[str]]:
    """`ask_model` for the model in a folder, with a command's flags."""
    if path is None:
        raise ValueError("give --model, or --samples")
    temperature = 0.0 if args.greedy else args.temperature
    return ask_model(
        *load_model(path, args.device, args.dtype), chats, n, seed=args.seed + seed,
        temperature=temperature, top_p=args.top_p, max_new_tokens=args.max_new_tokens,
    )


COMPLETION = ": put the prompt before the completion, and call it solution"


def read_samples(path: str, tasks: Sequence[Task]) -> dict[str, list[str]]:
    """Task id -> what a samples file has for it; ValueError if there is a task without any."""
    found = defaultdict(list)
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            name, program = row["task_id"], row["solution"]
        except (ValueError, KeyError, TypeError, RecursionError):
            name = program = None
        if type(name) is not str or type(program) is not str:
            hint = COMPLETION if '"completion"' in line else ""
            raise ValueError(
                f"{path}, line {number}: a sample has a task_id and a solution, both texts, not "
                f"{line.strip():.60}{hint}"
            )
        found[name].append(program)
    known = {task.question.id for task in tasks}
    if strange := [name for name in found if name not in known]:
        text = f"samples of {len(strange)} tasks that the data do not have ({strange[0]} ...)"
        print(f"{path}: {text} are not scored", file=sys.stderr)
    missing = [task.question.id for task in tasks if task.question.id not in found]
    if missing:
        text = f"{path} has no sample of {len(missing)} tasks ({missing[0]} ...)"
        raise ValueError(f"{text}: --limit cuts the data")
    return found


def ask_programs(
    model: str, tasks: Sequence[Task], judge: Judge, args: Namespace, folder: Path
) -> list[dict]:
    """Per task its programs under "solutions", for each column whether each passes, and "runs":
    False where the reference fails too: it is wrong, or needs what the sandbox refuses."""
    given = read_samples(args.samples, tasks) if getattr(args, "samples", None) else {}
    batch = max(args.batch, 64) if given else args.batch  # judged together: few wait at its end

    def write(seed: int, part: Sequence[Task]) -> list[list[str]]:
        if given:
            return [given[task.question.id] for task in part]
        style = style_of(model, args)
        chats = [data.coder_messages(task.question, style) for task in part]
        texts = ask(model, args, chats, 1 if args.greedy else args.n, seed)
        groups = zip(part, texts, strict=True)
        return [[program_of(task, text) for text in group] for task, group in groups]

    def work(seed: int, part: Sequence[Task]) -> list[dict]:
        groups, jobs, rows = write(seed, part), [], []
        # EvalPlus' references are not run: they define what is right.
        for task, group in zip(part, groups, strict=True):
            own = [] if task.kind == "plus" else [task.question.reference]
            jobs += [(task, program) for program in group + own]
        verdicts = iter(judge(jobs))
        for task, group in zip(part, groups, strict=True):
            found = list(islice(verdicts, len(group)))
            columns = {name: [verdict[name] for verdict in found] for name in judge.columns}
            runs = task.kind == "plus" or next(verdicts)["pass"]
            rows.append({"solutions": group, **columns, "runs": runs})
        return rows

    return journal(folder, args, tasks, batch, work, judge.columns)


ANOTHER = """\
Write another test for `{}`, different from the ones before, that reaches other statements and \
branches."""


def ask_suites(
    model: str, questions: Sequence[Question], args: Namespace, seed: int, at_once: bool = True
) -> list[tuple[Suite, list[str]]]:
    """Per question a suite of args.asserts asserts, and the replies that it was read from. All at
    once, as in training, or one a round, the earlier ones in sight, as in UnLeakedTestBench."""
    k = args.asserts if at_once else 1
    chats = tester_chats(questions, k, style_of(model, args), args.black_box)
    found: list[tuple[Suite, list[str]]] = [([], []) for _ in questions]
    for turn in range(args.asserts // k):
        texts = ask(model, args, chats, 1, seed * args.asserts + turn)
        rows = zip(questions, chats, found, texts, strict=True)
        for question, chat, (suite, said), (text,) in rows:
            said.append(text)
            suite += data.extract_tests(text, question.entry_point, k) or [None]
            chat.append({"role": "assistant", "content": text})
            chat.append({"role": "user", "content": ANOTHER.format(question.entry_point)})
    return found


def sound(tasks: Sequence[Task], rows: list[dict]) -> tuple[list[Task], list[dict], int]:
    """The tasks whose reference passes, their records, and the number of the others; aloud."""
    kept = [task for task, row in zip(tasks, rows, strict=True) if row["runs"]]
    failing = len(tasks) - len(kept)
    if not kept:
        raise ValueError("no task is left: the references of all fail their own tests here")
    if failing:
        text = f"{failing} of {len(tasks)} tasks are skipped: their references fail here"
        print(text, file=sys.stderr)
    return kept, [row for row in rows if row["runs"]], failing


# ---- commands ----


def run_code(args: Namespace) -> None:
    """avg@n and pass@k of a coder's programs, sampled or taken from --samples.

    Writes OUT/samples.jsonl, which evalplus.evaluate reads; OUT/tasks.jsonl with the verdicts;
    OUT/results.json. Tasks whose libraries are not installed, whose reference fails here, or which
    have no assert that is understood, are skipped and counted.
    """
    started = time.monotonic()
    tasks, skipped = load_judged(args.data, args.limit)
    with open_box(tasks[0].kind, args.workers) as box:
        judge = Judge(tasks, box)
        rows = ask_programs(args.model, tasks, judge, args, Path(args.out))
    with open(Path(args.out) / "samples.jsonl", "w") as file:
        for row in rows:
            for text in row["solutions"]:
                file.write(json.dumps({"task_id": row["task_id"], "solution": text}) + "\n")
    tasks, rows, failing = sound(tasks, rows)
    n = min(len(row["solutions"]) for row in rows)
    scores = {column: {"avg": percent_of(rows, column)} for column in judge.columns}
    for column, score in scores.items():
        passed = [row[column] for row in rows]
        for k in range(1, n + 1):
            score[f"pass@{k}"] = percent(pass_at_k(len(v), sum(v), k) for v in passed)
    finish(args, started, tasks=len(tasks), skipped=skipped + failing, n=n, **scores)


def run_tests(args: Namespace) -> None:
    """pass@k, mut@k and Mul of a tester's suites on functions with ground truth.

    As UnLeakedTestBench counts: pass@k is the share of the first k asserts that hold as written;
    mut@k is the share of mutants that the first k asserts kill, its mean over those functions only
    whose asserts all hold; Mul = pass@K mut@K / 100. "kill" is ours: over all functions, by the
    valid asserts with the ground truth's values; so are "attack_success" and "sight", for which one
    more suite is written for each function, a mutant of it shown (see `evaluate_tester`).
    """
    started, tasks = time.monotonic(), load_tasks(args.data, args.limit)
    with Sandbox(args.workers) as box:

        def work(seed: int, part: list[Task]) -> list[dict]:
            questions = [task.question for task in part]
            asked = ask_suites(args.model, questions, args, seed, args.suite)
            suites = [[suite] for suite, _ in asked]

            def write(shown: list[Question]) -> list[list[Suite]]:
                aimed = ask_suites(args.model, shown, args, seed, args.suite)
                return [[suite] for suite, _ in aimed]

            scores = score_suites(questions, suites, args.asserts, box, limit=None)
            again = None if args.black_box else write
            aims = aim(questions, suites, 1, args.asserts, box, again)
            rows = []
            for (suite, said), (score,), own in zip(asked, scores, aims, strict=True):
                row = {**asdict(score), "kill": score.kill, **own._asdict(), "replies": said}
                rows.append(row | {"asserts": [test and test.source for test in suite]})
            return rows

        rows = journal(Path(args.out), args, tasks, args.batch, work, ("right", "kill"))
    whole = [row for row in rows if all(row["right"])]
    sight = figure([task.question for task in tasks], [row["sight"] for row in rows])
    result = {
        "functions": len(rows),
        "asked": "at once" if args.suite else "in rounds",
        "black_box": args.black_box,
        "whole_suites": len(whole),
        "mutants": sum(row["mutants"] for row in rows),
        "killed_by_timeout": sum(row["timeouts"] for row in rows),
        "kill": percent_of(rows, "kill"),
        "attack_success": percent_of(rows, "attack_success"),
        "sight": sight.value,
        "sight_stderr": sight.stderr,
    }
    for k in range(1, args.asserts + 1):
        result[f"pass@{k}"] = percent(right for row in rows for right in row["right"][:k])
        killed = [row["kills"][k - 1] / row["mutants"] for row in whole if row["mutants"]]
        result[f"mut@{k}"] = percent(killed)
    result["mul"] = result[f"pass@{k}"] * result[f"mut@{k}"] / 100
    finish(args, started, **result)


def source(value: Any) -> str:
    try:
        return to_source(value)
    except ValueError:  # too long for it
        return repr(value)


def pick_best(
    programs: Sequence[str], tests: Sequence[Test], values: Sequence[Sequence[Value]],
    cure: bool = False,
) -> int:
    """Index of the program that passes most of the pooled tests.

    Ties: the largest group of programs that return the same on every call, then the shortest, then
    the first. `cure` is CURE's rule (Wang et al. 2025): the first with the most passes.
    """
    scores = []
    for row in values:
        scores.append(sum(v.ok and holds(v.value, t) for v, t in zip(row, tests, strict=True)))
    if cure:
        return scores.index(max(scores))
    outputs = [tuple(source(v.value) if v.ok else v.error for v in row) for row in values]
    agreeing = map(outputs.count, outputs)
    keys = list(zip(scores, agreeing, [-len(program) for program in programs], strict=True))
    return keys.index(max(keys))


def run_best_of(args: Namespace) -> None:
    """A tester's tests choose among a coder's n programs, without ground truth.

    The tester writes a suite for each program; the distinct tests of all suites are the pool.
    Reports the first sample, the chosen one and the oracle (pass@n), for every pair of a coder and
    a tester.
    """
    started, (tasks, skipped) = time.monotonic(), load_judged(args.data, args.limit)
    keep_settings(Path(args.out), args)
    pairs, names = {}, ("first", "best", "oracle")
    with open_box(tasks[0].kind, args.workers) as box:
        judge = Judge(tasks, box)
        for i, coder in enumerate(args.coder):
            rows = ask_programs(coder, tasks, judge, args, Path(args.out) / f"coder{i}")
            left, rows, failing = sound(tasks, rows)
            programs = {row["task_id"]: row for row in rows}
            for j, tester in enumerate(args.tester):
                work = partial(pick_programs, args, box, programs, judge.columns[-1], tester)
                folder = Path(args.out) / f"pair{i}{j}"
                found = journal(folder, args, left, args.batch, work, names)
                pairs[f"{coder} + {tester}"] = {name: percent_of(found, name) for name in names}
    rule = "cure" if args.cure else "agreement"
    skipped += failing
    finish(args, started, tasks=len(left), skipped=skipped, n=args.n, rule=rule, pairs=pairs)


def pick_programs(
    args: Namespace, box: Sandbox, judged: dict[str, dict], column: str, tester: str, seed: int,
    part: Sequence[Task],
) -> list[dict]:
    """For each task whether the first program passes, the one that the tester's tests pick, any."""
    rows = [judged[task.question.id] for task in part]
    shown = []
    for task, row in zip(part, rows, strict=True):
        shown += [replace(task.question, reference=program) for program in row["solutions"]]
    suites = iter(ask_suites(tester, shown, args, seed))
    results = []
    for row in rows:
        programs, passed = row["solutions"], row[column]
        own = islice(suites, len(programs))
        pool = list(dict.fromkeys(test for suite, _ in own for test in suite if test))
        calls = [test.call for test in pool]
        values = box.values([(program, calls) for program in programs])
        best = passed[pick_best(programs, pool, values, args.cure)]
        found = {"first": passed[0], "best": best, "oracle": any(passed), "tests": len(pool)}
        results.append(found)
    return results


def run_export(args: Namespace) -> None:
    """A questions file whose tests were written by a tester, for training with static tests.

    Each tester writes one suite per question; the valid asserts, with the ground truth's values,
    become the question's tests. Questions without a valid one are left out.
    """
    questions, kept = [task.question for task in load_tasks(args.data, args.limit)], []
    written = 0
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    open(args.out, "ab").close()  # one that cannot be written is an error now, not after hours
    with Sandbox(args.workers) as box:
        for start in tqdm(range(0, len(questions), args.batch), unit="batch", disable=None):
            part = questions[start : start + args.batch]
            asked = [ask_suites(tester, part, args, start) for tester in args.tester]
            suites = [[suite for suite, _ in group] for group in zip(*asked, strict=True)]
            written += sum(len(list(filter(None, suite))) for group in suites for suite in group)
            for question, checked in zip(part, check_tests(part, suites, box), strict=True):
                tests = tuple(dict.fromkeys(test.source for test in checked.valid.values()))
                kept += [replace(question, tests=tests)] if tests else []
    if not kept:
        if not os.path.getsize(args.out):
            os.remove(args.out)
        raise ValueError(
            f"nothing to export to {args.out}: the replies to {len(questions)} questions hold "
            f"{written} asserts that are understood, and the ground truth has a value for none; "
            "check the model and --prompt-style"
        )
    data.save_questions(args.out, kept)
    count = sum(len(question.tests) for question in kept)
    print(f"{count} tests of {len(kept)} of {len(questions)} questions in {args.out}")


# ---- command line ----

HELP = """Score coders, testers, and both together.

  eval.py code --model DIR --data MbppPlus.jsonl.gz -n 32               the paper's avg@32
  eval.py code --samples samples.jsonl --data HumanEvalPlus.jsonl.gz    samples from elsewhere
  eval.py tests --model DIR --data ULT_Lite.json --greedy               pass@5, mut@5, Mul
  eval.py best-of --coder BASE TRAINED --tester BASE TRAINED --data HumanEvalPlus.jsonl.gz
  eval.py export-tests --tester DIR --data questions.jsonl --out with_tests.jsonl

DIR: a model in Hugging Face layout. --data: EvalPlus' files, HumanEval, UnLeakedTestBench,
BigCodeBench, or questions of this project. `eval.py COMMAND --help` lists a command's options.
Where this is installed, eval.py is the command codea1-eval.
"""


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"{number} is below 1")
    return number


COMMON = {
    "--data": dict(required=True, help="questions: .jsonl, .jsonl.gz or .json"),
    "--limit": dict(type=positive, help="only the first so many tasks"),
    "--workers": dict(type=positive, help="sandbox processes (default: one per core)"),
    "--prompt-style --style": dict(
        choices=list(data.PROMPTS), help="default: what the model's folder says, else instruct"
    ),
    "--temperature": dict(type=float, default=0.7, help="default 0.7"),
    "--top-p": dict(type=float, default=0.95, help="default 0.95"),
    "--greedy": dict(action="store_true", help="temperature 0"),
    "--max-new-tokens": dict(type=positive, default=1024, help="limit of a reply (default 1024)"),
    "--seed": dict(type=int, default=0, help="default 0"),
    "--batch": dict(type=positive, default=8, help="tasks sampled together (default 8)"),
    "--device": dict(default="cuda" if torch.cuda.is_available() else "cpu"),
    "--dtype": dict(default="float32", choices=["float32", "bfloat16"]),
}
OWN = {
    "--out": dict(help="folder; an unfinished run in it is gone on with (default: runs/eval/...)"),
    "--out FILE": dict(required=True, help="the questions file to be written: .jsonl, .jsonl.gz"),
    "--asserts": dict(type=positive, default=5, help="k, the asserts of a suite (default 5)"),
    "--black-box": dict(action="store_true", help="hide the function under test"),
    "--suite": dict(action="store_true", help="ask for the k asserts at once, not one a round"),
    "--model": dict(help="the coder, or the tester"),
    "--samples": dict(help="score this file of {task_id, solution} instead of sampling"),
    "-n": dict(type=positive, default=8, help="programs per task (default 8)"),
    "--coder": dict(nargs="+", required=True, help="one or more models"),
    "--tester": dict(nargs="+", required=True, help="one or more models"),
    "--cure": dict(action="store_true", help="CURE's rule: the first with the most passes"),
}
COMMANDS = {
    "code": (run_code, ["--out", "--model", "--samples", "-n"]),
    "tests": (run_tests, ["--out", "--asserts", "--black-box", "--suite", "--model"]),
    "best-of": (run_best_of,
                ["--out", "--asserts", "--black-box", "--coder", "--tester", "-n", "--cure"]),
    "export-tests": (run_export, ["--out FILE", "--asserts", "--black-box", "--tester"]),
}


def default_out(args: Namespace) -> str:
    """A folder for each command and what it scores: runs/eval/best-of-models-coder-models-tester"""
    given = vars(args)
    scored = given.get("samples") or given.get("model") or ""
    paths = [scored, *given.get("coder", []), *given.get("tester", [])]
    names = [re.sub(r"[^\w.]+", "-", os.path.normpath(path)).strip("-.") for path in paths if path]
    return f"runs/eval/{'-'.join([args.command, *names])[:200]}"


def main(argv: Sequence[str] | None = None) -> None:
    raw = RawDescriptionHelpFormatter
    parser = ArgumentParser(prog="eval.py", description=HELP, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, (run, own) in COMMANDS.items():
        about = run.__doc__.split("\n\n")[0]
        sub = commands.add_parser(name, help=about, description=run.__doc__)
        for option, how in (COMMON | {option: OWN[option] for option in own}).items():
            sub.add_argument(*option.removesuffix(" FILE").split(), **how)
        sub.set_defaults(run=run)
    args = parser.parse_args(argv)
    args.out = args.out or default_out(args)
    try:
        args.run(args)
    except (ValueError, OSError, SandboxError) as error:
        sys.exit(f"eval.py: {error}")


if __name__ == "__main__":
    main()
