"""Code-A1: a Code LLM and a Test LLM train against each other (arXiv 2603.15611), the algorithm.

    codea1                                            two small embedded models, minutes on a laptop
    codea1 --coder DIR --tester DIR --questions FILE  Hugging Face checkpoints, the paper's settings
    codea1 --resume runs/NAME                         go on after Ctrl-C, a crash or a kill

`train`, at the end, has one call for each step of the paper:

    1   the Code LLM writes M programs per question
    2   the Test LLM sees question and program, and writes N suites of K asserts to break it
    3   the Mistake Book returns tests that programs failed before
    4   the ground truth confirms the asserts (validate)
    5   every program runs its own suites and the replayed tests (execute)
    6   both players are rewarded (score)
    7   the book takes what failed, and loses what was passed (update_book)
    8   only the program whose suites differ most trains the Test LLM (topvar)
    9   advantages are taken inside each group of replies to one prompt (make_group)
    10  both policies take GRPO steps (update_players)

Kept of the paper: all of this. Where its figure and its released code differ, and what is done
here, is a table in README.md. Settings, files, resume and logs are in run.py.
Letters: Q questions in a batch, M programs per question, N suites per program, K asserts per suite.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from tqdm import tqdm

if __name__ == "__main__":  # `python -m codea1` looks into the working folder first
    sys.path[0] = os.path.dirname(os.path.abspath(__file__))

import run
from asserts import Test, holds, parse_assert, relabel
from grpo import Group, UpdateStats, group_advantages
from mistake_book import MistakeBook
from model import Sample, stream
from run import Config, Player, Run, Stopwatch
from sandbox import Sandbox, Status, Truth
from tasks import Question, coder_messages, extract_tests, make_solution, tester_messages

FAILED = (Status.FAIL, Status.ERROR, Status.TIMEOUT)  # a test that never ran is not among them


# ---- 1 and 2: what the models write ----


@dataclass(frozen=True)
class Replies:
    """Replies to one prompt; none where it was over its limit."""

    prompt: list[int]  # token ids
    samples: list[Sample]
    texts: list[str]
    programs: list[str]  # the coder's: made from its texts, "" where there is none


def sample(
    player: Player, prompts: list[list[int]], n: int, limit: int, cfg: Config, step: int, role: int
) -> Iterator[tuple[int, list[Sample]]]:
    """(prompt number, n samples) of every prompt, as soon as they are there."""
    # A resumed run needs no generator's state.
    seed = np.random.SeedSequence((cfg.seed, step, role)).generate_state(1, np.uint64)[0]
    found = stream(
        player.policy.model, prompts, n, limit, cfg.temperature, cfg.top_p,
        eos_ids=player.tokenizer.eos_ids, vocab_size=len(player.tokenizer), seed=int(seed >> 1),
        cuda_graphs=cfg.cuda_graphs and cfg.device != "cpu")
    label = ("programs", "suites")[role]
    return tqdm(found, label, len(prompts), unit="prompt", leave=False, disable=None)


def sample_programs(coder: Player, batch: list[Question], cfg: Config, step: int) -> list[Replies]:
    """Step 1: M programs for each of the Q questions."""
    chats = [coder_messages(question, cfg.prompt_style) for question in batch]
    prompts = [coder.tokenizer.encode_chat(chat) for chat in chats]
    found = dict(sample(coder, prompts, cfg.programs, cfg.coder_reply_limit, cfg, step, 0))
    replies = []
    for q, question in enumerate(batch):
        texts = [coder.tokenizer.decode(one.ids) for one in found[q]]
        programs = [make_solution(question, text) for text in texts]
        replies.append(Replies(prompts[q], found[q], texts, programs))
    return replies


def sample_suites(
    tester: Player, batch: list[Question], programs: list[Replies], cfg: Config, step: int
) -> Iterator[tuple[int, list[Replies]]]:
    """Step 2: (question number, N suites for each of its M programs), a question as soon as it is
    whole. White-box: the prompt shows the program. A prompt over its limit is not cut: that program
    gets no suites. On golden tests nobody writes any.
    """
    rows = [[Replies([], [], [], []) for _ in written.texts] for written in programs]
    if cfg.golden:
        yield from enumerate(rows)
        return
    places, prompts = [], []
    for q, question in enumerate(batch):
        for m, program in enumerate(programs[q].programs):
            shown = None if cfg.black_box else program or programs[q].texts[m]
            chat = tester_messages(question, shown, cfg.asserts, cfg.prompt_style)
            prompt = tester.tokenizer.encode_chat(chat)
            if len(prompt) <= cfg.tester_prompt_limit:
                places.append((q, m))
                prompts.append(prompt)
    waiting = Counter(q for q, _ in places)
    yield from ((q, row) for q, row in enumerate(rows) if q not in waiting)
    for i, samples in sample(tester, prompts, cfg.suites, cfg.tester_reply_limit, cfg, step, 1):
        q, m = places[i]
        texts = [tester.tokenizer.decode(one.ids) for one in samples]
        rows[q][m] = Replies(prompts[i], samples, texts, [])
        waiting[q] -= 1
        if waiting[q] == 0:
            yield q, rows[q]


# ---- 4 and 5: what the ground truth confirms, and what the programs do ----


@dataclass(frozen=True)
class Suite:
    """What the ground truth left of a reply."""

    tests: tuple[Test, ...]  # the valid ones, with its own answers
    n_invalid: int  # asserts


@dataclass(frozen=True)
class Execution:
    """What the M programs of a question did."""

    suites: list[list[Suite]]  # (M, N); [] where a program got no suites
    history: list[Test]  # T_hist: the replayed tests that the ground truth confirms
    evicted: list[Test]  # the replayed tests for which it now gives another value
    loads: list[bool]  # (M,)
    status: list[dict[Test, Status]]  # (M,) of every test the program was given


def validate(asserts: Sequence[Test | None], truths: dict[str, Truth], wrong_answers: str) -> Suite:
    """Step 4 for one suite. truths: call -> what the ground truth makes of it.

    A call whose arguments, as the ground truth binds them, an earlier valid test has already is a
    duplicate, whatever its form: otherwise one breaking call, asserted in K ways, would earn K
    times. Programs get the call as it was bound: a right one need not have the ground truth's names
    and defaults.
    """
    tests, seen, n_right = [], set(), 0
    for test in asserts:
        truth = test and truths.get(test.call)
        if not truth or truth.call is None or truth.call.key in seen:
            continue
        bound = replace(test, call=truth.call.source)
        confirmed = relabel(bound, truth.value.value)
        right = confirmed is not None and holds(truth.value.value, test)
        n_right += right
        if confirmed is not None and (right or wrong_answers == "relabel"):
            tests.append(confirmed)
            seen.add(truth.call.key)
    return Suite(tuple(tests), len(asserts) - n_right)


def recheck(history: list[Test], truths: dict[str, Truth]) -> tuple[list[Test], list[Test]]:
    """(replayed tests that hold, those for which the ground truth now gives another value). One
    that could not be asked this time is neither, and stays in the book."""
    confirmed, evicted = [], []
    for test in history:
        value = truths[test.call].value
        if value.ok and holds(value.value, test):
            confirmed.append(test)
        elif value.ok and relabel(test, value.value) is not None:
            evicted.append(test)
    return confirmed, evicted


def execute(
    box: Sandbox, question: Question, programs: list[str], replies: list[list[str]],
    history: list[Test], cfg: Config,
) -> Execution:
    """Steps 4 and 5 for one question: the ground truth answers every distinct call once; then each
    program runs the valid tests of its own suites and T_hist, each distinct test once.

    The question's golden tests are one ready suite of every program.
    """
    entry = question.entry_point
    asserts = [[extract_tests(text, entry, cfg.asserts) for text in row] for row in replies]
    written = [test for row in asserts for suite in row for test in suite if test is not None]
    calls = list(dict.fromkeys(test.call for test in [*written, *history]))
    answers = box.ground_truth([(question.reference, entry, calls)])[0] if calls else []
    truths = dict(zip(calls, answers, strict=True))
    suites = [[validate(suite, truths, cfg.wrong_answers) for suite in row] for row in asserts]
    if cfg.golden:
        golden = tuple(parse_assert(text, entry) for text in question.tests)
        suites = [[Suite(golden, 0)] for _ in programs]
    confirmed, evicted = recheck(history, truths)
    own = [[test for suite in row for test in suite.tests] for row in suites]
    tests = [list(dict.fromkeys([*row, *confirmed])) for row in own]
    verdicts = box.judge(zip(programs, [entry] * len(programs), tests, strict=True))
    status = []
    for row, verdict in zip(tests, verdicts, strict=True):
        status.append(dict(zip(row, verdict.statuses, strict=True)))
    return Execution(suites, confirmed, evicted, [v.loads for v in verdicts], status)


# ---- 6: rewards ----


@dataclass(frozen=True)
class Rewards:
    """Rewards of a question, and for the log the parts they are made of."""

    coder: list[float]  # (M,)
    tester: list[list[float]]  # (M, N)
    whole: list[bool]  # (M,) all its tests ran: else its suites differ by order alone
    loads: list[bool]  # (M,)
    r_val: list[float]  # one per suite
    r_adv: list[float]  # one per suite
    pass_new: list[float]  # one per suite with a valid test, of loading programs
    pass_hist: list[float]  # one per loading program, if anything was replayed

    @property
    def comparable(self) -> list[list[float]]:
        """`tester`, empty where not all tests ran."""
        ran = zip(self.tester, self.whole, strict=True)
        return [suites if whole else [] for suites, whole in ran]


def rate(statuses: Sequence[Status], *wanted: Status) -> float:
    """The share of `wanted` among all; 0 of nothing.

    A test that never ran, as its program crashed or hung too often, counts here all the same:
    giving up must not pay.
    """
    return sum(s in wanted for s in statuses) / len(statuses) if statuses else 0.0


def reward_coder(
    loads: bool, suites: Sequence[Sequence[Status]], history: Sequence[Status]
) -> float:
    """R_C: the mean of pass_hist and of pass_new, this averaged over the suites with a valid test;
    one alone where the other does not exist; 0 with nothing to pass, or not loading.

    suites: the statuses of each suite's valid tests; history: those of T_hist.
    """
    if not loads:
        return 0.0
    parts = [rate(history, Status.PASS)] if history else []
    if new := [rate(s, Status.PASS) for s in suites if s]:
        parts.append(sum(new) / len(new))
    return sum(parts) / len(parts) if parts else 0.0


def reward_tester(
    n_valid: int, n_invalid: int, new: Sequence[Status], history: Sequence[Status], k: int,
    alpha: float,
) -> tuple[float, float, float]:
    """(R_T, R_val, R_adv) of a suite of a loading program: R_T = α·R_val + (1 − α)·R_adv.

    new: statuses of its n_valid valid tests; history: those of T_hist; k: asserts asked for.
    """
    r_val = min(max(min(n_valid / k, 1 - n_invalid / k), 0.0), 1.0)
    if n_valid == 0:
        return alpha * r_val, r_val, 0.0
    fail_new = sum(s in FAILED for s in new) / k
    r_adv = (fail_new - rate(history, *FAILED) + 1) / 2 if history else fail_new
    return alpha * r_val + (1 - alpha) * r_adv, r_val, r_adv


def score(e: Execution, k: int, alpha: float) -> Rewards:
    """Step 6 for one question. A program that does not load earns 0, and so do its suites."""
    found = Rewards([], [], [], list(e.loads), [], [], [], [])
    for suites, loads, status in zip(e.suites, e.loads, e.status, strict=True):
        new = [[status[t] for t in suite.tests] for suite in suites]
        hist = [status[t] for t in e.history]
        found.coder.append(reward_coder(loads, new, hist))
        found.tester.append([])
        for suite, statuses in zip(suites, new, strict=True):
            reward, r_val, r_adv = 0.0, 0.0, 0.0
            if loads:
                reward, r_val, r_adv = reward_tester(
                    len(statuses), suite.n_invalid, statuses, hist, k, alpha)
            found.tester[-1].append(reward)
            found.r_val.append(r_val)
            found.r_adv.append(r_adv)
        found.whole.append(Status.NOT_RUN not in status.values())
        if loads:
            found.pass_new.extend(rate(s, Status.PASS) for s in new if s)
            found.pass_hist.extend([rate(hist, Status.PASS)] if hist else [])
    return found


# ---- 7 and 8: the book, and who trains the tester ----


def update_book(book: MistakeBook, question: Question, e: Execution) -> tuple[int, int]:
    """Step 7 for one question: (tests that entered, tests that left).

    A replayed test loses one count per program that passes it; then a new test gains one per suite
    in which it failed. Programs that do not load say nothing about a test.
    """
    passed, failed = [], []
    for suites, status, loads in zip(e.suites, e.status, e.loads, strict=True):
        if loads:
            passed += [t for t in e.history if status[t] is Status.PASS]
            failed += [t for suite in suites for t in suite.tests if status[t] in FAILED]
    gone = book.evict(question.id, e.evicted)
    added, removed = book.update(question.id, failed, passed)
    return added, removed + gone


def topvar(rewards: Sequence[Sequence[float]], top: int) -> list[int]:
    """Step 8: the `top` programs whose N suite rewards have the largest population standard
    deviation. Ties go to the lower index; programs without spread are never chosen.

    >>> topvar([[0, 0], [0, 1], [1, 0], [0.2, 0.4]], 1)
    [1]
    """
    spread = [statistics.pstdev(r) if r else 0.0 for r in rewards]
    order = sorted(range(len(rewards)), key=lambda m: (-spread[m], m))
    return [m for m in order[:top] if len(set(rewards[m])) > 1]


# ---- 9 and 10: advantages and updates ----


def make_group(replies: Replies, rewards: Sequence[float]) -> Group:
    """Step 9 for the replies to one prompt."""
    advantages = group_advantages([rewards])[0].tolist()
    return Group(tuple(replies.prompt), tuple(replies.samples), tuple(advantages))


def cut(questions: list[list[Group]], parts: int) -> list[list[Group]]:
    """Minibatches of whole questions that have a group, in order, as even as can be, none empty.

    >>> [len(part) for part in cut([["a"], ["b", "c"], [], ["d"]], 2)]
    [3, 1]
    """
    questions = [groups for groups in questions if groups]
    ends = [-(-len(questions) * i // parts) for i in range(parts + 1)]  # rounded up
    batches = [sum(questions[start:end], []) for start, end in pairwise(ends)]
    return [batch for batch in batches if batch]


def update_players(
    players: dict[str, Player], coder: list[list[Group]], tester: list[list[Group]], cfg: Config,
    watch: Stopwatch,
) -> dict[str, list[UpdateStats]]:
    """Step 10. The groups of each role by question -> what its optimiser steps did.

    In self-play one policy takes the program minibatches, then the suite minibatches; on golden
    tests there are none of the latter.
    """
    coder_parts = cut(coder, cfg.coder_minibatches)
    tester_parts = cut(tester, cfg.tester_minibatches)
    if "tester" in players:
        stats = players["coder"].policy.step(coder_parts)
        watch.lap("update_coder")
        tester_stats = players["tester"].policy.step(tester_parts)
        watch.lap("update_tester")
        return {"coder": stats, "tester": tester_stats}
    stats = players["coder"].policy.step(coder_parts + tester_parts)
    watch.lap("update_coder")
    return {"coder": stats[: len(coder_parts)], "tester": stats[len(coder_parts) :]}


# ---- the loop ----


def batch_of(questions: list[Question], step: int, cfg: Config) -> list[Question]:
    """The questions of a step; each epoch has an order of its own, from the seed."""
    epoch, index = divmod(step - 1, len(questions) // cfg.batch_questions)
    order = np.random.default_rng([cfg.seed, epoch]).permutation(len(questions))
    return [questions[i] for i in order[index * cfg.batch_questions :][: cfg.batch_questions]]


def train(it: Run) -> None:
    """The steps that are left, each numbered as in the paper."""
    cfg, book, players = it.cfg, it.book, it.players
    coder, tester = players["coder"], players.get("tester", players["coder"])
    for step in it.steps():
        watch, batch = Stopwatch(), batch_of(it.questions, step, cfg)
        programs = sample_programs(coder, batch, cfg, step)  # 1
        watch.lap("programs")
        history = [book.replay(question.id, cfg.asserts) for question in batch]  # 3
        suites, jobs = {}, {}
        for q, row in sample_suites(tester, batch, programs, cfg, step):  # 2
            # 4, 5: a question is executed while the suites of others are still written
            texts = [replies.texts for replies in row]
            work = (it.box, batch[q], programs[q].programs, texts, history[q], cfg)
            suites[q], jobs[q] = row, it.pool.submit(execute, *work)
        watch.lap("suites")
        executions = [jobs[q].result() for q in range(len(batch))]  # in order, whichever came first
        watch.lap("execution")
        rewards = [score(e, cfg.asserts, cfg.alpha) for e in executions]  # 6
        it.stop.busy = True  # from here on the step is finished, whatever is asked
        changes = []
        if cfg.keeps_book:
            changes = [update_book(book, q, e) for q, e in zip(batch, executions, strict=True)]  # 7
        chosen = [topvar(r.comparable, cfg.topvar) for r in rewards]  # 8
        coder_groups, tester_groups = [], []
        for q, r in enumerate(rewards):  # 9
            coder_groups.append([make_group(programs[q], r.coder)])
            tester_groups.append([make_group(suites[q][m], r.tester[m]) for m in chosen[q]])
        stats = update_players(players, coder_groups, tester_groups, cfg, watch)  # 10
        it.log(step, watch, batch, programs, suites, executions, rewards, chosen, changes, stats)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status, as run.main explains it."""
    return run.main(argv, __doc__, train)


if __name__ == "__main__":
    sys.exit(main())
