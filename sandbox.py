"""Programs in, verdicts out: runs what a model wrote, and says which tests it passes.

The programs run in workers (jail.py, whose header says what they can and cannot do); verdicts are
made here, where no program reaches. A reply is data of bounded size, compared as exact built-in
types; what is not proven is a fail. The trainer compiles calls, and evaluates nothing. What kind of
outcome a call had is the supervisor's word, never a name that a program chose. Faults of ours are
never scored: they are a SandboxError.

    with Sandbox() as box:
        box.check([(program, ["assert f(1) == 2"])])

`python sandbox.py` prints which layers there are on this machine. Suites that must share a process
with the program (BigCodeBench) can run as one program through `values`, where the program can
forge their result: never for training rewards.
"""

from __future__ import annotations

import json
import marshal
import math
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from enum import Enum
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import jail
from asserts import (
    BoundCall,
    Items,
    Opaque,
    Test,
    bound_call,
    equal,
    holds,
    parse_assert,
    same_argument,
)
from jail import MAX_ITEMS, MAX_REPLY, NOT_RUN, RAISED, TIMEOUT, VALUE

NUMBER = count()  # of workers
# Imported, for what compiling it would leave in memory is copied for every program.
START = "import sys; sys.path[0] = sys.argv[1]; import jail; jail.main(sys.argv[2])"
RESUMES = 8  # times that a program is started again after a crash or a timeout
ANSWER_ROOM = 1 << 18  # bytes of a right answer in training; a program has room for all its tests
# What decoding may raise.
MALFORMED = (ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError)
WORDS = ("timeout", "crash", "not_run", "malformed", "nondeterministic")  # of `Value.error`


class Status(Enum):
    """FAIL: another value; ERROR: exception, exit, crash; NOT_RUN: after too many crashes."""

    PASS, FAIL, ERROR, TIMEOUT, NOT_RUN = "pass", "fail", "error", "timeout", "not_run"


class SandboxError(RuntimeError):
    """Nothing may be scored: a fault of the sandbox itself, or a layer asked for is missing."""


class Value(NamedTuple):
    """What a call returned; else error: an exception's name (quoted where it is one of WORDS), or
    one of WORDS. A value that is too large is Opaque."""

    ok: bool
    value: Any = None
    error: str = ""


class Truth(NamedTuple):
    """What the ground truth makes of a call."""

    value: Value
    call: BoundCall | None  # as its entry point binds it; None: not to be said in bounds, no value


class Verdict(NamedTuple):
    loads: bool  # the module ran to its end and defines a callable entry point
    statuses: list[Status]  # one per test, in order


# ---- replies: hostile data ----


def items(parts: list) -> Items:
    kind, inner = parts
    if type(kind) is not str or type(inner) is not list:
        raise TypeError("not the items of an iterator")
    return Items(kind, inner)


def spread(keys: list) -> list:
    """Keys of a set or dict; ValueError for many of one hash, which take quadratic time."""
    if len(keys) > 50 and max(Counter(map(hash, keys)).values()) > 50:
        raise ValueError("too many equal hashes")
    return keys


def mapping(pairs: list) -> dict:
    spread([key for key, _ in pairs])
    return dict(pairs)


# Tag of `jail.encode` -> type of its content, and the value made of that.
TAGS: dict[str, tuple[type, Callable]] = {
    "opaque": (str, lambda text: Opaque(text[:80])),
    "bytes": (str, bytes.fromhex),
    "int": (str, lambda text: int(text, 16)),
    "complex": (list, lambda parts: complex(*parts)),
    "tuple": (list, tuple),
    "items": (list, items),
    "set": (list, lambda keys: set(spread(keys))),
    "frozenset": (list, lambda keys: frozenset(spread(keys))),
    "dict": (list, mapping),
}
# Only the reference says ranges, of its arguments: a program's would be spread out here.
TAGS_OF_A_CALL = TAGS | {"range": (list, lambda ends: range(*(int(x, 16) for x in ends)))}


def decode(data: bytes, tags: dict[str, tuple[type, Callable]] = TAGS) -> Any:
    """The value that `jail.encode` wrote, of exact built-in types, Opaque and Items; raises one of
    MALFORMED for anything else, before it costs more than an honest value may."""

    def untag(data: dict) -> Any:
        ((tag, content),) = data.items()
        kind, make = tags[tag]
        if type(content) is not kind:
            raise TypeError(f"a {tag} of {type(content)}")
        return make(content)

    if jail.weight(data) > MAX_ITEMS:
        raise ValueError("too many items")
    return json.loads(data, object_hook=untag)


def value(reply: bytes, tags: dict[str, tuple[type, Callable]] = TAGS) -> Value:
    """A reply as the trainer sees it."""
    kind, data = reply[:1], reply[1:]
    if kind == RAISED:
        name = data.decode("utf-8", "replace")[:80]
        return Value(False, None, repr(name) if name in WORDS else name)
    if kind != VALUE:
        return Value(False, None, {TIMEOUT: "timeout", NOT_RUN: "not_run"}.get(kind, "crash"))
    try:
        return Value(True, decode(data, tags))
    except MALFORMED:
        return Value(False, None, "malformed")


def truth(reply: bytes, entry: str) -> Truth:
    """The reply of a ground truth: [arguments as `jail.arguments` gives them, value]. Arguments
    like the default are left out from the end: other right programs need not have them."""
    got = value(reply, TAGS_OF_A_CALL)
    if not got.ok:
        return Truth(got, None)
    try:
        (positions, keywords), result = got.value
        while positions and same_argument(*positions[-1]):
            positions.pop()
        named = {name: given for name, given, default in keywords
                 if not same_argument(given, default)}
        call = bound_call(entry, [given for given, _ in positions], named)
    except (ValueError, TypeError):
        return Truth(Value(False, None, "malformed"), None)
    return Truth(Value(True, result), call)


@lru_cache(maxsize=16384)
def status(reply: bytes, test: Test, read: Callable[[bytes], Value] = value) -> Status:
    """The verdict on one test. Anything not proven is no pass."""
    if reply[:1] == VALUE:
        # No spelling of a value takes so many times the bytes of another.
        if not test.via and len(reply) > 1000 + 32 * len(test.expected):
            return Status.FAIL
        got = read(reply)
        if not got.ok:
            return Status.ERROR
        return Status.PASS if holds(got.value, test) else Status.FAIL
    return {TIMEOUT: Status.TIMEOUT, NOT_RUN: Status.NOT_RUN}.get(reply[:1], Status.ERROR)


@lru_cache(maxsize=16384)
def compiled(call: str) -> str | bytes:
    """A short call as code for the process that runs it: many programs get the same calls."""
    try:
        if len(call) < 1000:
            return marshal.dumps(compile(call, "<call>", "eval", dont_inherit=True))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        pass
    return call


def data_call(name: str, args: Iterable) -> bytes:
    """What `request` takes in place of a call's source: a call with plain values as arguments."""
    return marshal.dumps((name, *args))


@lru_cache(maxsize=4096)
def parsed(test: Any, entry: str = "") -> Test | None:
    return parse_assert(test, entry or None) if isinstance(test, str) else test


def same(a: Any, b: Any) -> bool:
    """Whether two values of one call are one value; of what is no data only the type is known."""
    if isinstance(a, Opaque | Items) and type(a) is type(b):
        return repr(a) == repr(b)
    return equal(a, b)


# ---- workers ----


def usable_cores() -> int:
    """Cores that this process may use: its affinity, and the CPU quotas of its control groups."""
    cores = float(len(os.sched_getaffinity(0)) if jail.MACHINE else os.cpu_count() or 1)
    for line in read_lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for root in [controllers, "cpu"] if controllers else [""]:  # version 1 or 2
            group = Path("/sys/fs/cgroup", root, path.lstrip("/"))
            cores = min(cores, *map(quota, [group, *group.parents]))
    return max(math.ceil(cores), 1)


def quota(group: Path) -> float:
    """Cores that a control group allows, "QUOTA PERIOD"; infinite for "max", -1 or nothing."""
    files = "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"
    words = " ".join(line for file in files for line in read_lines(group / file)).split()
    numbers = [int(word) for word in words if word.isdigit()]
    return numbers[0] / numbers[1] if len(numbers) == 2 and numbers[1] else math.inf


def read_lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


class Job(NamedTuple):
    request: dict[str, Any]  # the arguments of `jail.Supervisor.run`
    finish: Callable[[list[bytes]], Any]  # from the replies to the result of the future
    seed: int  # of hashes and random numbers in the worker
    future: Future


def request(program: str, entry: str, calls: Iterable[str | bytes], cpu: float,
            resumes: int = RESUMES, limit: int = MAX_REPLY, total: int = jail.TOTAL,
            bind: bool = False, walls: Sequence[float] = ()) -> dict[str, Any]:
    """What a worker is asked: see `jail.Supervisor.run`."""
    calls = [compiled(call) if isinstance(call, str) else call for call in calls]
    return {**locals(), "walls": list(walls)}


PROBE = request("def inc(x):\n    return x + 1\n", "inc", ["inc(1)"], 10.0)
PROBE_REPLIES = [VALUE + b"null", VALUE + b"2"]


class Worker:
    """A supervisor process, as the trainer sees it. Used by one thread at a time."""

    def __init__(self, settings: dict):
        self.sock, other = socket.socketpair()
        env = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": str(settings["seed"]),
               "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        command = [sys.executable, "-s", "-c", START, jail.HERE, json.dumps(settings)]
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, env=env, cwd="/", stdin=other, stdout=subprocess.DEVNULL,
            stderr=self.errors, start_new_session=True)
        other.close()
        try:
            self.state: dict[str, str] = self.ask(None, 60)
        except ConnectionError as down:
            raise SandboxError(f"a sandbox worker does not start: {down}") from None
        jail.keep_memory_private(self.state)  # what is expected stands here

    def ask(self, request: dict | None, patience: float) -> Any:
        """The answer to a request (to None: the greeting); ConnectionError says why there is none
        within `patience` seconds."""
        try:
            self.sock.settimeout(patience)
            if request is not None:
                self.sock.sendall(jail.frame(request))
            return jail.receive(self.sock.recv)
        except (OSError, EOFError) as error:
            self.close()
            self.errors.seek(0)
            said = self.errors.read()[-2000:].decode("utf-8", "replace").strip()
            reason = f"{error}, exit status {self.process.returncode}: {said}"
            raise ConnectionError(reason) from None

    def close(self) -> None:
        self.sock.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Sandbox:
    """Workers that run programs. Every method may be called from several threads at once.

    workers: processes (default: one per core that may be used); timeout: CPU seconds per call, a
    program may sleep 3 * timeout + 1 s; memory_mb: address space of a program, MiB;
    require_isolation: SandboxError where a layer is missing.
    """

    def __init__(self, workers: int | None = None, timeout: float = 2.0, memory_mb: int = 1024,
                 require_isolation: bool = False, _without: Sequence[str] = ()):
        self.workers, self.timeout = workers or usable_cores(), float(timeout)
        cpus = sorted(os.sched_getaffinity(0)) if jail.MACHINE else []
        self.settings = {"memory_mb": memory_mb, "without": list(_without), "cpus": cpus}
        self.begin()
        missing = [f"{layer}: {why}" for layer, why in self.report().items() if why != "active"]
        if require_isolation and missing:
            self.close()
            raise SandboxError(f"layers of the sandbox are missing: {'; '.join(missing)}")

    def begin(self) -> None:
        self.pid, self.threads, self.jobs = os.getpid(), [], queue.SimpleQueue()
        self.idle: dict[int, list[Worker]] = {0: [], 1: []}  # by seed

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers, after the jobs that were submitted."""
        for _ in self.threads:
            self.jobs.put(None)
        for thread in self.threads:
            thread.join()
        for worker in sum(self.idle.values(), []):
            worker.close()
        self.begin()

    def report(self) -> dict[str, str]:
        """Layer -> "active", or why it is missing on this machine."""
        if not self.idle[0]:
            self.idle[0].append(self.start(0))
        return dict(self.idle[0][0].state)

    def judge(self, items: Iterable[tuple[str, str, Sequence[Test | str]]],
              resumes: int = RESUMES) -> list[Verdict]:
        """[(program, entry point, tests), ...] -> verdicts. Each distinct call runs once.

        resumes: crashes and timeouts of a program before its remaining tests are not run.
        """
        return results(self.verdict(*item, resumes) for item in items)

    def loads(self, items: Iterable[tuple[str, str]]) -> list[bool]:
        """[(program, entry point), ...] -> whether the module runs to its end and defines it."""
        verdicts = self.judge((program, entry, []) for program, entry in items)
        return [verdict.loads for verdict in verdicts]

    def check(self, items: Iterable[tuple[str, Sequence[Test | str]]]) -> list[list[Status]]:
        """[(program, tests), ...] -> statuses; what does not load or parse is an ERROR."""
        return results(self.submit(program, tests) for program, tests in items)

    def submit(self, program: str, tests: Sequence[Test | str]) -> Future[list[Status]]:
        """`check` of one program, without waiting."""
        known = [test for test in map(parsed, tests) if test is not None]
        entry = known[0].call.partition("(")[0] if known else ""
        return self.verdict(program, entry, tests, RESUMES, lambda verdict: verdict.statuses)

    def values(self, items: Iterable[tuple[str, Sequence[str]]]) -> list[list[Value]]:
        """[(program, [call source, ...]), ...] -> what the calls return; a call is any expression,
        run in order."""
        return results(self.put(request(program, "", calls, self.timeout), values)
                       for program, calls in items)

    def timed_values(self, items: Iterable[tuple[str, Sequence[str | bytes], Sequence[float]]],
                     total: float) -> list[list[Value]]:
        """`values` under a benchmark's limits: [(program, calls, wall seconds of each call), ...],
        and `total` for all calls of a program, whose first crash or timeout is its last call. A
        call is source, or what `data_call` made."""
        asked = (request(program, "", calls, self.timeout, 0, walls=[total, *walls])
                 for program, calls, walls in items)
        return results(self.put(one, values) for one in asked)

    def ground_truth(self, items: Iterable[tuple[str, str, Sequence[str]]]) -> list[list[Truth]]:
        """[(program, entry point, [call source, ...]), ...] -> what is true of each call.

        Each runs twice, the second time in reverse order under another hash seed: a value that
        differs is none. No number of crashing, hanging or huge calls keeps others from running.
        """
        items = [(program, entry, list(calls)) for program, entry, calls in items]
        known = results(self.true_values(program, entry, list(dict.fromkeys(calls)), seed=0)
                        for program, entry, calls in items)
        steady = [[call for call, one in reversed(table.items()) if one.value.ok]
                  for table in known]
        again = results(self.true_values(program, entry, calls, seed=1)
                        for (program, entry, _), calls in zip(items, steady, strict=True))
        for table, others in zip(known, again, strict=True):
            for call, other in others.items():
                if not (other.value.ok and same(table[call].value.value, other.value.value)):
                    table[call] = Truth(Value(False, None, "nondeterministic"), None)
        return [[table[call] for call in calls]
                for table, (_, _, calls) in zip(known, items, strict=True)]

    def true_values(self, program: str, entry: str, calls: list[str], seed: int) -> Future:
        """A future of {call: Truth}."""
        asked = request(program, entry, calls, self.timeout, len(calls), ANSWER_ROOM,
                        max(jail.TOTAL, 8 * ANSWER_ROOM * len(calls)), bind=True)

        def finish(replies: list[bytes]) -> dict[str, Truth]:
            loaded, *rest = replies
            rest = rest if loaded[:1] == VALUE else [loaded] * len(calls)
            return {call: truth(reply, entry) for call, reply in zip(calls, rest, strict=True)}

        return self.put(asked, finish, seed)

    def verdict(self, program: str, entry: str, tests: Sequence[Test | str], resumes: int,
                then: Callable[[Verdict], Any] = lambda verdict: verdict) -> Future:
        """A future of what `then` makes of the verdict on a program."""
        known = [parsed(test, entry) for test in tests]
        calls = list(dict.fromkeys(test.call for test in known if test is not None))

        def finish(replies: list[bytes]) -> Any:
            if replies[0][:1] != VALUE:
                return then(Verdict(False, [Status.ERROR] * len(tests)))
            of_call = dict(zip(calls, replies[1:], strict=True))
            statuses = [Status.ERROR] * len(tests)
            judge: Callable = status
            if max(map(len, replies)) >= 1000:  # no cache of large replies but of the one in hand
                judge = partial(status.__wrapped__, read=lru_cache(maxsize=1)(value))
            readable = [place for place, test in enumerate(known) if test is not None]
            for place in sorted(readable, key=lambda place: known[place].call):
                statuses[place] = judge(of_call[known[place].call], known[place])
            return then(Verdict(True, statuses))

        # Room for right answers to all tests, however they are spelled.
        total = max(MAX_REPLY, 2 * ANSWER_ROOM * len(calls))
        return self.put(request(program, entry, calls, self.timeout, resumes, total=total), finish)

    def put(self, request: dict, finish: Callable[[list[bytes]], Any], seed: int = 0) -> Future:
        if self.pid != os.getpid():  # a forked copy of the trainer: the workers are the original's
            self.begin()
        job = Job(request, finish, seed, Future())
        job.future.set_running_or_notify_cancel()  # there is no way back
        self.jobs.put(job)
        while len(self.threads) < self.workers:
            thread = threading.Thread(target=self.work, args=[self.jobs], daemon=True)
            self.threads.append(thread)
            thread.start()
        return job.future

    def work(self, jobs: queue.SimpleQueue) -> None:
        while job := jobs.get():
            try:
                job.future.set_result(job.finish(self.replies(job)))
            except BaseException as error:
                job.future.set_exception(error)

    def replies(self, job: Job) -> list[bytes]:
        """A worker's answer. A job that takes its worker down is tried once more on a fresh one;
        then it is the program's fault (every call a crash) if a harmless program passes."""
        reasons = []
        for fresh in False, True:
            try:
                return self.ask(job.seed, job.request, fresh)
            except ConnectionError as down:
                reasons.append(str(down))
        try:
            good = self.ask(job.seed, PROBE, True)
        except ConnectionError as down:
            good = str(down)
        if good != PROBE_REPLIES:
            raise SandboxError(f"workers go down: {reasons}; and what came of a harmless program "
                               f"is {good!r}")
        return [jail.CRASH] * (1 + len(job.request["calls"]))

    def ask(self, seed: int, request: dict, fresh: bool) -> list[bytes]:
        """What a worker answers. ConnectionError: it is gone."""
        try:
            worker = self.start(seed) if fresh else self.idle[seed].pop()
        except IndexError:  # none is idle
            worker = self.start(seed)
        # Longer than any program may take, with all workers on one core.
        calls = len(request["calls"])
        tries = 2 + min(calls, request["resumes"] + 1) + calls / 9
        patience = 60 + tries * (4 * request["cpu"] + 1) * self.workers + sum(request["walls"][:1])
        try:
            return worker.ask(request, patience)
        finally:
            if worker.process.returncode is None:
                self.idle[seed].append(worker)

    def start(self, seed: int) -> Worker:
        return Worker({**self.settings, "seed": seed, "number": next(NUMBER)})


def results(futures: Iterable[Future]) -> list:
    return [future.result() for future in list(futures)]


def values(replies: list[bytes]) -> list[Value]:
    loaded, *rest = replies
    return [value(reply if loaded[:1] == VALUE else loaded) for reply in rest]


# ---- python sandbox.py ----

MEANING = {
    "user namespace": "the layers below are put on without any right on the machine",
    "mount namespace": "the machine is read-only; a private folder in memory for each program",
    "network namespace": "there is no network, not even the machine's own",
    "ipc namespace": "shared memory and queues of the machine are out of sight",
    "pid namespace": "other processes are out of sight, and end with the program",
    "no new privileges": "no program gains rights by starting another",
    "landlock": "files: the interpreter's are read, the private folder's written, no others",
    "no capabilities": "none of root's rights",
    "seccomp": "system calls that a function never needs are refused",
    "resource limits": "memory, files, threads and CPU time are bounded",
}


def main() -> None:
    """Prints the state of each layer on this machine, and what it means."""
    with Sandbox(1) as box:
        for layer, state in box.report().items():
            print(f"{layer:18} {state:10} {MEANING[layer]}")


if __name__ == "__main__":
    main()
