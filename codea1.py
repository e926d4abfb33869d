"""Code-A1: a Code LLM and a Test LLM train against each other (arXiv 2603.15611), the algorithm end to end.

One step, in the paper's order: the Code LLM writes M programs per question; the Test LLM sees question and program
and writes N suites of K asserts that should break it; the ground truth confirms the asserts; every program runs its
suites and the failures replayed from the Mistake Book; both players are rewarded; the book is updated; TopVar picks
the program whose suites differ most; advantages are taken inside each group; both policies take GRPO steps. `train`
has one call for each.

    codea1                                                  the embedded default: two small models, minutes on a laptop
    codea1 --coder DIR --tester DIR --questions FILE        Hugging Face checkpoints with the paper's settings
    codea1 --resume runs/NAME                               go on after Ctrl-C, a crash or a kill

Where the paper's figure and its released code differ, and what is done here, is a table in README.md.
Letters: Q questions in a batch, M programs per question, N suites per program, K asserts per suite.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from eval import evaluate_coder, evaluate_tester
from grpo import Group, Policy, UpdateStats, group_advantages
from mistake_book import MistakeBook
from model import Config as ModelConfig
from model import Qwen2, Sample, Tokenizer, read_json, stream
from sandbox import Sandbox, SandboxError, Status
from tasks import (
    Question,
    Test,
    call_key,
    coder_messages,
    extract_tests,
    holds,
    load_questions,
    make_solution,
    parse_assert,
    relabel,
    tester_messages,
)

HERE = Path(__file__).resolve().parent
PASSED = (Status.PASS,)
FIGURES = ("golden_t1", "golden_greedy", "suite_right", "assert_accuracy", "kill", "mul")  # of final.json
FAILED = (Status.FAIL, Status.ERROR, Status.TIMEOUT)  # NOT_RUN is neither


def option(default, meaning: str, *choices: str):
    """A config field: its value in the paper, what it means, and what it may be."""
    return field(default=default, metadata={"help": meaning, "choices": choices or None})


@dataclass(frozen=True)
class Config:
    """Every setting of a run. The defaults are the paper's (`--preset paper`)."""

    preset: str = option("paper", "named settings, under the flags that are given", "tiny", "paper")
    coder: str = option("", "checkpoint folder of the Code LLM (Hugging Face layout)")
    tester: str = option("", "checkpoint folder of the Test LLM; empty: the coder's")
    questions: str = option("", "questions to train on (.jsonl, .jsonl.gz, .json)")
    eval_questions: str = option("", "questions evaluated every eval_every steps; empty: none")
    final_questions: str = option("", "questions evaluated before and after the run; empty: none")
    prompt_style: str = option("instruct", "prompts for chat models, or bare ones (embedded)", "instruct", "plain")
    out: str = option("runs", "folder of all runs")
    name: str = option("", "folder of this run in --out; empty: preset and start time")
    seed: int = option(0, "seed of sampling and data order")
    steps: int = option(0, "training steps; 0: as many as epochs gives")
    epochs: int = option(3, "passes over the questions where steps is 0; a pass's last incomplete batch is dropped")
    batch_questions: int = option(256, "Q, questions per step")
    programs: int = option(8, "M, programs per question")
    suites: int = option(8, "N, suites per program")
    asserts: int = option(8, "K, asserts of a suite that count, and tests replayed from the book")
    alpha: float = option(0.5, "weight of validity in the tester's reward; 1 - alpha goes to breaking the program")
    topvar: int = option(1, "programs per question whose suites train the tester")
    reward: str = option("adversarial", "tests that reward the coder: the tester's; or golden: the question's own, and "
                         "no tester", "adversarial", "golden")
    self_play: bool = option(False, "one model, the coder's, plays both roles")
    black_box: bool = option(False, "the tester does not see the program")
    no_book: bool = option(False, "no Mistake Book")
    book_capacity: int = option(64, "tests kept per question in the Mistake Book")
    wrong_answers: str = option("relabel", "a sound call with a wrong answer, invalid for the reward either way: run "
                                "it with the ground truth's answer, or not", "relabel", "drop")
    coder_lr: float = option(1e-6, "peak learning rate of the coder")
    tester_lr: float = option(1e-6, "peak learning rate of the tester")
    warmup: int = option(10, "steps in which the learning rate rises, before its cosine to 0; 0: none. In the tiny "
                         "preset less than --steps by itself")
    weight_decay: float = option(0.1, "AdamW's, on all weights; 0: none")
    max_grad_norm: float = option(1.0, "gradients are scaled down to this norm")
    coder_minibatches: int = option(2, "optimiser steps of the coder per training step")
    tester_minibatches: int = option(2, "optimiser steps of the tester per training step")
    clip_low: float = option(0.2, "the ratio is clipped below 1 - clip_low")
    clip_high: float = option(0.28, "the ratio is clipped above 1 + clip_high")
    dual_clip: float = option(10.0, "bound of the ratio where the advantage is negative")
    kl_coef: float = option(0.001, "weight of the KL estimate to the start model; 0: none, and no reference in memory")
    temperature: float = option(1.0, "sampling temperature of the rollouts, and of the log-probs in the loss")
    top_p: float = option(1.0, "nucleus of the rollouts; 1: off")
    coder_prompt_limit: int = option(4096, "tokens; a question with a longer prompt is skipped and counted")
    tester_prompt_limit: int = option(8192, "tokens; a program with a longer prompt gets no suites and is counted")
    coder_reply_limit: int = option(4096, "tokens of a program's reply")
    tester_reply_limit: int = option(4096, "tokens of a suite's reply")
    micro_tokens: int = option(16384, "tokens per forward pass of the update: memory, not the result")
    checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, more time")
    offload: bool = option(False, "keep the idle policy's optimiser state in host memory")
    cuda_graphs: bool = option(False, "on a GPU, replay a rollout's steps as one graph each, not kernel by kernel")
    device: str = option("auto", "cuda, cpu, or auto: cuda where there is one")
    dtype: str = option("auto", "compute type; auto: bfloat16 on cuda, else float32", "auto", "float32", "bfloat16")
    threads: int = option(0, "torch's CPU threads; 0: torch's choice. A run repeats bit for bit on one number of them")
    workers: int = option(0, "sandbox workers; 0: one per core")
    timeout: float = option(2.0, "seconds of CPU time per call in the sandbox")
    memory_mb: int = option(1024, "memory limit of a program in the sandbox, MiB")
    require_isolation: bool = option(False, "refuse to start where a layer of the sandbox is missing")
    save_every: int = option(50, "steps between checkpoints; the last step is always saved. 0: only that")
    keep_checkpoints: int = option(0, "newest checkpoints kept; 0: all")
    eval_every: int = option(10, "steps between evaluations on eval_questions; 0: none")
    eval_samples: int = option(32, "programs, and suites, per question in evaluations")
    eval_temperature: float = option(0.7, "sampling temperature of evaluations")
    eval_top_p: float = option(0.95, "nucleus of evaluations; 1: off")
    eval_seed: int = option(0, "seed of evaluations, apart from --seed: other runs start from equal figures")
    log_questions: int = option(1, "questions per step whose prompts, replies and rewards go to samples.jsonl")


PRESETS: dict[str, dict] = {
    "paper": {},
    "tiny": dict(
        coder=str(HERE / "tiny/coder"), tester=str(HERE / "tiny/tester"), questions=str(HERE / "tiny/train.jsonl.gz"),
        eval_questions=str(HERE / "tiny/tune.jsonl.gz"), final_questions=str(HERE / "tiny/heldout.jsonl.gz"),
        prompt_style="plain", steps=90, batch_questions=12, programs=8, suites=4, asserts=5, topvar=3,
        coder_lr=4e-4, tester_lr=3e-4, warmup=5, weight_decay=0.0, tester_minibatches=1, threads=1,
        coder_prompt_limit=192, tester_prompt_limit=384, coder_reply_limit=96, tester_reply_limit=96,
        save_every=50, keep_checkpoints=2, eval_every=0, eval_samples=16, eval_temperature=1.0, eval_top_p=1.0,
    ),
}
ON_RESUME = {"device", "workers", "require_isolation", "save_every", "keep_checkpoints", "log_questions"}  # may change


COUNTS = ("batch_questions programs suites asserts topvar coder_minibatches tester_minibatches coder_prompt_limit "
          "tester_prompt_limit coder_reply_limit tester_reply_limit micro_tokens book_capacity eval_samples").split()
FROM_0 = ("seed steps epochs warmup threads workers save_every keep_checkpoints eval_every eval_seed log_questions "
          "coder_lr tester_lr weight_decay max_grad_norm kl_coef clip_high eval_temperature").split()
# Setting -> least and most.
BOUNDS = {**dict.fromkeys(COUNTS, (1, math.inf)), **dict.fromkeys(FROM_0, (0, math.inf)), "alpha": (0, 1),
          "clip_low": (0, 1), "dual_clip": (1, math.inf), "top_p": (0.01, 1), "eval_top_p": (0.01, 1),
          "timeout": (0.01, math.inf), "temperature": (0.01, math.inf), "memory_mb": (64, math.inf)}


def parse_args(argv: Sequence[str] | None) -> tuple[dict, str]:
    """The flags that were given, by field name, and the run to resume ('' for a new one)."""
    parser = argparse.ArgumentParser(
        prog="codea1", allow_abbrev=False, description=__doc__,
        epilog="README.md explains every name in metrics.jsonl.", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", metavar="RUN", default="", help="folder of a run to go on with (runs/NAME)")
    for f in dataclasses.fields(Config):
        flag, kind, tiny = "--" + f.name.replace("_", "-"), type(f.default), PRESETS["tiny"].get(f.name, f.default)
        values = f"paper: {f.default!r}" + (f", tiny: {tiny!r}" if tiny != f.default else "")
        text = f"{f.metadata['help']} ({values.replace(str(HERE) + os.sep, '')})".replace("%", "%%")
        if kind is bool:
            parser.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=text)
        else:
            parser.add_argument(flag, type=kind, choices=f.metadata["choices"], default=argparse.SUPPRESS, help=text)
    given = vars(parser.parse_args(argv))
    return given, given.pop("resume")


def make_config(given: dict) -> Config:
    """Preset, then the given values on top. Naming a model or a questions file selects the paper's preset."""
    if unknown := set(given) - {f.name for f in dataclasses.fields(Config)}:
        raise ValueError(f"unknown setting {', '.join(sorted(unknown))}: `codea1 --help` lists them")
    real = any(given.get(name) for name in ("coder", "tester", "questions"))
    preset = given.get("preset", "paper" if real else "tiny")
    if preset not in PRESETS:
        raise ValueError(f"--preset is {preset!r}: there are {' and '.join(PRESETS)}")
    cfg = Config(**{**PRESETS[preset], **given, "preset": preset})
    if preset == "tiny" and "warmup" not in given:  # a short look at the embedded default needs no other flag
        cfg = dataclasses.replace(cfg, warmup=min(cfg.warmup, max(cfg.steps - 1, 0)))
    if not cfg.coder or not cfg.questions:
        raise ValueError("the paper preset needs --coder DIR and --questions FILE (and --tester DIR for another start "
                         "model); without any of them `codea1` runs the embedded default")
    name = cfg.name or time.strftime(f"{preset}-%Y%m%d-%H%M%S")
    return choose_device(dataclasses.replace(cfg, name=name, tester=cfg.tester or cfg.coder))


def choose_device(cfg: Config) -> Config:
    """The settings with "auto" resolved in device and dtype; ValueError for a device that is not there."""
    device = cfg.device if cfg.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if device != "cpu" and not (device.partition(":")[0] == "cuda" and torch.cuda.is_available()):
        raise ValueError(f"--device is {device!r}: it is cpu, or cuda (cuda:1, ...) where torch finds a GPU")
    dtype = cfg.dtype if cfg.dtype != "auto" else "bfloat16" if device.startswith("cuda") else "float32"
    return dataclasses.replace(cfg, device=device, dtype=dtype)


def check_config(cfg: Config, n_questions: int) -> Config:
    """ValueError for what cannot work, with what to set; `steps` 0 is resolved from `epochs`."""
    for name, (least, most) in BOUNDS.items():
        if not least <= getattr(cfg, name) <= most:
            wanted = f"between {least:g} and {most:g}" if most < math.inf else f"at least {least:g}"
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(cfg, name)}: it must be {wanted}")
    if n_questions < cfg.batch_questions:
        raise ValueError(f"{cfg.questions} has {n_questions} usable questions, fewer than a batch of "
                         f"{cfg.batch_questions}: set --batch-questions to at most {n_questions}")
    steps = cfg.steps or cfg.epochs * (n_questions // cfg.batch_questions)
    if cfg.warmup >= steps:
        raise ValueError(f"a warm-up of {cfg.warmup} steps leaves nothing of a run of {steps}: set --warmup below "
                         f"{steps} or --steps above {cfg.warmup}")
    return dataclasses.replace(cfg, steps=steps)


@dataclass(frozen=True)
class Player:
    """One role: its policy and tokenizer. In self-play both roles are the same object."""

    policy: Policy
    tokenizer: Tokenizer


@dataclass(frozen=True)
class Reply:
    """One sampled reply: its tokens, its text, and for the coder the program made from it ('' when there is none)."""

    sample: Sample
    text: str
    program: str = ""


def derive_seed(*parts: int) -> int:
    """One 63-bit seed from (run seed, step, role), so that a resumed run needs no generator state."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


def sample(player: Player, prompts: list[list[int]], n: int, limit: int, cfg: Config, step: int, role: int,
           on_group: Callable[[int, list[Sample]], None] = lambda index, samples: None) -> list[list[Sample]]:
    """n samples for every prompt; on_group hears of each prompt as soon as its n samples are there."""
    groups, label = [[] for _ in prompts], ("programs", "suites")[role]
    whole = stream(player.policy.model, prompts, n=n, max_new_tokens=limit, temperature=cfg.temperature,
                   top_p=cfg.top_p, eos_ids=player.tokenizer.eos_ids, vocab_size=len(player.tokenizer),
                   seed=derive_seed(cfg.seed, step, role), cuda_graphs=cfg.cuda_graphs and cfg.device != "cpu")
    for index, samples in tqdm(whole, label, len(prompts), unit="prompt", leave=False, disable=None):
        groups[index] = samples
        on_group(index, samples)
    return groups


def sample_programs(coder: Player, batch: list[Question], cfg: Config, step: int) -> tuple[list, list[list[Reply]]]:
    """Step 1: the Q prompts (token ids), and M replies for each."""
    prompts = [coder.tokenizer.encode_chat(coder_messages(q, cfg.prompt_style)) for q in batch]
    groups = sample(coder, prompts, cfg.programs, cfg.coder_reply_limit, cfg, step, 0)
    replies = []
    for question, group in zip(batch, groups, strict=True):
        texts = [coder.tokenizer.decode(s.ids) for s in group]
        replies.append([Reply(s, t, make_solution(question, t)) for s, t in zip(group, texts, strict=True)])
    return prompts, replies


def sample_suites(tester: Player, batch: list[Question], programs: list[list[Reply]], cfg: Config, step: int,
                  on_question: Callable[[int, list[list[Reply]]], None]) -> tuple[list, list[list[list[Reply]]]]:
    """Step 2: the (Q, M) prompts (token ids), and N replies for each; on_question hears of a question once it is whole.

    A prompt over its limit is not cut: that program gets no suites ([]).
    """
    prompts = [[tester.tokenizer.encode_chat(tester_messages(
        question, None if cfg.black_box else p.program or p.text, cfg.asserts, cfg.prompt_style)) for p in row]
        for question, row in zip(batch, programs, strict=True)]
    places = [(q, m) for q, row in enumerate(prompts) for m, ids in enumerate(row)
              if len(ids) <= cfg.tester_prompt_limit]
    waiting = Counter(q for q, _ in places)
    replies: list[list[list[Reply]]] = [[[] for _ in row] for row in programs]

    def heard(index: int, samples: list[Sample]) -> None:
        q, m = places[index]
        replies[q][m] = [Reply(s, tester.tokenizer.decode(s.ids)) for s in samples]
        waiting[q] -= 1
        if waiting[q] == 0:
            on_question(q, replies[q])

    for q in range(len(batch)):
        if q not in waiting:
            on_question(q, replies[q])
    sample(tester, [prompts[q][m] for q, m in places], cfg.suites, cfg.tester_reply_limit, cfg, step, 1, heard)
    return prompts, replies


@dataclass(frozen=True)
class Suite:
    """What the ground truth left of a reply: the valid tests with its own answers, and how many asserts are invalid."""

    tests: tuple[Test, ...]
    n_invalid: int


@dataclass(frozen=True)
class Execution:
    """What the M programs of a question did."""

    suites: list[list[Suite]]  # (M, N); [] where a program got no suites
    history: list[Test]  # T_hist: the replayed tests that the ground truth confirms
    evicted: list[Test]  # the replayed tests that it no longer confirms
    loads: list[bool]  # (M,)
    status: list[dict[Test, Status]]  # (M,) of every test the program was given


def validate(asserts: list[Test | None], truth: dict[str, object], wrong_answers: str, reference: str = "") -> Suite:
    """Step 4 for one suite. truth: call -> the ground truth's value; a call without one is invalid.

    A call that an earlier assert of the suite makes already is a duplicate, whatever the form of the assert and the
    spelling of its arguments (`call_key`): otherwise one breaking call, asserted in K ways, would earn K times.
    """
    tests, seen, n_invalid = [], set(), 0
    for test in asserts:
        key = call_key(test.call, reference) if test is not None else None
        known = test is not None and test.call in truth and key not in seen
        confirmed = relabel(test, truth[test.call]) if known else None
        right = confirmed is not None and holds(truth[test.call], test)
        n_invalid += not right
        if confirmed is not None and (right or wrong_answers == "relabel"):
            tests.append(confirmed)
        seen.add(key)
    return Suite(tuple(tests), n_invalid)


def execute(box: Sandbox, question: Question, programs: list[str], replies: list[list[str]], history: list[Test],
            cfg: Config) -> Execution:
    """Steps 4 and 5 for one question: the ground truth answers every distinct call once; then each program runs the
    valid tests of its own suites and T_hist, each distinct test once."""
    asserts = [[extract_tests(text, question.entry_point, cfg.asserts) for text in row] for row in replies]
    calls = list(dict.fromkeys([*(t.call for row in asserts for suite in row for t in suite if t is not None),
                                *(t.call for t in history)]))
    values = box.ground_truth([(question.reference, calls)])[0] if calls else []
    truth = {call: v.value for call, v in zip(calls, values, strict=True) if v.ok}
    suites = [[validate(suite, truth, cfg.wrong_answers, question.reference) for suite in row] for row in asserts]
    confirmed = [t for t in history if t.call in truth and holds(truth[t.call], t)]
    given = [list(dict.fromkeys([*(t for suite in row for t in suite.tests), *confirmed])) for row in suites]
    verdicts = box.judge([(p, question.entry_point, tests) for p, tests in zip(programs, given, strict=True)])
    status = [dict(zip(tests, v.statuses, strict=True)) for tests, v in zip(given, verdicts, strict=True)]
    evicted = [t for t in history if t not in confirmed]
    return Execution(suites, confirmed, evicted, [v.loads for v in verdicts], status)


@dataclass(frozen=True)
class Rewards:
    """Rewards of a question, and the parts they are made of (for the log)."""

    coder: list[float]  # (M,)
    tester: list[list[float]]  # (M, N)
    whole: list[bool]  # (M,) whether all tests of the program ran: else its suites differ by their order alone
    loads: list[bool]  # (M,)
    r_val: list[float]  # one per suite
    r_adv: list[float]  # one per suite
    pass_new: list[float]  # one per suite with a valid test, of loading programs
    pass_hist: list[float]  # one per loading program, if anything was replayed


def rate(statuses: Sequence[Status], wanted: tuple[Status, ...]) -> float:
    """The share of `wanted` among the tests that ran; those that never ran are left out; nothing run: 0."""
    ran = [s for s in statuses if s is not Status.NOT_RUN]
    return sum(s in wanted for s in ran) / len(ran) if ran else 0.0


def reward_coder(loads: bool, suites: Sequence[Sequence[Status]], history: Sequence[Status]) -> float:
    """R_C: the mean of pass_hist and of pass_new, this averaged over the suites with a valid test; one alone where the
    other does not exist.

    suites: the statuses of each suite's valid tests; history: those of T_hist. Nothing to pass, or not loading: 0.
    """
    if not loads:
        return 0.0
    parts = [rate(history, PASSED)] if history else []
    new = [rate(s, PASSED) for s in suites if s]
    if new:
        parts.append(sum(new) / len(new))
    return sum(parts) / len(parts) if parts else 0.0


def reward_tester(n_valid: int, n_invalid: int, new: Sequence[Status], history: Sequence[Status], k: int,
                  alpha: float) -> tuple[float, float, float]:
    """(R_T, R_val, R_adv) of a suite of a loading program: R_T = alpha·R_val + (1 - alpha)·R_adv.

    new: statuses of its n_valid valid tests; history: those of T_hist; k: asserts asked for.
    """
    r_val = min(max(min(n_valid / k, 1 - n_invalid / k), 0.0), 1.0)
    if n_valid == 0:
        return alpha * r_val, r_val, 0.0
    fail_new = sum(s in FAILED for s in new) / k
    r_adv = (fail_new - rate(history, FAILED) + 1) / 2 if history else fail_new
    return alpha * r_val + (1 - alpha) * r_adv, r_val, r_adv


def score(e: Execution, k: int, alpha: float) -> Rewards:
    """Step 6 for one question. A program that does not load earns 0, and so do its suites."""
    coder, tester, whole, r_val, r_adv, pass_new, pass_hist = [], [], [], [], [], [], []
    for suites, loads, status in zip(e.suites, e.loads, e.status, strict=True):
        new = [[status[t] for t in suite.tests] for suite in suites]
        hist = [status[t] for t in e.history]
        coder.append(reward_coder(loads, new, hist))
        parts = [reward_tester(len(suite.tests), suite.n_invalid, s, hist, k, alpha) if loads else (0.0, 0.0, 0.0)
                 for suite, s in zip(suites, new, strict=True)]
        tester.append([r for r, _, _ in parts])
        whole.append(Status.NOT_RUN not in status.values())
        r_val += [v for _, v, _ in parts]
        r_adv += [a for _, _, a in parts]
        if loads:
            pass_new += [rate(s, PASSED) for s in new if s]
            pass_hist += [rate(hist, PASSED)] if hist else []
    return Rewards(coder, tester, whole, list(e.loads), r_val, r_adv, pass_new, pass_hist)


def score_golden(box: Sandbox, question: Question, programs: list[str]) -> Rewards:
    """The golden baseline: R_C is the share of the question's own tests that the program passes; there is no tester."""
    verdicts = box.judge([(p, question.entry_point, list(question.tests)) for p in programs])
    coder = [reward_coder(v.loads, [v.statuses], []) for v in verdicts]
    return Rewards(coder, [[] for _ in programs], [], [v.loads for v in verdicts], [], [], coder, [])


def update_book(book: MistakeBook, question: Question, e: Execution) -> tuple[int, int]:
    """Step 7 for one question: (tests that entered, tests that left).

    A replayed test loses one count per program that passes it; then a new test gains one per suite of a loading program
    in which it failed. Programs that do not load say nothing about a test.
    """
    loading = [(suites, status) for suites, status, loads in zip(e.suites, e.status, e.loads, strict=True) if loads]
    passed = [t for _, status in loading for t in e.history if status[t] is Status.PASS]
    failed = [t for suites, status in loading for suite in suites for t in suite.tests if status[t] in FAILED]
    gone = book.evict(question.id, e.evicted)
    added, removed = book.update(question.id, failed, passed)
    return added, removed + gone


def topvar(rewards: list[list[float]], top: int) -> list[int]:
    """Step 8: indices of the `top` programs whose N suite rewards have the largest population standard deviation.

    Ties go to the lower index; programs without spread are never chosen.

    >>> topvar([[0, 0], [0, 1], [1, 0], [0.2, 0.4]], 1)
    [1]
    """
    spread = [statistics.pstdev(r) if r else 0.0 for r in rewards]
    order = sorted(range(len(rewards)), key=lambda m: (-spread[m], m))
    return [m for m in order[:top] if len(set(rewards[m])) > 1]


def make_group(prompt: list[int], replies: list[Reply], rewards: list[float]) -> Group:
    """Step 9 for one group: replies to one prompt with their advantages in float32."""
    advantages = group_advantages(torch.tensor([rewards], dtype=torch.float32))[0].tolist()
    return Group(tuple(prompt), tuple(r.sample for r in replies), tuple(advantages))


def cut(questions: list[list[Group]], parts: int) -> list[list[Group]]:
    """Minibatches of whole questions in batch order, as even as they can be; empty ones are left out.

    >>> [len(part) for part in cut([["a"], ["b", "c"], ["d"]], 2)]
    [3, 1]
    """
    ends = [len(questions) * (i + 1) // parts + (len(questions) * (i + 1) % parts > 0) for i in range(parts)]
    starts = [0, *ends[:-1]]
    batches = [[g for question in questions[a:b] for g in question] for a, b in zip(starts, ends, strict=True)]
    return [batch for batch in batches if batch]


def has_tester(cfg: Config) -> bool:
    """Whether a model of its own plays the tester."""
    return cfg.reward == "adversarial" and not cfg.self_play


def load_player(path: str, cfg: Config, lr: float, reference: Qwen2 | None) -> Player:
    """A checkpoint folder with its optimiser. reference: a frozen start model to share, or None for one of its own."""
    model = Qwen2.from_pretrained(path, dtype=getattr(torch, cfg.dtype), device=cfg.device)
    tokenizer = Tokenizer.from_pretrained(path)
    policy = Policy(
        model, lr=lr, steps=cfg.steps, warmup=cfg.warmup, weight_decay=cfg.weight_decay, kl_coef=cfg.kl_coef,
        max_grad_norm=cfg.max_grad_norm, clip_low=cfg.clip_low, clip_high=cfg.clip_high, dual_clip=cfg.dual_clip,
        temperature=cfg.temperature, vocab_size=len(tokenizer), micro_tokens=cfg.micro_tokens, reference=reference,
        checkpointing=cfg.checkpointing, offload=cfg.offload)
    return Player(policy, tokenizer)


def load_players(cfg: Config) -> dict[str, Player]:
    """{"coder": …} and, where a model of its own plays it, {"tester": …}; one reference for one start folder."""
    players = {"coder": load_player(cfg.coder, cfg, cfg.coder_lr, None)}
    if has_tester(cfg):
        shared = players["coder"].policy.reference if same_start(cfg) else None
        players["tester"] = load_player(cfg.tester, cfg, cfg.tester_lr, shared)
    return players


def same_start(cfg: Config) -> bool:
    """Whether both roles start from the same checkpoint folder."""
    return os.path.realpath(cfg.coder) == os.path.realpath(cfg.tester)


def memory_bytes(n_coder: int, n_tester: int, compute_bytes: int, offload: bool, references: int) -> int:
    """Bytes of weights and optimiser state on the device, activations and cache apart; n: parameters (0: no such role).

    Per parameter of a policy: compute_bytes of weights that sample and differentiate, 4 of float32 gradient, 4 of
    master weight (none apart where the compute type is float32) and 8 of AdamW moments. With offload the idle policy
    keeps its weights alone. Each of the `references` frozen start models (of the larger size) adds compute_bytes.
    """
    state = 4 + (0 if compute_bytes == 4 else 4) + 8
    larger, smaller = max(n_coder, n_tester), min(n_coder, n_tester)
    total = (larger + smaller + references * larger) * compute_bytes + larger * state
    return total if offload else total + smaller * state


def activation_bytes(c: ModelConfig, tokens: int, compute_bytes: int, checkpointing: bool) -> int:
    """Bytes that a forward pass over `tokens` keeps for its backward pass: 53 (in bfloat16, measured: see Policy) per
    token, layer and unit of the hidden size; with checkpointing those of one layer, and the inputs of all."""
    unit = tokens * c.hidden_size * compute_bytes // 2
    return 53 * unit + 2 * unit * c.num_hidden_layers if checkpointing else 53 * unit * c.num_hidden_layers


def check_memory(cfg: Config) -> None:
    """On a GPU: a run whose weights, optimiser state and activations do not fit is refused before any is loaded."""
    if not cfg.device.startswith("cuda"):
        return
    paths, width = [cfg.coder, cfg.tester] if has_tester(cfg) else [cfg.coder], 4 if cfg.dtype == "float32" else 2
    configs = [ModelConfig.from_dict(read_json(Path(path) / "config.json")) for path in paths]
    with torch.device("meta"):
        sizes = [sum(p.numel() for p in Qwen2(c).parameters()) for c in configs]
    references = 0 if cfg.kl_coef == 0 else 1 if same_start(cfg) else len(sizes)
    state = memory_bytes(sizes[0], sum(sizes[1:]), width, cfg.offload, references) / 2**30
    passing = max(activation_bytes(c, cfg.micro_tokens, width, cfg.checkpointing) for c in configs) / 2**30
    have = torch.cuda.get_device_properties(cfg.device).total_memory / 2**30
    if state + passing > 0.92 * have:
        flags = ["--checkpointing"] * (not cfg.checkpointing) + ["--offload"] * (not cfg.offload)
        raise ValueError(f"{' + '.join(f'{n / 1e9:.2f}' for n in sizes)} billion parameters need {state:.0f} GiB of "
                         f"weights, gradients and optimiser state, and {passing:.0f} GiB of activations for "
                         f"--micro-tokens {cfg.micro_tokens}; {cfg.device} has {have:.0f} GiB. There are "
                         f"{', '.join([*flags, 'smaller --micro-tokens'])} and smaller models")


@dataclass
class Run:
    """A run at work: where it writes, what it uses, and the last step that is done."""

    path: Path
    cfg: Config
    questions: list[Question]
    players: dict[str, Player]
    book: MistakeBook
    held: dict[str, list[Question]]  # "eval": evaluated on the way; "final": before and after
    step: int = 0
    box: Sandbox | None = None
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2 * (os.cpu_count() or 1)))


def write_text(path: Path, text: str) -> None:
    """Write all of it or nothing: a reader never sees half a file."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def append_json(path: Path, *rows: dict) -> None:
    """Append objects to a .jsonl file."""
    with open(path, "a", encoding="utf-8") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def keep_lines(path: Path, step: int) -> None:
    """Drop what a log says of steps after `step` (they will be run again), and a last line that was cut."""
    if path.exists():
        whole = [text for text in path.read_text(encoding="utf-8").splitlines(keepends=True) if text.endswith("\n")]
        write_text(path, "".join(text for text in whole if json.loads(text)["step"] <= step))


def fingerprint(model: Qwen2) -> str:
    """A digest of the names, shapes and first values of all weights: tells two models apart at no cost."""
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        digest.update(f"{name}{tuple(p.shape)}".encode())
        digest.update(p.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Make the disk have what was written to a file, or renamed in a folder."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def save_checkpoint(run: Run) -> None:
    """Everything a run needs to go on, in one folder that appears at once: written aside, synced, renamed.

    {coder,tester}/ in Hugging Face layout, {coder,tester}.pt (master weights, moments, schedule), book.json,
    manifest.json.
    """
    final = run.path / "checkpoints" / f"step_{run.step:06d}"
    part = final.with_name(final.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for role, player in run.players.items():
        player.policy.model.save_pretrained(part / role)
        player.tokenizer.save_pretrained(part / role)
        torch.save(player.policy.state_dict(), part / f"{role}.pt")
    run.book.save(part / "book.json")
    files = {str(f.relative_to(part)): f.stat().st_size for f in sorted(part.rglob("*")) if f.is_file()}
    weights = {role: fingerprint(player.policy.model) for role, player in run.players.items()}
    write_json(part / "manifest.json", {"step": run.step, "weights": weights, "files": files})
    for name in [*files, "manifest.json"]:
        sync(part / name)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(part, final)
    sync(final.parent)
    if run.cfg.keep_checkpoints:
        for old in sorted(final.parent.glob("step_??????"))[:-run.cfg.keep_checkpoints]:
            shutil.rmtree(old)


def newest_checkpoint(path: Path) -> Path | None:
    """The newest complete checkpoint of a run; an incomplete one is skipped, aloud."""
    for folder in sorted((path / "checkpoints").glob("step_*"), reverse=True):
        try:
            files = json.loads((folder / "manifest.json").read_text())["files"]
            if folder.suffix != ".part" and all((folder / f).stat().st_size == size for f, size in files.items()):
                return folder
        except (OSError, ValueError, KeyError):
            pass
        print(f"skipping the incomplete checkpoint {folder}", file=sys.stderr)
    return None


def load_checkpoint(folder: Path, run: Run) -> None:
    """Put a checkpoint's weights, moments, schedule, book and step into the run."""
    manifest = json.loads((folder / "manifest.json").read_text())
    if set(manifest["weights"]) != set(run.players):
        raise ValueError(f"{folder} holds {sorted(manifest['weights'])}, this run has {sorted(run.players)}")
    for role, player in run.players.items():
        player.policy.load_state_dict(torch.load(folder / f"{role}.pt", map_location="cpu", weights_only=True))
        if (fingerprint(player.policy.model), player.policy.t) != (manifest["weights"][role], manifest["step"]):
            raise ValueError(f"{folder}/{role}.pt is not the {role} that was saved there: were files exchanged?")
    run.book, run.step = MistakeBook.load(folder / "book.json"), manifest["step"]


def describe(cfg: Config, players: dict[str, Player]) -> dict:
    """config.json: the settings, and what else decides the results of a run."""
    return {**dataclasses.asdict(cfg), "questions_sha256": hashlib.sha256(Path(cfg.questions).read_bytes()).hexdigest(),
            "start_weights": {role: fingerprint(player.policy.model) for role, player in players.items()},
            "torch": torch.__version__, "torch_threads": torch.get_num_threads()}


def resume_config(path: Path, given: dict) -> Config:
    """The settings of a run that goes on. Flags that would change its results are refused, the others are said."""
    if not (path / "config.json").exists():
        raise ValueError(f"{path} holds no run: there is no config.json in it")
    saved = json.loads((path / "config.json").read_text())
    cfg = Config(**{f.name: saved.get(f.name, f.default) for f in dataclasses.fields(Config)})
    for name, value in given.items():
        flag, was = "--" + name.replace("_", "-"), getattr(cfg, name)
        if value != was and name not in ON_RESUME:
            raise ValueError(f"{flag} was {was!r}, now {value!r}: a resumed run keeps its settings; start a new run")
        if value != was:
            print(f"resumed with {flag} {value!r} instead of {was!r}", file=sys.stderr)
    return choose_device(dataclasses.replace(cfg, **{**given, "out": str(path.parent), "name": path.name}))


def check_resumed(run: Run) -> None:
    """The question file and the start models must be those that the run began with."""
    saved, now = json.loads((run.path / "config.json").read_text()), describe(run.cfg, run.players)
    if saved["questions_sha256"] != now["questions_sha256"]:
        raise ValueError(f"{run.cfg.questions} has changed since {run.path} started: a resumed run needs the same file")
    if saved["start_weights"] != now["start_weights"]:
        raise ValueError(f"{run.cfg.coder} and {run.cfg.tester} do not hold the models that {run.path} started from")
    for key in ("torch", "torch_threads"):
        if saved[key] != now[key]:
            print(f"{key} was {saved[key]}, is {now[key]}: the run will not repeat bit for bit", file=sys.stderr)


def evaluate(run: Run, questions: list[Question]) -> dict:
    """In percent, with standard errors and by family: golden_t1 and golden_greedy of the coder; suite_right,
    assert_accuracy, kill and mul of the tester (in self-play the same model)."""
    cfg, box, coder = run.cfg, run.box, run.players["coder"]
    common = dict(style=cfg.prompt_style, temperature=cfg.eval_temperature, top_p=cfg.eval_top_p, seed=cfg.eval_seed)
    t1, greedy = [
        evaluate_coder(coder.policy.model, coder.tokenizer, questions, box, n=n, greedy=n == 0,
                       max_new_tokens=cfg.coder_reply_limit, **common) for n in (cfg.eval_samples, 0)]
    result = {"golden_t1": t1.rate, "golden_greedy": greedy.rate, "n_questions": t1.n_questions,
              "stderr": {"golden_t1": t1.stderr, "golden_greedy": greedy.stderr},
              "by_family": {"golden_t1": t1.by_family}}
    if cfg.reward == "golden":
        return result
    tester = run.players.get("tester", coder)
    t = evaluate_tester(tester.policy.model, tester.tokenizer, questions, box, suites=cfg.eval_samples,
                        asserts=cfg.asserts, max_new_tokens=cfg.tester_reply_limit, black_box=cfg.black_box, **common)
    result |= {name: getattr(t, name) for name in FIGURES[2:]}
    result["stderr"] |= t.stderr
    result["by_family"] |= t.by_family
    return result


def print_final(final: dict) -> None:
    """Before and after with standard errors, then the families, then the book."""
    before, after = final["before"], final["after"]
    print(f"\n{'held-out, %':<18}{'before':>16}{'after':>16}{'change':>9}")
    for name in [n for n in FIGURES if n in after]:
        cells = [f"{x[name]:.1f} ± {x['stderr'][name]:.1f}" for x in (before, after)]
        print(f"{name:<18}{cells[0]:>16}{cells[1]:>16}{after[name] - before[name]:>+9.1f}")
    print(f"\n{'by family':<22}" + "".join(f"{name:>20}" for name in after["by_family"]))
    for family in sorted(after["by_family"]["golden_t1"]):
        pairs = [(before["by_family"][name][family], after["by_family"][name][family]) for name in after["by_family"]]
        cells = [f"{a:.0f} -> {b:.0f}" for a, b in pairs]
        print(f"{family:<22}" + "".join(f"{cell:>20}" for cell in cells))
    if "book_size" in final:
        print(f"\nMistake Book: {final['book_size']} tests at the end, {final['book_added']} added, "
              f"{final['book_removed']} removed")


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return float(sum(values) / len(values)) if values else 0.0


def reward_metrics(rewards: list[Rewards], executions: list[Execution], k: int) -> dict:
    """The part of a metrics row that steps 4 to 6 give."""
    coder, tester = [x.coder for x in rewards], [group for x in rewards for group in x.tester if group]
    row = {"reward_coder": mean(sum(coder, [])), "spread_coder": mean([len(set(group)) > 1 for group in coder]),
           "loads_rate": mean([loads for x in rewards for loads in x.loads]),
           "pass_new": mean([p for x in rewards for p in x.pass_new])}
    if executions:
        row |= {"reward_tester": mean(sum(tester, [])),
                "spread_tester": mean([len(set(group)) > 1 for group in tester]),
                "r_val": mean([v for x in rewards for v in x.r_val]),
                "r_adv": mean([a for x in rewards for a in x.r_adv]),
                "pass_hist": mean([p for x in rewards for p in x.pass_hist]),
                "valid_rate": mean([len(s.tests) / k for e in executions for suites in e.suites for s in suites])}
    return row


def role_metrics(role: str, player: Player, replies: list[Reply], stats: list[UpdateStats], step: int) -> dict:
    """The part of a metrics row that a role's replies and optimiser steps give; the latter weighted by their tokens."""
    tokens = sum(s.tokens for s in stats) or 1
    row = {f"{name}_{role}": sum(getattr(s, attribute) * s.tokens for s in stats) / tokens for name, attribute in
           (("loss", "loss"), ("kl", "kl"), ("clip", "clip_fraction"), ("grad_norm", "grad_norm"))}
    return row | {f"lr_{role}": player.policy.lr_at(step), f"tokens_{role}": sum(len(r.sample.ids) for r in replies),
                  f"truncated_{role}": mean([not r.sample.finished for r in replies])}


def line(row: dict, steps: int) -> str:
    """One step for a person."""
    text = f"{row['step']:>4}/{steps}  coder {row['reward_coder']:.3f} (new {row['pass_new']:.2f}"
    end = f"  {row['seconds']['total']:.1f} s"
    if "reward_tester" not in row:
        return f"{text})  kl {row['kl_coder']:.4f}{end}"
    return (f"{text}, book {row['pass_hist']:.2f})  tester {row['reward_tester']:.3f} (valid {row['r_val']:.2f}, "
            f"breaks {row['r_adv']:.2f})  book {row['book_size']} (+{row['book_added']} -{row['book_removed']})  "
            f"kl {row['kl_coder']:.4f} {row['kl_tester']:.4f}{end}")


def sample_rows(step: int, batch: list[Question], programs: list[list[Reply]], suites: list[list[list[Reply]]],
                rewards: list[Rewards]) -> list[dict]:
    """For samples.jsonl: every reply to these questions beside its reward, a row per program."""
    return [{"step": step, "question": question.id, "prompt": question.prompt, "program": program.text,
             "reward_coder": rewards[q].coder[m], "suites": [r.text for r in suites[q][m]] if suites else [],
             "reward_tester": rewards[q].tester[m]}
            for q, question in enumerate(batch) for m, program in enumerate(programs[q])]


class Clock:
    """Seconds by phase: `lap(name)` files the time since the last lap under name."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self.last = round(now - self.last, 3), now
        self.seconds["total"] = round(now - self.start, 3)


class Stop:
    """Ctrl-C (or SIGTERM). While programs and suites are written nothing has changed yet: stop at once. While the
    step's results go into book, weights and log (`busy`): finish them first, unless it comes twice."""

    def __init__(self) -> None:
        self.busy = self.asked = False

    def __enter__(self) -> Stop:
        self.old = {s: signal.signal(s, self.ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for s, handler in self.old.items():
            signal.signal(s, handler)

    def ask(self, signum: int, frame: object) -> None:
        if self.asked or not self.busy:
            raise KeyboardInterrupt
        self.asked = True
        print("\nstopping after this step; once more: at once, back to the last checkpoint", file=sys.stderr)


def batch_of(questions: list[Question], step: int, cfg: Config) -> tuple[int, list[Question]]:
    """(epoch, questions) of a step; every epoch has an order of its own that follows from the seed."""
    epoch, index = divmod(step - 1, len(questions) // cfg.batch_questions)
    order = np.random.default_rng([cfg.seed, epoch]).permutation(len(questions))
    return epoch + 1, [questions[i] for i in order[index * cfg.batch_questions:][:cfg.batch_questions]]


def train(run: Run, stop: Stop) -> None:
    """The steps that are left, each numbered as in the paper."""
    cfg, book, box = run.cfg, run.book, run.box
    coder, tester = run.players["coder"], run.players.get("tester", run.players["coder"])
    held = run.held["eval"] if cfg.eval_every else []
    steps = range(run.step + 1, cfg.steps + 1)
    for step in tqdm(steps, initial=run.step, total=cfg.steps, desc=cfg.name, unit="step", disable=None):
        clock = Clock()
        epoch, batch = batch_of(run.questions, step, cfg)
        row: dict = {"step": step, "epoch": epoch}

        # 1. programs
        prompts, programs = sample_programs(coder, batch, cfg, step)
        sources = [[reply.program for reply in replies] for replies in programs]
        clock.lap("programs")

        suites, executions, tester_parts = [], [], []
        if cfg.reward == "golden":
            rewards = list(run.pool.map(lambda q, programs: score_golden(box, q, programs), batch, sources))
            clock.lap("execution")
        else:
            # 2. suites; 3. history. A question goes to execution as soon as its last suite is written
            history = [[] if cfg.no_book else book.replay(q.id, cfg.asserts) for q in batch]
            jobs: dict[int, Future[Execution]] = {}

            def start(q: int, replies: list[list[Reply]]) -> None:
                texts = [[r.text for r in suite] for suite in replies]
                jobs[q] = run.pool.submit(execute, box, batch[q], sources[q], texts, history[q], cfg)  # noqa: B023

            tester_prompts, suites = sample_suites(tester, batch, programs, cfg, step, start)
            clock.lap("suites")
            # 4. validation; 5. execution: results enter in index order, whichever came first
            executions = [jobs[q].result() for q in range(len(batch))]
            clock.lap("execution")
            # 6. rewards
            rewards = [score(e, cfg.asserts, cfg.alpha) for e in executions]

        stop.busy = True
        if executions:
            # 7. book
            changes = [(0, 0) if cfg.no_book else update_book(book, q, e)
                       for q, e in zip(batch, executions, strict=True)]
            row |= {"book_size": len(book), "book_added": sum(added for added, _ in changes),
                    "book_removed": sum(removed for _, removed in changes)}
            # 8. TopVar; 9. advantages of the tester
            chosen = [topvar([t if ran else [] for t, ran in zip(r.tester, r.whole, strict=True)], cfg.topvar)
                      for r in rewards]
            row |= {"left_out": sum(not c for c in chosen), "skipped_prompts": sum(not s for x in suites for s in x)}
            groups = [[make_group(tester_prompts[q][m], suites[q][m], rewards[q].tester[m]) for m in chosen[q]]
                      for q in range(len(batch))]
            tester_parts = cut(groups, cfg.tester_minibatches)
        # 9. advantages of the coder
        coder_parts = cut([[make_group(p, r, x.coder)] for p, r, x in zip(prompts, programs, rewards, strict=True)],
                          cfg.coder_minibatches)
        # 10. updates; in self-play one policy takes the program minibatches, then the suite minibatches
        stats = coder.policy.step(coder_parts + tester_parts if cfg.self_play else coder_parts)
        coder_stats, tester_stats = stats[:len(coder_parts)], stats[len(coder_parts):]
        clock.lap("update_coder")
        if "tester" in run.players:
            tester_stats = tester.policy.step(tester_parts)
            clock.lap("update_tester")

        row |= reward_metrics(rewards, executions, cfg.asserts)
        row |= role_metrics("coder", coder, [r for x in programs for r in x], coder_stats, step)
        if executions:
            row |= role_metrics("tester", tester, [r for x in suites for y in x for r in y], tester_stats, step)
        row["skipped_updates"] = sum(s.skipped for s in [*coder_stats, *tester_stats])
        row["seconds"] = clock.seconds
        row["tokens_per_second"] = round((row["tokens_coder"] + row.get("tokens_tester", 0)) / (
            clock.seconds["programs"] + clock.seconds.get("suites", 0)), 1)
        if held and step % cfg.eval_every == 0:
            row["eval"] = evaluate(run, held)
        logged = batch[:cfg.log_questions]
        append_json(run.path / "samples.jsonl", *sample_rows(step, logged, programs, suites, rewards))
        append_json(run.path / "metrics.jsonl", row)
        tqdm.write(line(row, cfg.steps))
        run.step = step
        if step == cfg.steps or stop.asked or (cfg.save_every and step % cfg.save_every == 0):
            save_checkpoint(run)
        stop.busy = False
        if stop.asked:
            raise KeyboardInterrupt


def usable_questions(cfg: Config) -> list[Question]:
    """The questions whose prompt fits, for `--reward golden` with their tests that are understood (at least one); the
    others are skipped, and counted aloud."""
    tokenizer, questions = Tokenizer.from_pretrained(cfg.coder), load_questions(cfg.questions)
    fits = [q for q in questions
            if len(tokenizer.encode_chat(coder_messages(q, cfg.prompt_style))) <= cfg.coder_prompt_limit]
    if len(fits) < len(questions):
        print(f"{len(questions) - len(fits)} of {len(questions)} questions skipped: their prompt is over "
              f"{cfg.coder_prompt_limit} tokens (--coder-prompt-limit)", file=sys.stderr)
    if cfg.reward != "golden":
        return fits
    known = [dataclasses.replace(q, tests=tuple(t for t in q.tests if parse_assert(t, q.entry_point))) for q in fits]
    lost = sum(len(q.tests) for q in fits) - sum(len(q.tests) for q in known)
    tested = [q for q in known if q.tests]
    if lost or len(tested) < len(fits):
        print(f"--reward golden: {lost} tests are of a form that is not understood and left out, "
              f"{len(fits) - len(tested)} questions without a test are skipped", file=sys.stderr)
    return tested


def evaluation_questions(path: str) -> list[Question]:
    """The questions of a file that have golden tests; the others are skipped, and counted aloud."""
    questions = load_questions(path) if path else []
    golden = [q for q in questions if (q.hidden.golden if q.hidden else q.tests)]
    if len(golden) < len(questions):
        print(f"{path}: {len(questions) - len(golden)} of {len(questions)} questions have no golden tests and are "
              "skipped", file=sys.stderr)
    if questions and not golden:
        raise ValueError(f"{path} has no question with golden tests: it cannot be evaluated on")
    return golden


def open_run(given: dict, resume: str) -> Run:
    """A new run in a folder of its own, or one that goes on from its newest complete checkpoint."""
    cfg = resume_config(Path(resume), given) if resume else make_config(given)
    path = Path(cfg.out) / cfg.name
    if not resume and path.exists() and any(path.iterdir()):
        raise ValueError(f"{path} holds a run already: give another --name, or go on with it by --resume {path}")
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    if given.get("tester") and not has_tester(cfg):
        print("--tester is not used: in --self-play and with --reward golden there is the coder alone", file=sys.stderr)
    check_memory(cfg)
    questions = usable_questions(cfg)
    cfg = check_config(cfg, len(questions))
    held = {"eval": evaluation_questions(cfg.eval_questions), "final": evaluation_questions(cfg.final_questions)}
    run = Run(path, cfg, questions, load_players(cfg), MistakeBook(cfg.book_capacity), held)
    if not resume:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "config.json", describe(cfg, run.players))
        return run
    check_resumed(run)
    if folder := newest_checkpoint(path):
        load_checkpoint(folder, run)
    for log in ("metrics.jsonl", "samples.jsonl"):
        keep_lines(path / log, run.step)
    print(f"going on with {path} after step {run.step}", file=sys.stderr)
    return run


def work(run: Run, stop: Stop) -> None:
    """Evaluate, train, evaluate; Ctrl-C on the way saves."""
    held, start = run.held["final"], run.path / "start.json"
    if held and not start.exists():
        print(f"evaluating the start models on {len(held)} held-out questions", file=sys.stderr)
        write_json(start, evaluate(run, held))
    try:
        train(run, stop)
    except BaseException:  # Ctrl-C, and whatever else ends a run while nothing of it is half changed
        run.pool.shutdown(wait=False, cancel_futures=True)
        if not stop.busy and not (run.path / "checkpoints" / f"step_{run.step:06d}").exists():
            save_checkpoint(run)
        raise
    rows = [json.loads(text) for text in (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    final = {"steps": run.step, "seconds": round(sum(row["seconds"]["total"] for row in rows), 1)}
    if run.cfg.reward == "adversarial":
        final |= {"book_size": len(run.book), "book_added": sum(row["book_added"] for row in rows),
                  "book_removed": sum(row["book_removed"] for row in rows)}
    if held:
        final |= {"before": json.loads(start.read_text()), "after": evaluate(run, held)}
        print_final(final)
    write_json(run.path / "final.json", final)
    print(f"\n{run.step} steps in {final['seconds'] / 60:.1f} min; everything is in {run.path}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Exit status: 0; 2 for a setting that cannot work; 130 after Ctrl-C."""
    given, resume = parse_args(argv)
    try:
        run = open_run(given, resume)
        cfg = run.cfg
        run.box = Sandbox(workers=cfg.workers or None, timeout=cfg.timeout, memory_mb=cfg.memory_mb,
                          require_isolation=cfg.require_isolation)
    except (ValueError, OSError, SandboxError) as error:
        print(f"codea1: {error}", file=sys.stderr)
        return 2
    rest = f" x {cfg.suites} suites of {cfg.asserts}" if cfg.reward == "adversarial" else ", golden tests"
    print(f"{cfg.name}: {len(run.questions)} questions, {cfg.steps} steps of {cfg.batch_questions} x {cfg.programs} "
          f"programs{rest}, {cfg.dtype} on {cfg.device}", file=sys.stderr)
    try:
        with run.box, Stop() as stop:
            work(run, stop)
    except BaseException as error:
        print(f"\nstopped after step {run.step}; go on with: codea1 --resume {run.path}", file=sys.stderr)
        if not isinstance(error, KeyboardInterrupt):
            raise
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
