"""A run of Code-A1: settings, players, the run's folder, checkpoints, resume, log, Ctrl-C.

The algorithm is in codea1.py, which calls `main` with its loop.

    runs/NAME/config.json      settings, and digests of what else decides the results
              metrics.jsonl    one object per step; docs/metrics.md explains each name
              samples.jsonl    replies beside their rewards
              start.json, final.json               held-out figures before and after
              checkpoints/step_000050/             written whole or not at all
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TextIO

import torch
from tqdm import tqdm

from asserts import parse_assert
from benchmarks import understood
from eval import evaluate_coder, evaluate_tester
from grpo import Policy
from mistake_book import MistakeBook
from model import Config as ModelConfig
from model import Qwen2, Tokenizer, file_digest, read_json
from sandbox import Sandbox, SandboxError, Status
from tasks import Question, coder_messages, load_questions

HERE = Path(__file__).resolve().parent
VERSION = "0.1.0"  # pyproject.toml's


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
    prompt_style: str = choice("instruct", "for chat models, or bare", "instruct", "plain")
    out: str = choice("runs", "folder of all runs")
    name: str = choice("", "folder of this run in --out; empty: preset and start time")
    seed: int = number(0, "seed of sampling and data order")
    steps: int = number(0, "training steps; 0: as many as epochs gives")
    epochs: int = number(3, "passes over the questions, in whole batches, where steps is 0")
    batch_questions: int = number(256, "Q, questions per step", 1)
    programs: int = number(8, "M, programs per question", 1)
    suites: int = number(8, "N, suites per program", 1)
    asserts: int = number(8, "K, asserts of a suite, and tests replayed from the book", 1)
    alpha: float = number(0.5, "weight of validity in the tester's reward, against breaking", 0, 1)
    topvar: int = number(1, "programs per question whose suites train the tester", 1)
    reward: str = choice(
        "adversarial", "tests that reward the coder: the tester's; or golden: the question's own, "
        "and no tester", "adversarial", "golden",
    )
    self_play: bool = switch("one model, the coder's, plays both roles")
    black_box: bool = switch("the tester does not see the program")
    no_book: bool = switch("no Mistake Book")
    book_capacity: int = number(64, "tests kept per question in the Mistake Book", 1)
    wrong_answers: str = choice(
        "relabel", "a sound call with a wrong answer, invalid either way: run it with the ground "
        "truth's answer, or not", "relabel", "drop",
    )
    coder_lr: float = number(1e-6, "peak learning rate of the coder")
    tester_lr: float = number(1e-6, "peak learning rate of the tester")
    warmup: int = number(10, "steps of rising learning rate, before its cosine to 0; 0: none")
    weight_decay: float = number(0.1, "AdamW's, on all weights; 0: none")
    max_grad_norm: float = number(1.0, "gradients are scaled down to this norm; 0: never")
    coder_minibatches: int = number(2, "optimiser steps of the coder per training step", 1)
    tester_minibatches: int = number(2, "optimiser steps of the tester per training step", 1)
    clip_low: float = number(0.2, "the ratio is clipped below 1 - clip_low", 0, 1)
    clip_high: float = number(0.28, "the ratio is clipped above 1 + clip_high")
    dual_clip: float = number(10.0, "bound of the ratio where the advantage is negative", 1)
    kl_coef: float = number(0.001, "weight of the KL to the start model; 0: no such model is kept")
    temperature: float = number(1.0, "of sampling, and of the log-probs in the loss", 0.01)
    top_p: float = number(1.0, "nucleus of the rollouts; 1: off", 0.01, 1)
    coder_prompt_limit: int = number(4096, "tokens; longer questions are skipped and counted", 1)
    tester_prompt_limit: int = number(8192, "tokens; a program with more gets no suites", 1)
    coder_reply_limit: int = number(4096, "tokens of a program's reply", 1)
    tester_reply_limit: int = number(4096, "tokens of a suite's reply", 1)
    micro_tokens: int = number(16384, "tokens per forward pass of an update: memory alone", 1)
    checkpointing: bool = switch("recompute activations when going back: less memory, more time")
    offload: bool = switch("keep the idle policy's optimiser state in host memory")
    cuda_graphs: bool = switch("on a GPU, replay each step of a rollout as one graph")
    device: str = choice("auto", "cuda, cpu, or auto: cuda where there is one")
    dtype: str = choice(
        "auto", "compute type; auto: bfloat16 on cuda, else float32", "auto", "float32", "bfloat16"
    )
    threads: int = number(0, "torch's CPU threads; 0: its choice. A run repeats on as many")
    workers: int = number(0, "sandbox workers; 0: one per core")
    timeout: float = number(2.0, "seconds of CPU time per call in the sandbox", 0.01)
    memory_mb: int = number(1024, "memory limit of a program in the sandbox, MiB", 64)
    require_isolation: bool = switch("refuse to start where a layer of the sandbox is missing")
    save_every: int = number(50, "steps between checkpoints; the last step is always saved")
    keep_checkpoints: int = number(0, "newest checkpoints kept; 0: all. N need room for N + 1")
    eval_every: int = number(10, "steps between evaluations on eval_questions; 0: none")
    eval_samples: int = number(32, "programs, and suites, per question in evaluations", 1)
    eval_temperature: float = number(0.7, "sampling temperature of evaluations")
    eval_top_p: float = number(0.95, "nucleus of evaluations; 1: off", 0.01, 1)
    eval_seed: int = number(0, "seed of evaluations: runs of other seeds start from equal figures")
    log_questions: int = number(1, "questions per step whose replies go to samples.jsonl")

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
}
# What may change when a run goes on: its results do not depend on it.
ON_RESUME = "device workers require_isolation save_every keep_checkpoints log_questions".split()
# Known by what is in them, so that they may have moved.
FILES = ["questions", "eval_questions", "final_questions"]
PATHS = ["coder", "tester", *FILES]


def parse_args(argv: Sequence[str] | None, description: str) -> tuple[dict, str]:
    """The flags that were given, by field name, and the run to resume ("" for a new one)."""
    parser = argparse.ArgumentParser(
        prog="codea1", allow_abbrev=False, description=description,
        epilog="docs/metrics.md explains every name in metrics.jsonl.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.error = lambda text: parser.exit(2, f"codea1: {text}\nall flags: codea1 --help\n")
    parser.add_argument("--version", action="version", version=f"codea1 {VERSION}")
    parser.add_argument("--resume", metavar="RUN", default="", help="a run's folder, to go on")
    for f in fields(Config):
        values, tiny = f"paper: {f.default!r}", PRESETS["tiny"].get(f.name, f.default)
        if tiny != f.default:
            values += f", tiny: {tiny!r}".replace(str(HERE) + os.sep, "")
        text = f"{f.metadata['help']} ({values})"
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
    if unknown := set(given) - set(Config.__dataclass_fields__):
        names = ", ".join(sorted(unknown))
        raise ValueError(f"unknown setting {names}: `codea1 --help` lists them")
    real = any(given.get(name) for name in ("coder", "tester", "questions"))
    preset = given.get("preset", "paper" if real else "tiny")
    if preset not in PRESETS:
        raise ValueError(f"--preset is {preset!r}: there are {' and '.join(PRESETS)}")
    cfg = Config(**{**PRESETS[preset], **given, "preset": preset})
    if preset == "tiny" and "warmup" not in given:  # a short look needs no other flag
        cfg = replace(cfg, warmup=min(cfg.warmup, max(cfg.steps - 1, 0)))
    if not cfg.coder or not cfg.questions:
        raise ValueError(
            "the paper preset needs --coder DIR and --questions FILE (and --tester DIR for another "
            "start model); without any of them `codea1` runs the embedded default"
        )
    name = cfg.name or time.strftime(f"{preset}-%Y%m%d-%H%M%S")
    return choose_device(replace(cfg, name=name, tester=cfg.tester or cfg.coder))


def choose_device(cfg: Config) -> Config:
    """The settings with "auto" resolved; ValueError for a device that is not there."""
    device, dtype, there = cfg.device, cfg.dtype, torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if there else "cpu"
    if device != "cpu" and not (device.partition(":")[0] == "cuda" and there):
        wanted = "cpu, or cuda (cuda:1, ...) where torch finds a GPU"
        raise ValueError(f"--device is {device!r}: it is {wanted}")
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    return replace(cfg, device=device, dtype=dtype)


def check_config(cfg: Config, n_questions: int) -> Config:
    """ValueError for what cannot work, with what to set; `steps` 0 is resolved from `epochs`."""
    for f in fields(Config):
        value, bounds = getattr(cfg, f.name), f.metadata
        if "least" in bounds and not bounds["least"] <= value <= bounds["most"]:
            wanted = f"at least {bounds['least']:g}"
            if bounds["most"] < math.inf:
                wanted += f" and at most {bounds['most']:g}"
            raise ValueError(f"{flag(f.name)} is {value}: it must be {wanted}")
    for name in ["programs", "suites"][: 1 + (not cfg.golden)]:
        if getattr(cfg, name) == 1:
            raise ValueError(f"{flag(name)} is 1: it must be at least 2, as a single reply has "
                             "nothing to be compared with and trains nothing")
    batch = cfg.batch_questions
    if n_questions < batch:
        raise ValueError(
            f"{cfg.questions} has {n_questions} usable questions, fewer than a batch of {batch}: "
            f"set --batch-questions to at most {n_questions}"
        )
    steps = cfg.steps or cfg.epochs * (n_questions // batch)
    if cfg.warmup >= steps:
        raise ValueError(
            f"a warm-up of {cfg.warmup} steps leaves nothing of a run of {steps}: set --warmup "
            f"below {steps} or --steps above {cfg.warmup}"
        )
    return replace(cfg, steps=steps)


# ---- players ----


@dataclass(frozen=True)
class Player:
    """One role: its policy and tokenizer. In self-play both roles are the same object."""

    policy: Policy
    tokenizer: Tokenizer


def load_player(path: str, cfg: Config, lr: float, reference: Qwen2 | None = None) -> Player:
    """reference: a frozen start model to share; None: one of its own."""
    model = Qwen2.from_pretrained(path, dtype=getattr(torch, cfg.dtype), device=cfg.device)
    tokenizer = Tokenizer.from_pretrained(path)
    policy = Policy(
        model, lr=lr, steps=cfg.steps, warmup=cfg.warmup, weight_decay=cfg.weight_decay,
        kl_coef=cfg.kl_coef, max_grad_norm=cfg.max_grad_norm, clip_low=cfg.clip_low,
        clip_high=cfg.clip_high, dual_clip=cfg.dual_clip, temperature=cfg.temperature,
        vocab_size=len(tokenizer), micro_tokens=cfg.micro_tokens, reference=reference,
        checkpointing=cfg.checkpointing, offload=cfg.offload,
    )
    return Player(policy, tokenizer)


def load_players(cfg: Config) -> dict[str, Player]:
    """{"coder": …, "tester": …}, the latter where a model of its own plays it."""
    coder = load_player(cfg.coder, cfg, cfg.coder_lr)
    if not cfg.has_tester:
        return {"coder": coder}
    shared = coder.policy.reference if same_start(cfg) else None
    return {"coder": coder, "tester": load_player(cfg.tester, cfg, cfg.tester_lr, shared)}


def same_start(cfg: Config) -> bool:
    """Whether both roles start from the same checkpoint folder."""
    return os.path.realpath(cfg.coder) == os.path.realpath(cfg.tester)


def memory_bytes(n_coder: int, n_tester: int, width: int, offload: bool, references: int) -> int:
    """Bytes of weights and optimiser state on the device; n: parameters (0: no such role).

    Per parameter of a policy: `width` bytes of weights that sample and differentiate, 4 of float32
    gradient, 4 of master weight (none apart where the width is 4) and 8 of AdamW moments. With
    offload the idle policy keeps its weights alone. Each of the `references` frozen start models
    (of the larger size) adds `width`.
    """
    state = 12 if width == 4 else 16
    larger, smaller = max(n_coder, n_tester), min(n_coder, n_tester)
    with_state = larger if offload else larger + smaller
    return (larger + smaller + references * larger) * width + with_state * state


def check_folders(cfg: Config) -> None:
    """ValueError for a model that is no folder; a name on the hub is told how to become one."""
    for name in ["coder", "tester"][: 1 + cfg.has_tester]:
        path = getattr(cfg, name)
        text = f"{flag(name)} is {path!r}: there is no such folder"
        if re.fullmatch(r"[\w.-]+/[\w.-]+", path):
            there = path.rpartition("/")[2]
            text += (f"; if that is a model of the hub: huggingface-cli download {path} "
                     f"--local-dir {there}, then {flag(name)} {there}")
        if not os.path.isdir(path):
            raise ValueError(text)


def check_memory(cfg: Config) -> None:
    """On a GPU: a run that does not fit is refused before any weight is loaded.

    A forward pass keeps for its backward pass 53 bytes (in bfloat16, measured: see Policy) per
    token, layer and unit of the hidden size; with checkpointing those of one layer, and the inputs
    of all.
    """
    if not cfg.device.startswith("cuda"):
        return
    width = 4 if cfg.dtype == "float32" else 2
    sizes, activations = [], []
    for path in [cfg.coder, cfg.tester][: 1 + cfg.has_tester]:
        c = ModelConfig.from_dict(read_json(Path(path) / "config.json"))
        with torch.device("meta"):
            sizes.append(sum(p.numel() for p in Qwen2(c).parameters()))
        layers = c.num_hidden_layers
        kept = 53 + 2 * layers if cfg.checkpointing else 53 * layers
        activations.append(kept * cfg.micro_tokens * c.hidden_size * width // 2)
    references = 0 if cfg.kl_coef == 0 else 1 if same_start(cfg) else len(sizes)
    state = memory_bytes(sizes[0], sum(sizes[1:]), width, cfg.offload, references) / 2**30
    passing = max(activations) / 2**30
    have = torch.cuda.get_device_properties(cfg.device).total_memory / 2**30
    if state + passing > 0.92 * have:
        flags = ["--checkpointing"] * (not cfg.checkpointing) + ["--offload"] * (not cfg.offload)
        raise ValueError(
            f"{' + '.join(f'{n / 1e9:.2f}' for n in sizes)} billion parameters need {state:.0f} "
            f"GiB of weights, gradients and optimiser state, and {passing:.0f} GiB of activations "
            f"for --micro-tokens {cfg.micro_tokens}; {cfg.device} has {have:.0f} GiB. There are "
            f"{', '.join([*flags, 'smaller --micro-tokens'])} and smaller models"
        )


# ---- files ----


def write_text(path: Path, text: str) -> None:
    """Write all of it or nothing: a reader never sees half a file."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def append_json(path: Path, *rows: dict) -> None:
    with open(path, "a", encoding="utf-8") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def keep_lines(path: Path, step: int) -> None:
    """Drop what a log says of steps after `step`, which run again, and a last line that was cut."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [text for text in lines if text.endswith("\n")]
        write_text(path, "".join(text for text in whole if json.loads(text)["step"] <= step))


def fingerprint(model: Qwen2) -> str:
    """A digest of the names, shapes and first values of all weights: tells two models apart."""
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        digest.update(f"{name}{tuple(p.shape)}".encode())
        digest.update(p.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def lock_folder(path: Path) -> TextIO | None:
    """Make a folder one's own for as long as the file returned is open: a crash leaves no lock.
    None where another has it."""
    lock = open(path / "lock", "a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:
        pass  # a file system without locks
    return lock


def new_folder(cfg: Config, named: bool) -> tuple[Config, TextIO]:
    """A folder with nobody's run in it, locked; a name by default gets a number where it is taken,
    as by a run that started in the same second."""
    for n in count(1):
        name = cfg.name if n == 1 else f"{cfg.name}-{n}"
        path = Path(cfg.out) / name
        path.mkdir(parents=True, exist_ok=True)
        if os.listdir(path) in ([], ["lock"]) and (lock := lock_folder(path)):
            return replace(cfg, name=name), lock
        if named:
            raise ValueError(f"{path} holds a run already: give another --name, or go on with it "
                             f"by --resume {path}")


def drop_empty(path: Path) -> None:
    """Remove the folder of a run that was refused."""
    with suppress(OSError):
        if os.listdir(path) == ["lock"]:
            shutil.rmtree(path)


def sync(path: Path) -> None:
    """Have the disk hold what was written to a file, or renamed in a folder."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def usable_questions(cfg: Config) -> list[Question]:
    """The questions whose prompt fits, for `--reward golden` with those of their tests that are
    understood (at least one); what is left out is counted aloud."""
    tokenizer, limit = Tokenizer.from_pretrained(cfg.coder), cfg.coder_prompt_limit
    questions, fits = load_questions(cfg.questions), []
    for question in questions:
        prompt = tokenizer.encode_chat(coder_messages(question, cfg.prompt_style))
        fits += [question] if len(prompt) <= limit else []
    if skipped := len(questions) - len(fits):
        say(f"{skipped} of {len(questions)} questions skipped: their prompt is over {limit} tokens "
            "(--coder-prompt-limit)")
    if not cfg.golden:
        return fits
    tested, lost = [], 0
    for question in fits:
        tests = tuple(text for text in question.tests if parse_assert(text, question.entry_point))
        lost += len(question.tests) - len(tests)
        tested += [replace(question, tests=tests)] if tests else []
    if lost or len(tested) < len(fits):
        say(f"--reward golden: {lost} tests are of a form that is not understood and left out, "
            f"{len(fits) - len(tested)} questions without a test are skipped")
    return tested


def check_references(cfg: Config, questions: list[Question], box: Sandbox) -> None:
    """ValueError where most of a sample of references do not pass most of their own tests."""
    sample, bad = [], []
    for question in questions[:: -(-len(questions) // 8)]:
        tests = [parse_assert(text, question.entry_point) for text in question.tests]
        if tests := [test for test in tests if test]:
            sample.append((question.reference, question.entry_point, tests))
    for item, verdict in zip(sample, box.judge(sample), strict=True):
        wrong = [t for t, s in zip(item[2], verdict.statuses, strict=True) if s is not Status.PASS]
        bad += [(item[0], wrong[0])] if 2 * len(wrong) > len(item[2]) else []
    if 2 * len(bad) > len(sample):
        program, test = bad[0]
        found = box.values([(program, [test.call])])[0][0]
        why = f"returns {found.value!r}" if found.ok else f"ends with {found.error}"
        raise ValueError(
            f"{cfg.questions}: {len(bad)} of {len(sample)} references tried fail their own tests "
            f"(where `{test.source}` is asked, the first {why}): repair the file"
        )


def evaluation_questions(path: str) -> list[Question]:
    """The questions of a file that have golden tests which are understood."""
    golden = understood(path, load_questions(path)) if path else []
    if path and not golden:
        raise ValueError(f"{path} has no question with golden tests: it cannot be evaluated on")
    return golden


def say(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Print, to stderr by default. No step is lost where nobody reads any more (a closed pipe or
    terminal): from then on the stream leads to nothing."""
    stream = stream or sys.stderr
    try:
        tqdm.write(text, stream, end)
        stream.flush()
    except RuntimeError:
        pass  # a signal came in the middle of a write
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# ---- a run at work ----


class Stopwatch:
    """Seconds by phase: `lap(name)` files the time since the last lap under name."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self.last = round(now - self.last, 3), now
        self.seconds["total"] = round(now - self.start, 3)


class Stop:
    """Ctrl-C (SIGTERM, a closed terminal) stops at once, as nothing has changed yet; but while a
    step's results go into book, weights and log (`busy`), behind them, unless it comes twice."""

    def __init__(self) -> None:
        self.busy = self.asked = False

    def __enter__(self) -> Stop:
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
            signals.append(signal.SIGHUP)
        if threading.current_thread() is not threading.main_thread():
            signals = []  # Python allows handlers in the main thread alone
        self.old = {s: signal.signal(s, self.ask) for s in signals}
        return self

    def __exit__(self, *exc: object) -> None:
        for s, handler in self.old.items():
            signal.signal(s, handler)

    def ask(self, signum: int, frame: object) -> None:
        if signum == signal.SIGHUP:  # shell and kernel both send it: the second means no more
            signal.signal(signum, signal.SIG_IGN)
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
    box: Sandbox
    stop: Stop
    step: int = 0
    saved: int = 0  # the step that a resumed run goes on from
    flat: int = 0  # steps in a row that taught neither role anything
    pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2 * (os.cpu_count() or 1))
    )

    def steps(self) -> Iterator[int]:
        """The steps that are left; behind each a checkpoint where one is due, and the end where it
        was asked for."""
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

    def log(
        self, step: int, watch: Stopwatch, batch: list, programs: list, suites: dict,
        executions: list, rewards: list, chosen: list, changes: list, stats: dict,
    ) -> None:
        """Write a step's row of metrics.jsonl and its samples, and a line for a person."""
        cfg, coder = self.cfg, self.players["coder"]
        epoch = (step - 1) // (len(self.questions) // cfg.batch_questions) + 1
        row = {"step": step, "epoch": epoch, **coder_metrics(rewards)}
        if not cfg.golden:
            replies = sum(suites.values(), [])  # of every program
            row |= tester_metrics(rewards, executions, cfg.asserts)
            row |= wrong_metrics(batch, programs, executions, self.box)
            row |= {
                "book_size": len(self.book),
                "book_added": sum(added for added, _ in changes),
                "book_removed": sum(removed for _, removed in changes),
                "left_out": chosen.count([]),
                "skipped_prompts": sum(not x.samples for x in replies),
            }
            tester = self.players.get("tester", coder)
            row |= role_metrics("tester", tester, replies, stats["tester"], step)
        row |= role_metrics("coder", coder, programs, stats["coder"], step)
        check_finite(row)
        row["skipped_updates"] = sum(s.skipped for s in stats["coder"] + stats["tester"])
        row["seconds"] = watch.seconds
        written = row["tokens_coder"] + row.get("tokens_tester", 0)
        sampling = watch.seconds["programs"] + watch.seconds["suites"]
        row["tokens_per_second"] = round(written / sampling, 1)
        if cfg.eval_every and step % cfg.eval_every == 0 and self.held["eval"]:
            row["eval"] = evaluate(self, self.held["eval"])
        samples = sample_rows(step, batch[: cfg.log_questions], programs, suites, rewards)
        append_json(self.path / "samples.jsonl", *samples)
        append_json(self.path / "metrics.jsonl", row)
        self.flat = 0 if row["spread_coder"] or row.get("spread_tester") else self.flat + 1
        if self.flat == 3:
            say(f"three steps without a difference in rewards teach nothing: {cause(row, cfg)}")
        say(line(row, cfg.steps, any(e.history for e in executions)), sys.stdout)


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return float(sum(values) / len(values)) if values else 0.0


def pooled(rewards: list, name: str) -> float:
    """The mean of a field of codea1.Rewards over what all questions have in it."""
    return mean([value for x in rewards for value in getattr(x, name)])


def spread(groups: list) -> float:
    """The share of the groups of rewards that are not all equal."""
    return mean([len(set(group)) > 1 for group in groups])


def coder_metrics(rewards: list) -> dict:
    """For a metrics row, from the codea1.Rewards of each question."""
    return {
        "reward_coder": pooled(rewards, "coder"),
        "spread_coder": spread([x.coder for x in rewards]),
        "loads_rate": pooled(rewards, "loads"),
        "pass_new": pooled(rewards, "pass_new"),
    }


def tester_metrics(rewards: list, executions: list, k: int) -> dict:
    """For a metrics row, from the codea1.Rewards and codea1.Execution of each question."""
    tester = [group for x in rewards for group in x.tester if group]
    suites = [suite for e in executions for row in e.suites for suite in row]
    return {
        "reward_tester": mean(sum(tester, [])),
        "spread_tester": spread(tester),
        "r_val": pooled(rewards, "r_val"),
        "r_adv": pooled(rewards, "r_adv"),
        "pass_hist": pooled(rewards, "pass_hist"),
        "valid_rate": mean([len(suite.tests) / k for suite in suites]),
    }


def failing(statuses: Iterable[Status]) -> bool:
    """Whether a test failed; one that never ran has not."""
    return any(status not in (Status.PASS, Status.NOT_RUN) for status in statuses)


def wrong_metrics(
    batch: list[Question], programs: list, executions: list, box: Sandbox
) -> dict[str, float]:
    """For a metrics row, from the codea1.Replies and codea1.Execution of each question: what the
    tester could break, and what it broke.

    A program that passed what it was given runs the other valid tests of its question here, without
    a reward: or else nearly every program that is known to be wrong is one that its suites broke.
    """
    loading, wrong, broken, jobs = 0, 0, 0, []
    for question, written, e in zip(batch, programs, executions, strict=True):
        own = [[test for suite in row for test in suite.tests] for row in e.suites]
        tests = dict.fromkeys(chain(*own, e.history))
        rows = zip(written.programs, own, e.loads, e.status, strict=True)
        for program, mine, loads, status in rows:
            loading += loads
            broken += loads and failing(status[test] for test in mine)
            known = failing(status.values())
            wrong += loads and known
            others = [test for test in tests if test not in status]
            if loads and others and not known:
                jobs.append((program, question.entry_point, others))
    verdicts = box.judge(jobs, resumes=0)  # the first failure is enough
    wrong += sum(failing(verdict.statuses) for verdict in verdicts)
    return {"wrong_programs": wrong / max(loading, 1), "broken_programs": broken / max(wrong, 1)}


def role_metrics(role: str, player: Player, replies: list, stats: list, step: int) -> dict:
    """For a metrics row, from a role's codea1.Replies and optimiser steps."""
    samples = [one for group in replies for one in group.samples]
    tokens = sum(s.tokens for s in stats) or 1

    def weighted(name: str) -> float:
        return sum(getattr(s, name) * s.tokens for s in stats) / tokens

    return {
        f"loss_{role}": weighted("loss"),
        f"kl_{role}": weighted("kl"),
        f"clip_{role}": weighted("clip_fraction"),
        f"grad_norm_{role}": weighted("grad_norm"),
        f"lr_{role}": player.policy.lr_at(step),
        f"tokens_{role}": sum(len(one.ids) for one in samples),
        f"truncated_{role}": mean([not one.finished for one in samples]),
    }


def check_finite(row: dict) -> None:
    """FloatingPointError for a role that has diverged: its weights are not worth a checkpoint."""
    for name in ("loss_coder", "kl_coder", "loss_tester", "kl_tester"):
        if not math.isfinite(row.get(name, 0.0)):
            raise diverged(name.partition("_")[2], row["step"], f"{name} is {row[name]}")


@torch.no_grad()
def check_weights(role: str, policy: Policy, step: int) -> None:
    """As check_finite: weights may be finite, yet too large to compute with."""
    numbers = [policy.model(torch.arange(8, device=policy.device)[None]), *policy.masters]
    if not all(x.isfinite().all() for x in numbers):
        raise diverged(role, step, "its weights or its logits are not finite")


def diverged(role: str, step: int, why: str) -> FloatingPointError:
    return FloatingPointError(f"the {role} has diverged in step {step}: {why}; a new run with a "
                              "lower learning rate may help")


def sample_rows(
    step: int, batch: list[Question], programs: list, suites: dict, rewards: list
) -> list[dict]:
    """For samples.jsonl: every reply to these questions beside its reward, a row per program."""
    rows = []
    for q, question in enumerate(batch):
        for m, text in enumerate(programs[q].texts):
            written = suites[q][m].texts
            rows.append({
                "step": step, "question": question.id, "prompt": question.prompt, "program": text,
                "reward_coder": rewards[q].coder[m], "suites": written,
                "reward_tester": rewards[q].tester[m] if written else [],
            })
    return rows


def line(row: dict, steps: int, replayed: bool) -> str:
    """One step for a person."""
    text = f"{row['step']:>4}/{steps}  coder {row['reward_coder']:.3f} (new {row['pass_new']:.2f}"
    end = f"  {row['seconds']['total']:.1f} s"
    cut = max(row["truncated_coder"], row.get("truncated_tester", 0))
    if cut > 0.1:
        end = f"  cut {cut:.2f}{end}"
    if row["loads_rate"] < 0.9:
        end = f"  loads {row['loads_rate']:.2f}{end}"
    if "reward_tester" not in row:
        return f"{text})  kl {row['kl_coder']:.4f}{end}"
    book = f"{row['pass_hist']:.2f}" if replayed else "-"
    return (
        f"{text}, book {book})  tester {row['reward_tester']:.3f} (valid "
        f"{row['r_val']:.2f}, breaks {row['r_adv']:.2f})  book {row['book_size']} "
        f"(+{row['book_added']} -{row['book_removed']})  kl {row['kl_coder']:.4f} "
        f"{row['kl_tester']:.4f}{end}"
    )


def cause(row: dict, cfg: Config) -> str:
    """Why nothing is learned, as far as a step's row shows it."""
    style = f"is --prompt-style {cfg.prompt_style} the model's?"
    if row["truncated_coder"] > 0.5:
        return f"programs are cut at --coder-reply-limit {cfg.coder_reply_limit}, or {style}"
    if row["loads_rate"] < 0.1:
        return f"programs do not load: {style}"
    if row.get("truncated_tester", 0) > 0.5:
        return f"suites are cut at --tester-reply-limit {cfg.tester_reply_limit}, or {style}"
    if row.get("valid_rate", 1) < 0.1:
        return "suites have no valid asserts: do the references run? can this model write tests?"
    return "the questions are too easy or too hard, or --programs too few"


# ---- evaluation, before, on the way and after ----


def evaluate(run: Run, questions: list[Question]) -> dict:
    """In percent, with standard errors and by family: golden_t1 and golden_greedy of the coder;
    what `evaluate_tester` has of the tester (in self-play the same model)."""
    cfg, box, coder = run.cfg, run.box, run.players["coder"]
    sampling = dict(
        style=cfg.prompt_style, temperature=cfg.eval_temperature, top_p=cfg.eval_top_p,
        seed=cfg.eval_seed, max_new_tokens=cfg.coder_reply_limit,
    )
    of_coder = partial(evaluate_coder, coder.policy.model, coder.tokenizer, questions, box)
    figures = {
        "golden_t1": of_coder(n=cfg.eval_samples, **sampling),
        "golden_greedy": of_coder(n=1, **sampling | {"temperature": 0.0}),
    }
    if not cfg.golden:
        tester = run.players.get("tester", coder)
        sampling["max_new_tokens"] = cfg.tester_reply_limit
        figures |= evaluate_tester(
            tester.policy.model, tester.tokenizer, questions, box, suites=cfg.eval_samples,
            asserts=cfg.asserts, black_box=cfg.black_box, **sampling,
        )
    return {
        **{name: figure.value for name, figure in figures.items()},
        "n_questions": len(questions),
        "stderr": {name: figure.stderr for name, figure in figures.items()},
        "by_family": {name: figure.by_family for name, figure in figures.items()},
    }


def print_final(final: dict) -> None:
    """Before and after with standard errors, then the families, then the book."""
    tell = partial(say, stream=sys.stdout)
    before, after = final["before"], final["after"]
    tell(f"\n{'held-out, %':<18}{'before':>16}{'after':>16}{'change':>9}")
    for name in before["stderr"]:
        cells = [f"{x[name]:.1f} ± {x['stderr'][name]:.1f}" for x in (before, after)]
        change = after[name] - before[name]
        tell(f"{name:<18}{cells[0]:>16}{cells[1]:>16}{change:>+9.1f}")
    start, end = before["by_family"], after["by_family"]
    tell(f"\n{'by family':<22}" + "".join(f"{name:>16}" for name in start))
    for family in start["golden_t1"]:
        cells = [f"{start[name][family]:.0f} -> {end[name][family]:.0f}" for name in start]
        tell(f"{family:<22}" + "".join(f"{cell:>16}" for cell in cells))
    if "book_size" in final:
        size, added, removed = (final[f"book_{what}"] for what in ("size", "added", "removed"))
        tell(f"\nMistake Book: {size} tests at the end, {added} added, {removed} removed")


# ---- checkpoints and resume ----


def save_checkpoint(run: Run) -> None:
    """A folder that appears at once: written aside, synced, renamed. OSError where it cannot be
    written. Then older ones go, as many as are not to be kept, and what a crash left half-written.
    """
    for role, player in run.players.items():
        check_weights(role, player.policy, run.step)
    final = run.path / "checkpoints" / f"step_{run.step:06d}"
    part = final.with_name(final.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        write_checkpoint(run, part)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(part, final)
        sync(final.parent)
    except Exception as error:  # each writer has its own
        shutil.rmtree(part, ignore_errors=True)
        reason = str(error).partition("\n")[0]
        raise OSError(f"the checkpoint of step {run.step} cannot be written: {reason}") from error
    run.saved = run.step
    older = [f for f in sorted(final.parent.glob("step_*")) if f.name < final.name]
    whole = [f for f in older if not f.suffix and (f / "manifest.json").exists()]
    kept = [*whole, final][-run.cfg.keep_checkpoints :]
    for folder in older:
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def write_checkpoint(run: Run, folder: Path) -> None:
    """Players (Hugging Face layout, and .pt: master weights, moments, schedule), book, and a
    manifest with a digest of each file."""
    folder.mkdir(parents=True)
    for role, player in run.players.items():
        player.policy.model.save_pretrained(folder / role)
        player.tokenizer.save_pretrained(folder / role)
        torch.save(player.policy.state_dict(), folder / f"{role}.pt")
    run.book.save(folder / "book.json")
    paths = [f for f in sorted(folder.rglob("*")) if f.is_file()]
    files = {str(f.relative_to(folder)): file_digest(f) for f in paths}
    write_json(folder / "manifest.json", {"step": run.step, "files": files})
    for name in [*files, "manifest.json"]:
        sync(folder / name)


def newest_checkpoint(path: Path) -> Path | None:
    """The newest checkpoint of a run that is whole; others are skipped, aloud."""
    for folder in sorted((path / "checkpoints").glob("step_*"), reverse=True):
        if not (name := damaged(folder)):
            return folder
        say(f"skipping the incomplete checkpoint {folder}: its {name} is missing or not as it was "
            "saved; the one before it is used")
    return None


def damaged(folder: Path) -> str:
    """The first file of a checkpoint that is not as it was saved; "" if all are."""
    name = "manifest.json"
    try:
        manifest = json.loads((folder / name).read_bytes())
        if folder.name != f"step_{manifest['step']:06d}":
            return name
        for name, digest in manifest["files"].items():
            if file_digest(folder / name) != digest:
                return name
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return name
    return ""


def load_checkpoint(folder: Path, run: Run) -> None:
    """Put a checkpoint's weights, moments, schedule, book and step into the run."""
    for role, player in run.players.items():
        state = torch.load(folder / f"{role}.pt", map_location="cpu", weights_only=True)
        player.policy.load_state_dict(state)
    run.book = MistakeBook.load(folder / "book.json")
    run.step = run.saved = read_json(folder / "manifest.json")["step"]


def describe(cfg: Config, players: dict[str, Player]) -> dict:
    """config.json: the settings, and what else decides the results of a run."""
    return {
        **asdict(cfg),
        **{name: os.path.abspath(getattr(cfg, name)) for name in PATHS if getattr(cfg, name)},
        **digests(cfg),
        "start_weights": {role: fingerprint(p.policy.model) for role, p in players.items()},
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
    }


def digests(cfg: Config) -> dict[str, str]:
    """What is in the files, "" where there is none."""
    paths = {name: getattr(cfg, name) for name in FILES}
    return {f"{name}_sha256": path and file_digest(path) for name, path in paths.items()}


def resume_config(path: Path, given: dict) -> Config:
    """The settings of a run that goes on; what would change its results is refused."""
    if not (path / "config.json").exists():
        raise ValueError(f"{path} holds no run: there is no config.json in it")
    saved = read_json(path / "config.json")
    cfg = Config(**{f.name: saved.get(f.name, f.default) for f in fields(Config)})
    if "coder" in given and cfg.tester == cfg.coder:
        given = {"tester": given["coder"], **given}
    for name, value in given.items():
        was = getattr(cfg, name)
        if value != was and name not in ON_RESUME + PATHS:
            raise ValueError(
                f"{flag(name)} was {was!r}, now {value!r}: a resumed run keeps its settings; start "
                "a new run"
            )
        if value != was:
            say(f"resumed with {flag(name)} {value!r} instead of {was!r}")
    given = given | {"out": str(path.parent), "name": path.name}
    cfg = choose_device(replace(cfg, **given))
    for name in PATHS:
        now = getattr(cfg, name)
        if now and not os.path.exists(now) and (name != "tester" or cfg.has_tester):
            raise ValueError(f"{now} is not there: give the place where it is by {flag(name)}")
    for name, digest in digests(cfg).items():
        if saved.get(name, digest) != digest:
            name = name.removesuffix("_sha256")
            raise ValueError(
                f"{getattr(cfg, name) or 'no file'} has changed since {path} started with "
                f"{saved[name] or 'none'}: restore it, or name the same file by {flag(name)}"
            )
    return cfg


def check_resumed(run: Run) -> None:
    """The start models must be those that the run began with; where they moved is noted."""
    cfg, path = run.cfg, run.path / "config.json"
    saved, now = read_json(path), describe(cfg, run.players)
    if saved["start_weights"] != now["start_weights"]:
        raise ValueError(f"{cfg.coder} and {cfg.tester} do not hold the models that {run.path} "
                         "started from: give them by --coder and --tester")
    for key in ("torch", "torch_threads"):
        if saved[key] != now[key]:
            say(f"{key} was {saved[key]}, is {now[key]}: the run will not repeat bit for bit")
    moved = {name: now[name] for name in PATHS if now[name] != saved[name]}
    if moved:
        write_json(path, saved | moved)


# ---- from the command line to the end ----


def open_run(given: dict, resume: str, stack: ExitStack) -> Run:
    """A new run in a folder of its own, or one that goes on from its newest complete checkpoint.
    The stack closes what it holds."""
    stop = stack.enter_context(Stop())
    if resume:
        cfg, path = resume_config(Path(resume), given), Path(resume)
        if not (lock := lock_folder(path)):
            raise ValueError(f"{path} is in use: the run in it has not ended")
        stack.enter_context(lock)
    else:
        cfg, lock = new_folder(make_config(given), bool(given.get("name")))
        stack.enter_context(lock)
        path = Path(cfg.out) / cfg.name
        stack.callback(drop_empty, path)
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    if given.get("tester") and not cfg.has_tester:
        say("--tester is not used: with --self-play or --reward golden there is the coder alone")
    check_folders(cfg)
    check_memory(cfg)
    questions = usable_questions(cfg)
    cfg = check_config(cfg, len(questions))
    files = {"eval": cfg.eval_questions, "final": cfg.final_questions}
    held = {when: evaluation_questions(file) for when, file in files.items()}
    box = Sandbox(cfg.workers or None, cfg.timeout, cfg.memory_mb, cfg.require_isolation)
    stack.enter_context(box)
    if not resume:
        check_references(cfg, questions, box)
    players, book = load_players(cfg), MistakeBook(cfg.book_capacity)
    run = Run(path, cfg, questions, players, book, held, box, stop)
    if resume:
        go_on(run)
    else:
        write_json(path / "config.json", describe(cfg, players))
    return run


def go_on(run: Run) -> None:
    """Take up a run where its newest complete checkpoint left it."""
    check_resumed(run)
    if folder := newest_checkpoint(run.path):
        load_checkpoint(folder, run)
    for log in ("metrics.jsonl", "samples.jsonl"):
        keep_lines(run.path / log, run.step)
    say(f"going on with {run.path} after step {run.step}")


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
        if not run.stop.busy and run.saved != run.step:
            save_checkpoint(run)
        raise
    rows = [json.loads(text) for text in (run.path / "metrics.jsonl").read_text().splitlines()]
    seconds = sum(row["seconds"]["total"] for row in rows)
    final = {"steps": run.step, "seconds": round(seconds, 1)}
    if not run.cfg.golden:
        final["book_size"] = len(run.book)
        for name in ("book_added", "book_removed"):
            final[name] = sum(row[name] for row in rows)
    if held:
        final |= {"before": read_json(start), "after": evaluate(run, held)}
        print_final(final)
    write_json(run.path / "final.json", final)
    text = f"\n{run.step} steps in {seconds / 60:.1f} min; everything is in {run.path}"
    say(text, sys.stdout)


def main(argv: Sequence[str] | None, description: str, train: Callable[[Run], None]) -> int:
    """Exit status: 0; 1 for a full disk or a role that diverged; 2 for a setting that cannot work;
    130 after Ctrl-C."""
    for name in ("stdout", "stderr"):  # None where they are closed
        setattr(sys, name, getattr(sys, name) or open(os.devnull, "w"))
    with ExitStack() as stack:
        for stream in (sys.stdout, sys.stderr):  # what is left goes while a failure can be caught
            stack.callback(say, "", stream, "")
        given, resume = parse_args(argv, description)
        try:
            run = open_run(given, resume, stack)
        except (ValueError, OSError, SandboxError) as error:
            say(f"codea1: {error}")
            return 2
        except KeyboardInterrupt:
            say("codea1: stopped before the first step")
            return 130
        return finish(run, train)


def finish(run: Run, train: Callable[[Run], None]) -> int:
    """Work to the end. Returns the exit status, as in `main`."""
    cfg = run.cfg
    tests = "on golden tests" if cfg.golden else f"x {cfg.suites} suites of {cfg.asserts}"
    say(f"{cfg.name}: {len(run.questions)} questions, {cfg.steps} steps of {cfg.batch_questions} x "
        f"{cfg.programs} programs {tests}, {cfg.dtype} on {cfg.device}")
    try:
        work(run, train)
    except BaseException as error:
        where = f"codea1 --resume {run.path}"
        if isinstance(error, (OSError, FloatingPointError)):
            say(f"codea1: {error}; go on behind step {run.saved} with: {where}")
            return 1
        say(f"\nstopped after step {run.saved}; go on with: {where}")
        if not isinstance(error, KeyboardInterrupt):
            raise
        return 130
    return 0
