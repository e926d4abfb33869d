"""A run of Code-A1: settings, players, the run's folder, checkpoints, resume, log, Ctrl-C.

Nothing of the algorithm is here: codea1.py has it, and calls `main` with its loop.

    runs/NAME/config.json      settings, and digests of what else decides the results
              metrics.jsonl    one object per step; docs/metrics.md explains each name
              samples.jsonl    replies beside their rewards
              start.json, final.json               held-out figures before and after
              checkpoints/step_000050/             written whole or not at all
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
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tqdm import tqdm

from asserts import parse_assert
from eval import evaluate_coder, evaluate_tester
from grpo import Policy
from mistake_book import MistakeBook
from model import Config as ModelConfig
from model import Qwen2, Tokenizer, read_json
from sandbox import Sandbox, SandboxError
from tasks import Question, coder_messages, load_questions

HERE = Path(__file__).resolve().parent
FIGURES = ("golden_t1", "golden_greedy", "suite_right", "assert_accuracy", "kill", "mul")


# ---- settings ----


def choice(default: str, meaning: str, *choices: str):
    """A text among the settings; choices: what it may be, anything if there are none."""
    return field(default=default, metadata={"help": meaning, "choices": choices or None})


def switch(meaning: str):
    return field(default=False, metadata={"help": meaning})


def number(default: float, meaning: str, least: float = 0, most: float = math.inf):
    """A number among the settings, of its default's type, with its bounds."""
    return field(default=default, metadata={"help": meaning, "least": least, "most": most})


@dataclass(frozen=True)
class Config:
    """Every setting of a run. The defaults are the paper's (`--preset paper`)."""

    preset: str = choice("paper", "named settings, under the flags that are given", "tiny", "paper")
    coder: str = choice("", "checkpoint folder of the Code LLM (Hugging Face layout)")
    tester: str = choice("", "checkpoint folder of the Test LLM; empty: the coder's")
    questions: str = choice("", "questions to train on (.jsonl, .jsonl.gz, .json)")
    eval_questions: str = choice("", "questions evaluated every eval_every steps; empty: none")
    final_questions: str = choice("", "questions evaluated before and after the run; empty: none")
    prompt_style: str = choice("instruct", "prompts for chat models, or bare ones (embedded)",
                               "instruct", "plain")  # fmt: skip
    out: str = choice("runs", "folder of all runs")
    name: str = choice("", "folder of this run in --out; empty: preset and start time")
    seed: int = number(0, "seed of sampling and data order")
    steps: int = number(0, "training steps; 0: as many as epochs gives")
    epochs: int = number(3, "passes over the questions where steps is 0; the last incomplete batch "
                            "of a pass is dropped")  # fmt: skip
    batch_questions: int = number(256, "Q, questions per step", 1)
    programs: int = number(8, "M, programs per question", 1)
    suites: int = number(8, "N, suites per program", 1)
    asserts: int = number(8, "K, asserts of a suite, and tests replayed from the book", 1)
    alpha: float = number(0.5, "weight of validity in the tester's reward; 1 - alpha goes to "
                               "breaking the program", 0, 1)  # fmt: skip
    topvar: int = number(1, "programs per question whose suites train the tester", 1)
    reward: str = choice("adversarial", "tests that reward the coder: the tester's; or golden: the "
                         "question's own, and no tester", "adversarial", "golden")  # fmt: skip
    self_play: bool = switch("one model, the coder's, plays both roles")
    black_box: bool = switch("the tester does not see the program")
    no_book: bool = switch("no Mistake Book")
    book_capacity: int = number(64, "tests kept per question in the Mistake Book", 1)
    wrong_answers: str = choice("relabel", "a sound call with a wrong answer, invalid either "
                                "way: run it with the ground truth's answer, or not", "relabel",
                                "drop")  # fmt: skip
    coder_lr: float = number(1e-6, "peak learning rate of the coder")
    tester_lr: float = number(1e-6, "peak learning rate of the tester")
    warmup: int = number(10, "steps in which the learning rate rises, before its cosine to 0; 0: "
                             "none. In the tiny preset less than --steps by itself")  # fmt: skip
    weight_decay: float = number(0.1, "AdamW's, on all weights; 0: none")
    max_grad_norm: float = number(1.0, "gradients are scaled down to this norm; 0: never")
    coder_minibatches: int = number(2, "optimiser steps of the coder per training step", 1)
    tester_minibatches: int = number(2, "optimiser steps of the tester per training step", 1)
    clip_low: float = number(0.2, "the ratio is clipped below 1 - clip_low", 0, 1)
    clip_high: float = number(0.28, "the ratio is clipped above 1 + clip_high")
    dual_clip: float = number(10.0, "bound of the ratio where the advantage is negative", 1)
    kl_coef: float = number(0.001, "weight of the KL estimate to the start model; 0: none, and no "
                                   "reference in memory")  # fmt: skip
    temperature: float = number(1.0, "of sampling, and of the log-probs in the loss", 0.01)
    top_p: float = number(1.0, "nucleus of the rollouts; 1: off", 0.01, 1)
    coder_prompt_limit: int = number(4096, "tokens; a question with a longer prompt is skipped and "
                                           "counted", 1)  # fmt: skip
    tester_prompt_limit: int = number(8192, "tokens; a program with a longer prompt gets no suites "
                                            "and is counted", 1)  # fmt: skip
    coder_reply_limit: int = number(4096, "tokens of a program's reply", 1)
    tester_reply_limit: int = number(4096, "tokens of a suite's reply", 1)
    micro_tokens: int = number(16384, "tokens per forward pass of the update: memory, not the "
                                      "result", 1)  # fmt: skip
    checkpointing: bool = switch("recompute activations when going back: less memory, more time")
    offload: bool = switch("keep the idle policy's optimiser state in host memory")
    cuda_graphs: bool = switch("on a GPU, replay each step of a rollout as one graph")
    device: str = choice("auto", "cuda, cpu, or auto: cuda where there is one")
    dtype: str = choice("auto", "compute type; auto: bfloat16 on cuda, else float32", "auto",
                        "float32", "bfloat16")  # fmt: skip
    threads: int = number(0, "torch's CPU threads; 0: torch's choice. A run repeats bit for bit on "
                             "one number of them")  # fmt: skip
    workers: int = number(0, "sandbox workers; 0: one per core")
    timeout: float = number(2.0, "seconds of CPU time per call in the sandbox", 0.01)
    memory_mb: int = number(1024, "memory limit of a program in the sandbox, MiB", 64)
    require_isolation: bool = switch("refuse to start where a layer of the sandbox is missing")
    save_every: int = number(50, "steps between checkpoints; the last step is always saved")
    keep_checkpoints: int = number(0, "newest checkpoints kept; 0: all")
    eval_every: int = number(10, "steps between evaluations on eval_questions; 0: none")
    eval_samples: int = number(32, "programs, and suites, per question in evaluations", 1)
    eval_temperature: float = number(0.7, "sampling temperature of evaluations")
    eval_top_p: float = number(0.95, "nucleus of evaluations; 1: off", 0.01, 1)
    eval_seed: int = number(0, "seed of evaluations: runs of other seeds start from equal figures")
    log_questions: int = number(1, "questions per step whose prompts, replies and rewards go to "
                                   "samples.jsonl")  # fmt: skip

    @property
    def golden(self) -> bool:
        return self.reward == "golden"

    @property
    def has_tester(self) -> bool:
        """Whether a model of its own plays the tester."""
        return not self.golden and not self.self_play

    @property
    def keeps_book(self) -> bool:
        return not self.golden and not self.no_book


PRESETS: dict[str, dict] = {
    "paper": {},
    "tiny": dict(
        coder=str(HERE / "tiny/coder"), tester=str(HERE / "tiny/tester"),
        questions=str(HERE / "tiny/train.jsonl.gz"),
        eval_questions=str(HERE / "tiny/tune.jsonl.gz"),
        final_questions=str(HERE / "tiny/heldout.jsonl.gz"), prompt_style="plain", steps=90,
        batch_questions=12, programs=8, suites=4, asserts=5, topvar=3, coder_lr=4e-4,
        tester_lr=3e-4, warmup=5, weight_decay=0.0, tester_minibatches=1, threads=1,
        coder_prompt_limit=192, tester_prompt_limit=384, coder_reply_limit=96,
        tester_reply_limit=96, save_every=50, keep_checkpoints=2, eval_every=0, eval_samples=16,
        eval_temperature=1.0, eval_top_p=1.0,
    ),
}  # fmt: skip
# What may change when a run goes on: its results do not depend on it.
ON_RESUME = {"device", "workers", "require_isolation", "save_every", "keep_checkpoints",
             "log_questions"}  # fmt: skip


def parse_args(argv: Sequence[str] | None, description: str) -> tuple[dict, str]:
    """The flags that were given, by field name, and the run to resume ("" for a new one)."""
    parser = argparse.ArgumentParser(
        prog="codea1", allow_abbrev=False, description=description,
        epilog="docs/metrics.md explains every name in metrics.jsonl.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--resume", metavar="RUN", default="",
                        help="folder of a run to go on with (runs/NAME)")  # fmt: skip
    for f in dataclasses.fields(Config):
        tiny = PRESETS["tiny"].get(f.name, f.default)
        values = f"paper: {f.default!r}" + (f", tiny: {tiny!r}" if tiny != f.default else "")
        values = values.replace(str(HERE) + os.sep, "")
        text = f"{f.metadata['help']} ({values})".replace("%", "%%")
        how = {"type": type(f.default), "choices": f.metadata.get("choices")}
        if f.default is False:
            how = {"action": "store_true"}
        parser.add_argument(flag(f.name), default=argparse.SUPPRESS, help=text, **how)
    given = vars(parser.parse_args(argv))
    return given, given.pop("resume")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def make_config(given: dict) -> Config:
    """Preset, then the given values on top. A model or a questions file selects the paper's."""
    if unknown := set(given) - {f.name for f in dataclasses.fields(Config)}:
        names = ", ".join(sorted(unknown))
        raise ValueError(f"unknown setting {names}: `codea1 --help` lists them")
    real = any(given.get(name) for name in ("coder", "tester", "questions"))
    preset = given.get("preset", "paper" if real else "tiny")
    if preset not in PRESETS:
        raise ValueError(f"--preset is {preset!r}: there are {' and '.join(PRESETS)}")
    cfg = Config(**{**PRESETS[preset], **given, "preset": preset})
    if preset == "tiny" and "warmup" not in given:  # a short look needs no other flag
        cfg = dataclasses.replace(cfg, warmup=min(cfg.warmup, max(cfg.steps - 1, 0)))
    if not cfg.coder or not cfg.questions:
        raise ValueError("the paper preset needs --coder DIR and --questions FILE (and --tester "
                         "DIR for another start model); without any of them `codea1` runs the "
                         "embedded default")  # fmt: skip
    name = cfg.name or time.strftime(f"{preset}-%Y%m%d-%H%M%S")
    return choose_device(dataclasses.replace(cfg, name=name, tester=cfg.tester or cfg.coder))


def choose_device(cfg: Config) -> Config:
    """The settings with "auto" resolved; ValueError for a device that is not there."""
    device, there = cfg.device, torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if there else "cpu"
    if device != "cpu" and not (device.partition(":")[0] == "cuda" and there):
        raise ValueError(f"--device is {device!r}: it is cpu, or cuda (cuda:1, ...) where torch "
                         "finds a GPU")  # fmt: skip
    dtype = cfg.dtype
    if dtype == "auto":
        dtype = "bfloat16" if device.startswith("cuda") else "float32"
    return dataclasses.replace(cfg, device=device, dtype=dtype)


def check_config(cfg: Config, n_questions: int) -> Config:
    """ValueError for what cannot work, with what to set; `steps` 0 is resolved from `epochs`."""
    for f in dataclasses.fields(Config):
        least, most = f.metadata.get("least"), f.metadata.get("most")
        if least is not None and not least <= getattr(cfg, f.name) <= most:
            wanted = f"between {least:g} and {most:g}" if most < math.inf else f"at least {least:g}"
            raise ValueError(f"{flag(f.name)} is {getattr(cfg, f.name)}: it must be {wanted}")
    if n_questions < cfg.batch_questions:
        raise ValueError(f"{cfg.questions} has {n_questions} usable questions, fewer than a batch "
                         f"of {cfg.batch_questions}: set --batch-questions to at most "
                         f"{n_questions}")  # fmt: skip
    steps = cfg.steps or cfg.epochs * (n_questions // cfg.batch_questions)
    if cfg.warmup >= steps:
        raise ValueError(f"a warm-up of {cfg.warmup} steps leaves nothing of a run of {steps}: set "
                         f"--warmup below {steps} or --steps above {cfg.warmup}")  # fmt: skip
    return dataclasses.replace(cfg, steps=steps)


# ---- players ----


@dataclass(frozen=True)
class Player:
    """One role: its policy and tokenizer. In self-play both roles are the same object."""

    policy: Policy
    tokenizer: Tokenizer


def load_player(path: str, cfg: Config, lr: float, reference: Qwen2 | None) -> Player:
    """A checkpoint folder with its optimiser. reference: a frozen start model to share, or None
    for one of its own."""
    model = Qwen2.from_pretrained(path, dtype=getattr(torch, cfg.dtype), device=cfg.device)
    tokenizer = Tokenizer.from_pretrained(path)
    policy = Policy(
        model, lr=lr, steps=cfg.steps, warmup=cfg.warmup, weight_decay=cfg.weight_decay,
        kl_coef=cfg.kl_coef, max_grad_norm=cfg.max_grad_norm, clip_low=cfg.clip_low,
        clip_high=cfg.clip_high, dual_clip=cfg.dual_clip, temperature=cfg.temperature,
        vocab_size=len(tokenizer), micro_tokens=cfg.micro_tokens, reference=reference,
        checkpointing=cfg.checkpointing, offload=cfg.offload,
    )  # fmt: skip
    return Player(policy, tokenizer)


def load_players(cfg: Config) -> dict[str, Player]:
    """{"coder": …} and, where a model of its own plays it, {"tester": …}; one reference for one
    start folder."""
    players = {"coder": load_player(cfg.coder, cfg, cfg.coder_lr, None)}
    if cfg.has_tester:
        shared = players["coder"].policy.reference if same_start(cfg) else None
        players["tester"] = load_player(cfg.tester, cfg, cfg.tester_lr, shared)
    return players


def same_start(cfg: Config) -> bool:
    """Whether both roles start from the same checkpoint folder."""
    return os.path.realpath(cfg.coder) == os.path.realpath(cfg.tester)


def memory_bytes(n_coder: int, n_tester: int, compute_bytes: int, offload: bool,
                 references: int) -> int:  # fmt: skip
    """Bytes of weights and optimiser state on the device, activations and cache apart; n:
    parameters (0: no such role).

    Per parameter of a policy: compute_bytes of weights that sample and differentiate, 4 of float32
    gradient, 4 of master weight (none apart where the compute type is float32) and 8 of AdamW
    moments. With offload the idle policy keeps its weights alone. Each of the `references` frozen
    start models (of the larger size) adds compute_bytes.
    """
    state = 4 + (0 if compute_bytes == 4 else 4) + 8
    larger, smaller = max(n_coder, n_tester), min(n_coder, n_tester)
    total = (larger + smaller + references * larger) * compute_bytes + larger * state
    return total if offload else total + smaller * state


def activation_bytes(c: ModelConfig, tokens: int, compute_bytes: int, checkpointing: bool) -> int:
    """Bytes that a forward pass over `tokens` keeps for its backward pass: 53 (in bfloat16,
    measured: see Policy) per token, layer and unit of the hidden size; with checkpointing those of
    one layer, and the inputs of all."""
    unit = tokens * c.hidden_size * compute_bytes // 2
    if checkpointing:
        return 53 * unit + 2 * unit * c.num_hidden_layers
    return 53 * unit * c.num_hidden_layers


def check_memory(cfg: Config) -> None:
    """On a GPU: a run whose weights, optimiser state and activations do not fit is refused before
    any is loaded."""
    if not cfg.device.startswith("cuda"):
        return
    paths = [cfg.coder, cfg.tester] if cfg.has_tester else [cfg.coder]
    width = 4 if cfg.dtype == "float32" else 2
    configs = [ModelConfig.from_dict(read_json(Path(path) / "config.json")) for path in paths]
    with torch.device("meta"):
        sizes = [sum(p.numel() for p in Qwen2(c).parameters()) for c in configs]
    references = 0 if cfg.kl_coef == 0 else 1 if same_start(cfg) else len(sizes)
    state = memory_bytes(sizes[0], sum(sizes[1:]), width, cfg.offload, references) / 2**30
    needed = [activation_bytes(c, cfg.micro_tokens, width, cfg.checkpointing) for c in configs]
    passing = max(needed) / 2**30
    have = torch.cuda.get_device_properties(cfg.device).total_memory / 2**30
    if state + passing > 0.92 * have:
        flags = ["--checkpointing"] * (not cfg.checkpointing) + ["--offload"] * (not cfg.offload)
        raise ValueError(
            f"{' + '.join(f'{n / 1e9:.2f}' for n in sizes)} billion parameters need {state:.0f} "
            f"GiB of weights, gradients and optimiser state, and {passing:.0f} GiB of activations "
            f"for --micro-tokens {cfg.micro_tokens}; {cfg.device} has {have:.0f} GiB. There are "
            f"{', '.join([*flags, 'smaller --micro-tokens'])} and smaller models")  # fmt: skip


# ---- files ----


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
    """Drop what a log says of steps after `step` (they will be run again), and a last line that
    was cut."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [text for text in lines if text.endswith("\n")]
        write_text(path, "".join(text for text in whole if json.loads(text)["step"] <= step))


def fingerprint(model: Qwen2) -> str:
    """A digest of the names, shapes and first values of all weights: tells two models apart at no
    cost."""
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


def usable_questions(cfg: Config) -> list[Question]:
    """The questions whose prompt fits, for `--reward golden` with their tests that are understood
    (at least one); the others are skipped, and counted aloud."""
    tokenizer = Tokenizer.from_pretrained(cfg.coder)
    questions, fits = load_questions(cfg.questions), []
    for question in questions:
        prompt = tokenizer.encode_chat(coder_messages(question, cfg.prompt_style))
        fits += [question] if len(prompt) <= cfg.coder_prompt_limit else []
    if len(fits) < len(questions):
        say(f"{len(questions) - len(fits)} of {len(questions)} questions skipped: their prompt is "
            f"over {cfg.coder_prompt_limit} tokens (--coder-prompt-limit)")  # fmt: skip
    if not cfg.golden:
        return fits
    known = []
    for question in fits:
        tests = tuple(text for text in question.tests if parse_assert(text, question.entry_point))
        known.append(dataclasses.replace(question, tests=tests))
    lost = sum(len(q.tests) for q in fits) - sum(len(q.tests) for q in known)
    tested = [q for q in known if q.tests]
    if lost or len(tested) < len(fits):
        say(f"--reward golden: {lost} tests are of a form that is not understood and left out, "
            f"{len(fits) - len(tested)} questions without a test are skipped")  # fmt: skip
    return tested


def evaluation_questions(path: str) -> list[Question]:
    """The questions of a file that have golden tests; the others are skipped, and counted aloud."""
    questions = load_questions(path) if path else []
    golden = [q for q in questions if (q.hidden.golden if q.hidden else q.tests)]
    if len(golden) < len(questions):
        say(f"{path}: {len(questions) - len(golden)} of {len(questions)} questions have no golden "
            "tests and are skipped")  # fmt: skip
    if questions and not golden:
        raise ValueError(f"{path} has no question with golden tests: it cannot be evaluated on")
    return golden


def say(text: str) -> None:
    print(text, file=sys.stderr)


# ---- a run at work ----


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
    """Ctrl-C (or SIGTERM). While programs and suites are written nothing has changed yet: stop at
    once. While the step's results go into book, weights and log (`busy`): finish them first, unless
    it comes twice."""

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
        say("\nstopping after this step; once more: at once, back to the last checkpoint")


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
    stop: Stop = field(default_factory=Stop)
    pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2 * (os.cpu_count() or 1)))  # fmt: skip

    def steps(self) -> Iterator[int]:
        """The steps that are left. Behind each: a checkpoint where one is due, and the end where
        it was asked for."""
        cfg = self.cfg
        left = range(self.step + 1, cfg.steps + 1)
        for step in tqdm(left, cfg.name, cfg.steps, initial=self.step, unit="step", disable=None):
            yield step
            self.step = step
            due = cfg.save_every and step % cfg.save_every == 0
            if step == cfg.steps or self.stop.asked or due:
                save_checkpoint(self)
            self.stop.busy = False
            if self.stop.asked:
                raise KeyboardInterrupt

    def log(self, step: int, clock: Clock, batch: list, programs: list, suites: dict,
            executions: list, rewards: list, chosen: list, changes: list,
            stats: dict) -> None:  # fmt: skip
        """Write a step's row of metrics.jsonl and its samples, and a line for a person."""
        cfg = self.cfg
        epoch = (step - 1) // (len(self.questions) // cfg.batch_questions) + 1
        row = {"step": step, "epoch": epoch, **reward_metrics(rewards, executions, cfg)}
        if not cfg.golden:
            rows = [replies for row in suites.values() for replies in row]
            row |= {"book_size": len(self.book), "book_added": sum(a for a, _ in changes),
                    "book_removed": sum(r for _, r in changes),
                    "left_out": sum(not c for c in chosen),
                    "skipped_prompts": sum(not replies.samples for replies in rows)}  # fmt: skip
            tester = self.players.get("tester", self.players["coder"])
            row |= role_metrics("tester", tester, rows, stats["tester"], step)
        row |= role_metrics("coder", self.players["coder"], programs, stats["coder"], step)
        row["skipped_updates"] = sum(s.skipped for s in stats["coder"] + stats["tester"])
        row["seconds"] = clock.seconds
        written = row["tokens_coder"] + row.get("tokens_tester", 0)
        sampling = clock.seconds["programs"] + clock.seconds["suites"]
        row["tokens_per_second"] = round(written / sampling, 1)
        if cfg.eval_every and step % cfg.eval_every == 0 and self.held["eval"]:
            row["eval"] = evaluate(self, self.held["eval"])
        samples = sample_rows(step, batch[: cfg.log_questions], programs, suites, rewards)
        append_json(self.path / "samples.jsonl", *samples)
        append_json(self.path / "metrics.jsonl", row)
        tqdm.write(line(row, cfg.steps))


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return float(sum(values) / len(values)) if values else 0.0


def reward_metrics(rewards: list, executions: list, cfg: Config) -> dict:
    """The part of a metrics row that steps 4 to 6 give: of codea1.Rewards and codea1.Execution of
    each question."""
    coder = [x.coder for x in rewards]
    row = {
        "reward_coder": mean(sum(coder, [])),
        "spread_coder": mean([len(set(group)) > 1 for group in coder]),
        "loads_rate": mean([loads for x in rewards for loads in x.loads]),
        "pass_new": mean([p for x in rewards for p in x.pass_new]),
    }
    if cfg.golden:
        return row
    tester = [group for x in rewards for group in x.tester if group]
    suites = [suite for e in executions for row in e.suites for suite in row]
    return row | {
        "reward_tester": mean(sum(tester, [])),
        "spread_tester": mean([len(set(group)) > 1 for group in tester]),
        "r_val": mean([v for x in rewards for v in x.r_val]),
        "r_adv": mean([a for x in rewards for a in x.r_adv]),
        "pass_hist": mean([p for x in rewards for p in x.pass_hist]),
        "valid_rate": mean([len(suite.tests) / cfg.asserts for suite in suites]),
    }


def role_metrics(role: str, player: Player, replies: list, stats: list, step: int) -> dict:
    """The part of a metrics row that a role's replies (codea1.Replies) and optimiser steps give;
    the latter weighted by their tokens."""
    samples = [one for group in replies for one in group.samples]
    tokens = sum(s.tokens for s in stats) or 1
    row = {}
    for name, attribute in {"loss": "loss", "kl": "kl", "clip": "clip_fraction",
                            "grad_norm": "grad_norm"}.items():  # fmt: skip
        row[f"{name}_{role}"] = sum(getattr(s, attribute) * s.tokens for s in stats) / tokens
    return row | {
        f"lr_{role}": player.policy.lr_at(step),
        f"tokens_{role}": sum(len(one.ids) for one in samples),
        f"truncated_{role}": mean([not one.finished for one in samples]),
    }


def sample_rows(step: int, batch: list[Question], programs: list, suites: dict,
                rewards: list) -> list[dict]:  # fmt: skip
    """For samples.jsonl: every reply to these questions beside its reward, a row per program."""
    rows = []
    for q, question in enumerate(batch):
        for m, text in enumerate(programs[q].texts):
            rows.append({
                "step": step, "question": question.id, "prompt": question.prompt, "program": text,
                "reward_coder": rewards[q].coder[m], "suites": suites[q][m].texts,
                "reward_tester": rewards[q].tester[m] if suites[q][m].texts else [],
            })  # fmt: skip
    return rows


def line(row: dict, steps: int) -> str:
    """One step for a person."""
    text = f"{row['step']:>4}/{steps}  coder {row['reward_coder']:.3f} (new {row['pass_new']:.2f}"
    end = f"  {row['seconds']['total']:.1f} s"
    if "reward_tester" not in row:
        return f"{text})  kl {row['kl_coder']:.4f}{end}"
    return (
        f"{text}, book {row['pass_hist']:.2f})  tester {row['reward_tester']:.3f} (valid "
        f"{row['r_val']:.2f}, breaks {row['r_adv']:.2f})  book {row['book_size']} "
        f"(+{row['book_added']} -{row['book_removed']})  kl {row['kl_coder']:.4f} "
        f"{row['kl_tester']:.4f}{end}"
    )  # fmt: skip


# ---- evaluation, before, on the way and after ----


def evaluate(run: Run, questions: list[Question]) -> dict:
    """In percent, with standard errors and by family: golden_t1 and golden_greedy of the coder;
    suite_right, assert_accuracy, kill and mul of the tester (in self-play the same model)."""
    cfg, box, coder = run.cfg, run.box, run.players["coder"]
    common = dict(style=cfg.prompt_style, temperature=cfg.eval_temperature, top_p=cfg.eval_top_p,
                  seed=cfg.eval_seed)  # fmt: skip
    t1, greedy = (
        evaluate_coder(coder.policy.model, coder.tokenizer, questions, box, n=n, greedy=n == 0,
                       max_new_tokens=cfg.coder_reply_limit, **common)
        for n in (cfg.eval_samples, 0)
    )  # fmt: skip
    result = {"golden_t1": t1.rate, "golden_greedy": greedy.rate, "n_questions": t1.n_questions,
              "stderr": {"golden_t1": t1.stderr, "golden_greedy": greedy.stderr},
              "by_family": {"golden_t1": t1.by_family}}  # fmt: skip
    if cfg.golden:
        return result
    tester = run.players.get("tester", coder)
    t = evaluate_tester(tester.policy.model, tester.tokenizer, questions, box,
                        suites=cfg.eval_samples, asserts=cfg.asserts, black_box=cfg.black_box,
                        max_new_tokens=cfg.tester_reply_limit, **common)  # fmt: skip
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
        change = after[name] - before[name]
        print(f"{name:<18}{cells[0]:>16}{cells[1]:>16}{change:>+9.1f}")
    figures = after["by_family"]
    print(f"\n{'by family':<22}" + "".join(f"{name:>20}" for name in figures))
    for family in sorted(figures["golden_t1"]):
        cells = []
        for name in figures:
            cells.append(f"{before['by_family'][name][family]:.0f} -> {figures[name][family]:.0f}")
        print(f"{family:<22}" + "".join(f"{cell:>20}" for cell in cells))
    if "book_size" in final:
        print(f"\nMistake Book: {final['book_size']} tests at the end, {final['book_added']} "
              f"added, {final['book_removed']} removed")  # fmt: skip


# ---- checkpoints and resume ----


def save_checkpoint(run: Run) -> None:
    """Everything a run needs to go on, in one folder that appears at once: written aside, synced,
    renamed.

    {coder,tester}/ in Hugging Face layout, {coder,tester}.pt (master weights, moments, schedule),
    book.json, manifest.json.
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
    paths = [f for f in sorted(part.rglob("*")) if f.is_file()]
    files = {str(f.relative_to(part)): f.stat().st_size for f in paths}
    weights = {role: fingerprint(player.policy.model) for role, player in run.players.items()}
    write_json(part / "manifest.json", {"step": run.step, "weights": weights, "files": files})
    for name in [*files, "manifest.json"]:
        sync(part / name)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(part, final)
    sync(final.parent)
    if run.cfg.keep_checkpoints:
        for old in sorted(final.parent.glob("step_??????"))[: -run.cfg.keep_checkpoints]:
            shutil.rmtree(old)


def newest_checkpoint(path: Path) -> Path | None:
    """The newest complete checkpoint of a run; an incomplete one is skipped, aloud."""
    for folder in sorted((path / "checkpoints").glob("step_*"), reverse=True):
        try:
            files = json.loads((folder / "manifest.json").read_text())["files"]
            whole = all((folder / f).stat().st_size == size for f, size in files.items())
            if folder.suffix != ".part" and whole:
                return folder
        except (OSError, ValueError, KeyError):
            pass
        say(f"skipping the incomplete checkpoint {folder}")
    return None


def load_checkpoint(folder: Path, run: Run) -> None:
    """Put a checkpoint's weights, moments, schedule, book and step into the run."""
    manifest = json.loads((folder / "manifest.json").read_text())
    if set(manifest["weights"]) != set(run.players):
        there, wanted = sorted(manifest["weights"]), sorted(run.players)
        raise ValueError(f"{folder} holds {there}, this run has {wanted}")
    for role, player in run.players.items():
        state = torch.load(folder / f"{role}.pt", map_location="cpu", weights_only=True)
        player.policy.load_state_dict(state)
        found = fingerprint(player.policy.model), player.policy.t
        if found != (manifest["weights"][role], manifest["step"]):
            raise ValueError(f"{folder}/{role}.pt is not the {role} that was saved there: were "
                             "files exchanged?")  # fmt: skip
    run.book, run.step = MistakeBook.load(folder / "book.json"), manifest["step"]


def describe(cfg: Config, players: dict[str, Player]) -> dict:
    """config.json: the settings, and what else decides the results of a run."""
    return {
        **dataclasses.asdict(cfg),
        "questions_sha256": hashlib.sha256(Path(cfg.questions).read_bytes()).hexdigest(),
        "start_weights": {role: fingerprint(p.policy.model) for role, p in players.items()},
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
    }


def resume_config(path: Path, given: dict) -> Config:
    """The settings of a run that goes on. Flags that would change its results are refused, the
    others are said."""
    if not (path / "config.json").exists():
        raise ValueError(f"{path} holds no run: there is no config.json in it")
    saved = json.loads((path / "config.json").read_text())
    cfg = Config(**{f.name: saved.get(f.name, f.default) for f in dataclasses.fields(Config)})
    for name, value in given.items():
        was = getattr(cfg, name)
        if value != was and name not in ON_RESUME:
            raise ValueError(f"{flag(name)} was {was!r}, now {value!r}: a resumed run keeps its "
                             "settings; start a new run")  # fmt: skip
        if value != was:
            say(f"resumed with {flag(name)} {value!r} instead of {was!r}")
    return choose_device(dataclasses.replace(
        cfg, **{**given, "out": str(path.parent), "name": path.name}))  # fmt: skip


def check_resumed(run: Run) -> None:
    """The question file and the start models must be those that the run began with."""
    saved = json.loads((run.path / "config.json").read_text())
    now = describe(run.cfg, run.players)
    if saved["questions_sha256"] != now["questions_sha256"]:
        raise ValueError(f"{run.cfg.questions} has changed since {run.path} started: a resumed run "
                         "needs the same file")  # fmt: skip
    if saved["start_weights"] != now["start_weights"]:
        raise ValueError(f"{run.cfg.coder} and {run.cfg.tester} do not hold the models that "
                         f"{run.path} started from")  # fmt: skip
    for key in ("torch", "torch_threads"):
        if saved[key] != now[key]:
            say(f"{key} was {saved[key]}, is {now[key]}: the run will not repeat bit for bit")


# ---- from the command line to the end ----


def open_run(given: dict, resume: str) -> Run:
    """A new run in a folder of its own, or one that goes on from its newest complete checkpoint."""
    cfg = resume_config(Path(resume), given) if resume else make_config(given)
    path = Path(cfg.out) / cfg.name
    if not resume and path.exists() and any(path.iterdir()):
        raise ValueError(f"{path} holds a run already: give another --name, or go on with it by "
                         f"--resume {path}")  # fmt: skip
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    if given.get("tester") and not cfg.has_tester:
        say("--tester is not used: with --self-play or --reward golden there is the coder alone")
    check_memory(cfg)
    questions = usable_questions(cfg)
    cfg = check_config(cfg, len(questions))
    held = {"eval": evaluation_questions(cfg.eval_questions),
            "final": evaluation_questions(cfg.final_questions)}  # fmt: skip
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
    say(f"going on with {path} after step {run.step}")
    return run


def work(run: Run, train: Callable[[Run], None]) -> None:
    """Evaluate, train, evaluate; Ctrl-C on the way saves."""
    held, start = run.held["final"], run.path / "start.json"
    if held and not start.exists():
        say(f"evaluating the start models on {len(held)} held-out questions")
        write_json(start, evaluate(run, held))
    try:
        train(run)
    except BaseException:  # Ctrl-C, and whatever else ends a run while nothing is half changed
        run.pool.shutdown(wait=False, cancel_futures=True)
        saved = run.path / "checkpoints" / f"step_{run.step:06d}"
        if not run.stop.busy and not saved.exists():
            save_checkpoint(run)
        raise
    rows = [json.loads(text) for text in (run.path / "metrics.jsonl").read_text().splitlines()]
    seconds = sum(row["seconds"]["total"] for row in rows)
    final = {"steps": run.step, "seconds": round(seconds, 1)}
    if not run.cfg.golden:
        final |= {"book_size": len(run.book), "book_added": sum(row["book_added"] for row in rows),
                  "book_removed": sum(row["book_removed"] for row in rows)}  # fmt: skip
    if held:
        final |= {"before": json.loads(start.read_text()), "after": evaluate(run, held)}
        print_final(final)
    write_json(run.path / "final.json", final)
    print(f"\n{run.step} steps in {seconds / 60:.1f} min; everything is in {run.path}")


def main(argv: Sequence[str] | None, description: str, train: Callable[[Run], None]) -> int:
    """The command line of codea1.py. Exit status: 0; 2 for a setting that cannot work; 130 after
    Ctrl-C."""
    given, resume = parse_args(argv, description)
    try:
        run = open_run(given, resume)
        cfg = run.cfg
        run.box = Sandbox(cfg.workers or None, cfg.timeout, cfg.memory_mb, cfg.require_isolation)
    except (ValueError, OSError, SandboxError) as error:
        say(f"codea1: {error}")
        return 2
    rest = ", golden tests" if cfg.golden else f" x {cfg.suites} suites of {cfg.asserts}"
    say(f"{cfg.name}: {len(run.questions)} questions, {cfg.steps} steps of {cfg.batch_questions} x "
        f"{cfg.programs} programs{rest}, {cfg.dtype} on {cfg.device}")  # fmt: skip
    try:
        with run.box, run.stop:
            work(run, train)
    except BaseException as error:
        say(f"\nstopped after step {run.step}; go on with: codea1 --resume {run.path}")
        if not isinstance(error, KeyboardInterrupt):
            raise
        return 130
    return 0
