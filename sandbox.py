"""Runs programs that a model wrote, and says which tests they pass.

Run it for the table of protections on this machine:  python sandbox.py
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import types
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from typing import Any

AS_WORKER = __name__ == "__main__" and sys.argv[1:2] == ["--worker"]
if not AS_WORKER:  # a worker has no use for the rules by which values are judged
    import tasks

MAX_REPLY = 16 << 20  # bytes of one encoded value; a longer one travels as an opaque mark
MAX_DEPTH = 100  # nesting of a value
RESUMES = 8  # times that a program is started again after a crash or a timeout
PRELOADED = ("bisect", "collections", "copy", "dataclasses", "datetime", "functools", "heapq", "itertools", "math",
             "operator", "random", "re", "string", "typing")  # fmt: skip

# What came of a call: one byte in front of its data. A program chooses between the first two only.
VALUE, RAISED, TIMEOUT, CRASH, NOT_RUN = b"v", b"e", b"t", b"x", b"n"
CALL, REFUTED = b"c", b"f"  # what a script says besides: call the program; an assert did not hold


class Status(Enum):
    """PASS; FAIL: another value; ERROR: exception, exit, crash; TIMEOUT; NOT_RUN: gave up after too many crashes."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    TIMEOUT = "timeout"
    NOT_RUN = "not_run"


class SandboxError(RuntimeError):
    """The sandbox itself is at fault, or a layer that was asked for is missing: nothing may be scored."""


class Opaque:
    """Stands for a value that is no plain data. Equal to nothing, not even to itself."""

    def __init__(self, type_name: str):
        self.type_name = type_name

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Opaque({self.type_name!r})"


@dataclass(frozen=True)
class Value:
    """What a call returned; else error: an exception's name, timeout, crash, not_run, malformed, nondeterministic."""

    ok: bool
    value: Any = None
    error: str = ""


@dataclass(frozen=True)
class Verdict:
    """loads: the module ran to its end and defines a callable entry point; statuses: one per test, in order."""

    loads: bool
    statuses: list[Status]


# ---- values as data: both sides ----


def encode(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A plain value as JSON data: lists stay, every other container or odd scalar is {tag: content}."""
    kind = type(value)
    if kind in (str, bool, float, type(None)) or (kind is int and -(2**63) <= value < 2**63):
        return value
    if depth == 0:
        return {"opaque": "nested too deeply"}
    if kind is list:
        return [encode(item, depth - 1) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [encode(item, depth - 1) for item in value]}
    if kind in (dict, Counter, OrderedDict, defaultdict):
        return {"dict": [[encode(key, depth - 1), encode(item, depth - 1)] for key, item in value.items()]}
    if kind is int:
        return {"int": hex(value)}  # decimal text has a digit limit and quadratic cost
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is bytes:
        return {"bytes": value.hex()}
    return {"opaque": _name(kind)}


def decode(data: Any) -> Any:
    """The value that `encode` wrote, of exact built-in types and Opaque; ValueError or TypeError for anything else."""
    if type(data) is list:
        return [decode(item) for item in data]
    if type(data) is not dict:
        return data
    ((tag, content),) = data.items()
    if tag in ("opaque", "int", "bytes"):
        return {"opaque": Opaque, "int": lambda text: int(text, 16), "bytes": bytes.fromhex}[tag](content)
    if tag == "complex":
        real, imag = content
        return complex(float(real), float(imag))
    if tag == "dict":
        pairs = [(decode(key), decode(item)) for key, item in content]
        _check_hashes([key for key, _ in pairs])
        return dict(pairs)
    if tag == "tuple":
        return tuple(decode(item) for item in content)
    items = [decode(item) for item in content]
    _check_hashes(items)
    return {"set": set, "frozenset": frozenset}[tag](items)


def _check_hashes(items: list) -> None:
    """Items that share their hash would make a set of them take quadratic time, and they are easily made."""
    if len({hash(item) for item in items}) < len(items) // 2 - 20:
        raise ValueError("too many equal hashes")


def _name(kind: type) -> str:
    try:
        return str.__str__(kind.__name__)[:80]
    except BaseException:
        return "object"


def _pack(parts: Sequence[bytes]) -> bytes:
    """One message: the number of parts, their lengths, the parts."""
    return struct.pack(f"!I{len(parts)}I", len(parts), *map(len, parts)) + b"".join(parts)


def _read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (chunk := sock.recv(min(size - len(data), 1 << 20))):
            raise EOFError("the other side is gone")
        data += chunk
    return bytes(data)


def _unpack(sock: socket.socket) -> list[bytes]:
    """The parts of the next message of a trusted peer; EOFError when it is gone."""
    (count,) = struct.unpack("!I", _read(sock, 4))
    lengths = struct.unpack(f"!{count}I", _read(sock, 4 * count))
    data, parts, at = _read(sock, sum(lengths)), [], 0
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    return parts


# ---- the program's process ----


def _serve_program(sock: socket.socket) -> None:
    """Loads the program and answers calls until the supervisor hangs up. Nothing here is to be trusted after that."""
    unpack, pack, send, dumps = _unpack, _pack, sock.sendall, json.JSONEncoder().encode
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    namespace, entry = module.__dict__, ""
    while True:
        nonce, what, *rest = unpack(sock)
        try:
            if what == b"load":
                source, entry = (part.decode("utf-8", "surrogatepass") for part in rest)
                exec(compile(source, "<solution>", "exec", dont_inherit=True), namespace)
                if entry and not callable(namespace.get(entry)):
                    raise NameError(entry)
                value = None
            elif what == b"call":
                source = rest[0].decode("utf-8", "surrogatepass")
                value = eval(compile(source, "<call>", "eval", dont_inherit=True), namespace)
            else:
                args, kwargs = decode(json.loads(rest[0]))
                value = namespace[entry](*args, **kwargs)
            kind, data = VALUE, dumps(encode(value)).encode()
            if len(data) > MAX_REPLY:
                data = b'{"opaque": "too large"}'
        except BaseException as error:
            kind, data = RAISED, _name(type(error)).encode("utf-8", "replace")
        send(pack([nonce, kind, data]))


def _serve_script(sock: socket.socket) -> None:
    """Runs check(candidate) of a trusted script; candidate is a stand-in that asks the supervisor."""
    raised: list[Exception] = []

    def candidate(*args: Any, **kwargs: Any) -> Any:
        sock.sendall(_pack([nonce, CALL, json.dumps(encode([list(args), kwargs])).encode()]))
        kind, data = _unpack(sock)
        if kind == VALUE:
            return decode(json.loads(data))
        known = getattr(builtins, data.decode("utf-8", "replace"), Exception)
        raised.append((known if isinstance(known, type) and issubclass(known, Exception) else Exception)(data))
        raise raised[-1]

    nonce, script = _unpack(sock)
    try:
        namespace: dict[str, Any] = {"__name__": "script"}
        exec(compile(script.decode("utf-8", "surrogatepass"), "<script>", "exec", dont_inherit=True), namespace)
        namespace["check"](candidate)
        kind = VALUE
    except BaseException as error:
        kind = REFUTED if isinstance(error, AssertionError) and error not in raised else RAISED
    sock.sendall(_pack([nonce, kind, b""]))


# ---- the fork server: one warm process that holds no program, no call and no value, ever ----


def _fork_server(ctl: socket.socket, settings: dict) -> None:
    """Obeys two-byte commands (what, slot): fork with a socket, say and free, kill. Leaves when the supervisor does."""
    children: dict[int, int] = {}
    _keep_only(ctl.fileno())
    folder = tempfile.mkdtemp(prefix="codea1-")
    _limit(settings)
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    ctl.sendall(_pack([json.dumps({"folder": folder}).encode()]))
    gc.collect()
    gc.freeze()
    while True:
        command, fds, _, _ = socket.recv_fds(ctl, 2, 1)
        if not command:
            _empty(folder)
            os.rmdir(folder)
            os._exit(0)
        what, slot = command[:1], command[1]
        if what in b"ps":
            if settings["numpy"] and "numpy" not in sys.modules:
                importlib.import_module("numpy")
            children[slot] = os.fork()
            if children[slot] == 0:
                _start_child(fds[0], what, settings)
            os.close(fds[0])
        elif what == b"c":
            ctl.sendall(struct.pack("!d", _cpu_seconds(children[slot])))
        else:
            pid = children.pop(slot)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            _empty(folder)
            ctl.sendall(b"d")


def _cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # Linux: the CPU clock of a process
    except (OSError, AttributeError):
        return -1.0


def _empty(folder: str) -> None:
    """Removes what a program left in the folder, without recursion: what lies deeper is first moved up."""
    while names := os.listdir(folder):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.isdir(path) or os.path.islink(path):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            for inner in os.listdir(path):
                os.rename(os.path.join(path, inner), os.path.join(folder, os.urandom(8).hex()))
            os.rmdir(path)


def _limit(settings: dict) -> None:
    """Lowers the resource limits of this process and of all that it starts."""
    wanted = {"AS": settings["memory_mb"] << 20, "CORE": 0, "FSIZE": 16 << 20, "NOFILE": 128}
    for name, value in wanted.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _keep_only(fd: int) -> None:
    os.closerange(3, fd)
    os.closerange(fd + 1, 1 << 16)


def _start_child(fd: int, what: bytes, settings: dict) -> None:
    """The first steps of a forked process: its own session, one open socket, then program or script."""
    try:
        os.setsid()
        _keep_only(fd)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=fd)
        import random

        random.seed(settings["seed"])
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(settings["seed"])
        sock.sendall(b"+")
        gc.enable()
        (_serve_program if what == b"p" else _serve_script)(sock)
    except EOFError:
        pass
    finally:
        os._exit(0)


# ---- the supervisor: outside of every layer, one per worker ----


class _Server:
    """A fork server, as its supervisor sees it."""

    def __init__(self, settings: dict):
        self.ctl, other = socket.socketpair()
        if os.fork() == 0:
            self.ctl.close()
            try:
                _fork_server(other, settings)
            finally:
                os._exit(1)
        other.close()
        self.report = json.loads(_unpack(self.ctl)[0])

    def command(self, what: bytes, slot: int, answer: int = 0, fds: Sequence[int] = ()) -> bytes:
        socket.send_fds(self.ctl, [what + bytes([slot])], fds)
        return _read(self.ctl, answer)


class _Limit:
    """CPU seconds and wall seconds of one call, measured from now. Calls of a few milliseconds cost no measurement.

    wall: the benchmark's own limit in wall seconds, which then is the only one.
    """

    def __init__(self, timeout: float, wall: float | None = None):
        now = time.monotonic()
        self.timeout = timeout if wall is None else float("inf")
        self.deadline, self.check_at = now + (3 * timeout + 1 if wall is None else wall), now + 0.02
        self.cpu_before: float | None = None

    def exceeded(self, child: _Child) -> bool:
        now = time.monotonic()
        if now < self.check_at:
            return False
        cpu = struct.unpack("!d", child.server.command(b"c", child.slot, answer=8))[0]
        if self.cpu_before is None:
            self.cpu_before = cpu
        left = min(self.timeout - (cpu - self.cpu_before), self.deadline - now)
        self.check_at = now + min(max(left, 0.005), 0.25)
        return left <= 0


class _Child:
    """A process that runs a program (or a script); one request at a time, each within a limit."""

    HEAD = struct.Struct("!4I")  # a reply is a message of three parts: nonce (8 bytes), kind (1), data

    def __init__(self, server: _Server, what: bytes, slot: int, job: socket.socket):
        self.server, self.slot, self.ready = server, slot, False
        self.sock, other = socket.socketpair()
        server.command(what, slot, fds=[other.fileno()])
        other.close()
        self.poll = select.poll()
        self.poll.register(self.sock, select.POLLIN)
        self.poll.register(job, 0)  # tells only that the trainer is gone

    def close(self) -> None:
        self.server.command(b"k", self.slot, answer=1)
        if not self.ready and self.sock.recv(1) != b"+":
            raise RuntimeError("a process could not be prepared for the program")
        self.sock.close()

    def ask(self, parts: Sequence[bytes], limit: _Limit) -> tuple[bytes, bytes]:
        """Sends a request; what came of it, and its data. After TIMEOUT and CRASH the child is of no further use."""
        self.nonce = os.urandom(8)
        return self.tell([self.nonce, *parts], limit)

    def tell(self, parts: Sequence[bytes], limit: _Limit) -> tuple[bytes, bytes]:
        self.sock.settimeout(max(limit.deadline - time.monotonic(), 0.001))
        buffer = bytearray()
        try:
            self.sock.sendall(_pack(parts))
            while (reply := self._parse(buffer)) is None:
                events = self.poll.poll(max(1000 * (limit.check_at - time.monotonic()), 0) + 1)
                if any(fd != self.sock.fileno() for fd, _ in events):
                    os._exit(0)
                if events:
                    chunk = self.sock.recv(1 << 18)
                    if not chunk:
                        return CRASH, b""
                    buffer += chunk
                if limit.exceeded(self):
                    return TIMEOUT, b""
            return reply
        except TimeoutError:
            return TIMEOUT, b""
        except (ConnectionError, ValueError):
            return CRASH, b""

    def _parse(self, buffer: bytearray) -> tuple[bytes, bytes] | None:
        """The reply, None while it is not complete; ValueError for what is no reply to this very request."""
        if not self.ready and buffer:
            if buffer.pop(0) != ord("+"):
                raise RuntimeError("a process spoke before it was ready")
            self.ready = True
        if len(buffer) < self.HEAD.size:
            return None
        *form, size = self.HEAD.unpack_from(buffer)
        missing = self.HEAD.size + 9 + size - len(buffer)
        if form != [3, 8, 1] or size > MAX_REPLY + 100 or missing < 0:
            raise ValueError("not in the form of a reply")
        if missing:
            return None
        body = bytes(buffer[self.HEAD.size :])
        if body[:8] != self.nonce or body[8:9] not in (VALUE, RAISED, CALL, REFUTED):
            raise ValueError("not the reply to this request")
        return body[8:9], body[9:]


class _Supervisor:
    """Reads jobs of the trainer, one at a time, and answers each with the bytes that came of it."""

    def __init__(self, job: socket.socket, settings: dict):
        self.job = job
        # Both are started before any program is seen: what they are forked from must hold nothing worth finding.
        self.servers = [_Server({**settings, "numpy": numpy}) for numpy in (False, True)]

    def serve(self) -> None:
        job = self.job
        job.sendall(_pack([json.dumps(self.servers[0].report).encode()]))
        while True:
            mode, limits, *parts = _unpack(job)
            timeout, *walls = json.loads(limits)
            run = partial(self.run_script, timeout) if mode == b"script" else partial(
                self.run_calls, int(mode), timeout, walls)
            job.sendall(_pack(run(*parts)))

    def child(self, what: bytes, source: bytes, slot: int = 0) -> _Child:
        return _Child(self.servers[b"numpy" in source], what, slot, self.job)

    def run_calls(self, resumes: int, timeout: float, walls: list[float], source: bytes, entry: bytes,
                  *calls: bytes) -> list[bytes]:  # fmt: skip
        """What came of loading, then of each call; after a crash or a timeout the rest goes to a fresh process.

        walls: nothing, or wall seconds for all calls together, then for each.
        """
        replies: list[bytes] = []
        loaded, start = b"", time.monotonic()
        for _ in range(1 + resumes):
            child = self.child(b"p", source)
            kind, data = child.ask([b"load", source, entry], _Limit(timeout))
            loaded = loaded or kind + data
            while kind in (VALUE, RAISED) and loaded[:1] == VALUE and len(replies) < len(calls):
                wall = min(walls[0] + start - time.monotonic(), walls[1 + len(replies)]) if walls else None
                kind, data = child.ask([b"call", calls[len(replies)]], _Limit(timeout, wall))
                replies.append(kind + data)
            child.close()
            if loaded[:1] != VALUE or len(replies) == len(calls):
                break
        return [loaded, *replies, *[NOT_RUN] * (len(calls) - len(replies))]

    def run_script(self, timeout: float, source: bytes, entry: bytes, script: bytes) -> list[bytes]:
        """The kind of what came of check(candidate). The limit holds for the whole script and all its calls."""
        program, checker = self.child(b"p", source), self.child(b"s", script, slot=1)
        kind, _ = program.ask([b"load", source, entry], _Limit(timeout))
        if kind == VALUE:
            limit, own_limit = _Limit(timeout), _Limit(timeout)
            kind, data = checker.ask([script], own_limit)
            while kind == CALL:
                answer = program.ask([b"apply", data], limit)
                if answer[0] not in (VALUE, RAISED):
                    kind = answer[0]
                    break
                kind, data = checker.tell(answer, own_limit)
        program.close()
        checker.close()
        return [kind]


def _worker_main(fd: int, settings: dict) -> None:
    """`python sandbox.py --worker FD SETTINGS`: becomes the supervisor of one worker."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file is no place for the imports of a program
    for name in PRELOADED:
        importlib.import_module(name)
    try:
        _Supervisor(socket.socket(fileno=fd), settings).serve()
    except EOFError:
        pass


# ---- the trainer's side ----


class _WorkerDown(Exception):
    """A worker is gone, or does not answer."""


class _Worker:
    """A supervisor process, as the trainer sees it. Used by one thread at a time."""

    def __init__(self, settings: dict):
        self.sock, other = socket.socketpair()
        flags = ["-s", "-P"] if sys.version_info >= (3, 11) else ["-s"]
        env = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": str(settings["seed"]), "OMP_NUM_THREADS": "1",
               "OPENBLAS_NUM_THREADS": "1", "LD_BIND_NOW": "1"}  # fmt: skip
        command = [sys.executable, *flags, __file__, "--worker", str(other.fileno()), json.dumps(settings)]
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors,
            pass_fds=[other.fileno()], start_new_session=True,
        )  # fmt: skip
        other.close()
        try:
            self.report = json.loads(self.request([], 60)[0])
        except _WorkerDown as down:
            raise SandboxError(f"a sandbox worker does not start: {down}") from None

    def request(self, parts: Sequence[bytes], patience: float) -> list[bytes]:
        """The answer to a job (to nothing: the greeting); _WorkerDown with the reason when there is none."""
        try:
            self.sock.settimeout(patience)
            if parts:
                self.sock.sendall(_pack(parts))
            return _unpack(self.sock)
        except (OSError, EOFError) as error:
            self.close()
            self.errors.seek(0)
            said = self.errors.read()[-2000:].decode("utf-8", "replace").strip()
            raise _WorkerDown(f"{error or type(error).__name__}, exit {self.process.returncode}: {said}") from None

    def close(self) -> None:
        self.sock.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Sandbox:
    """Workers that run programs. Every method may be called from several threads at once.

    workers: processes (default: one per core); timeout: CPU seconds per call, the wall limit is 3 * timeout + 1;
    memory_mb: address space of a program, MiB.
    """

    def __init__(self, workers: int | None = None, timeout: float = 2.0, memory_mb: int = 1024,
                 require_isolation: bool = False):  # fmt: skip
        if sys.platform == "win32":
            raise SandboxError("the sandbox needs Linux (or macOS, with fewer layers): on Windows use WSL")
        self.workers, self.timeout, self.memory_mb = workers or len(os.sched_getaffinity(0)), timeout, memory_mb
        self.require_isolation = require_isolation
        self._begin()
        _BOXES.add(self)

    def _begin(self) -> None:
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox")
        self._idle: dict[int, list[_Worker]] = {0: [], 1: []}  # by hash seed

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers, after the jobs that were submitted."""
        self._pool.shutdown()
        for workers in self._idle.values():
            while workers:
                workers.pop().close()

    # -- jobs --

    def _execute(self, job: list[bytes], calls: int, seed: int = 0) -> list[bytes]:
        """The answer of a worker. A job that takes its worker down is tried again alone on a fresh one; down again,
        it is the program's fault if a known-good program passes (all its calls are crashes), else ours."""
        patience = 30 + (calls + 2) * (3 * json.loads(job[1])[0] + 1) + sum(json.loads(job[1])[1:2])
        for attempt in range(2):
            worker = self._idle[seed].pop() if self._idle[seed] and attempt == 0 else self._start(seed)
            try:
                answer = worker.request(job, patience)
            except _WorkerDown as down:
                reason = str(down)
                continue
            self._idle[seed].append(worker)
            return answer
        self._probe(reason)
        return [CRASH] * (1 + calls)

    def _start(self, seed: int) -> _Worker:
        return _Worker({"seed": seed, "memory_mb": self.memory_mb})

    def _probe(self, reason: str) -> None:
        worker = self._start(0)
        try:
            answer = worker.request([b"0", b"[10]", b"def inc(x):\n    return x + 1\n", b"inc", b"inc(1)"], 60)
        except _WorkerDown as down:
            answer = [str(down).encode()]
        worker.close()
        if answer != [VALUE + b"null", VALUE + b"2"]:
            raise SandboxError(f"workers go down, also under a harmless program: {reason}; {answer!r}")

    def _run(self, program: str, entry: str, calls: Sequence[str], seed: int = 0, resumes: int = RESUMES,
             walls: Sequence[float] = ()):  # fmt: skip
        texts = [text.encode("utf-8", "surrogatepass") for text in (program, entry, *calls)]
        limits = json.dumps([self.timeout, *walls]).encode()
        return self._execute([b"%d" % resumes, limits, *texts], len(calls), seed)

    def _judge(self, program: str, entry: str, tests: Sequence[Any], resumes: int = RESUMES) -> Verdict:
        parsed = [_parsed(test, entry) if isinstance(test, str) else test for test in tests]
        calls = list(dict.fromkeys(test.call for test in parsed if test is not None))
        loaded, *replies = self._run(program, entry, calls, resumes=resumes)
        if loaded[:1] != VALUE:
            return Verdict(False, [Status.ERROR] * len(tests))
        values = {call: _value(reply) for call, reply in zip(calls, replies, strict=True)}
        return Verdict(True, [Status.ERROR if test is None else _status(values[test.call], test) for test in parsed])

    def _values(self, program: str, calls: Sequence[str], seed: int = 0, resumes: int = RESUMES,
                walls: Sequence[float] = ()) -> list[Value]:  # fmt: skip
        loaded, *replies = self._run(program, "", calls, seed, resumes, walls)
        if loaded[:1] != VALUE:
            return [_value(loaded)] * len(calls)
        return [_value(reply) for reply in replies]

    def _truth(self, program: str, calls: Sequence[str]) -> list[Value]:
        distinct = list(dict.fromkeys(calls))
        first = dict(zip(distinct, self._values(program, distinct, 0, len(distinct)), strict=True))
        again = [call for call in reversed(distinct) if first[call].ok]
        second = dict(zip(again, self._values(program, again, 1, len(again)), strict=True))
        for call, value in second.items():
            if not _same(first[call], value):
                first[call] = Value(False, None, "nondeterministic")
        return [first[call] for call in calls]

    def _map(self, function: Any, items: Iterable[tuple]) -> list:
        return [future.result() for future in [self._pool.submit(function, *item) for item in items]]

    # -- what the trainer uses --

    def judge(self, items: Iterable[tuple[str, str, Sequence[Any]]], resumes: int = RESUMES) -> list[Verdict]:
        """[(program, entry point, [Test or assert source, ...]), ...] -> verdicts. Each distinct call runs once.

        resumes: how many crashes and timeouts a program may have before its remaining tests are not run.
        """
        return self._map(partial(self._judge, resumes=resumes), items)

    def loads(self, items: Iterable[tuple[str, str]]) -> list[bool]:
        """[(program, entry point), ...] -> whether the module runs to its end and defines it as a callable."""
        return [verdict.loads for verdict in self.judge((program, entry, []) for program, entry in items)]

    def check(self, items: Iterable[tuple[str, Sequence[Any]]]) -> list[list[Status]]:
        """[(program, [Test or assert source, ...]), ...] -> statuses; what does not load or parse is an ERROR."""
        return [future.result() for future in [self.submit(program, tests) for program, tests in items]]

    def submit(self, program: str, tests: Sequence[Any]) -> Future[list[Status]]:
        """`check` for one program, without waiting."""
        return self._pool.submit(lambda: self._judge(program, _entry_point(tests), tests).statuses)

    def values(self, items: Iterable[tuple[str, Sequence[str]]]) -> list[list[Value]]:
        """[(program, [call source, ...]), ...] -> what the calls return; a call is any expression, run in order."""
        return self._map(self._values, items)

    def timed_values(self, items: Iterable[tuple[str, Sequence[str], Sequence[float]]],
                     total: float) -> list[list[Value]]:  # fmt: skip
        """`values` under a benchmark's limits: [(program, calls, wall seconds of each call), ...], and `total` for all
        calls of a program. Its first crash or timeout is its last call."""
        return self._map(lambda program, calls, walls: self._values(program, calls, 0, 0, (total, *walls)), items)

    def ground_truth(self, items: Iterable[tuple[str, Sequence[str]]]) -> list[list[Value]]:
        """`values`, each call run twice: again in reverse order under another hash seed. A value that differs is none.

        No number of hanging calls keeps the others from running.
        """
        return self._map(self._truth, items)

    def check_script(self, program: str, script: str, entry_point: str, timeout: float) -> Status:
        """Runs the script's check(candidate) in a process of its own; timeout: CPU seconds of the whole script."""
        texts = [text.encode("utf-8", "surrogatepass") for text in (program, entry_point, script)]
        (kind,) = self._pool.submit(self._execute, [b"script", b"[%r]" % timeout, *texts], 0).result()
        known = {VALUE: Status.PASS, REFUTED: Status.FAIL, TIMEOUT: Status.TIMEOUT}
        return known.get(kind, Status.ERROR)

    def report(self) -> dict[str, str]:
        """Layer -> "active" or why it is missing on this machine."""
        return {}


_BOXES: weakref.WeakSet[Sandbox] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked copy of the trainer the workers belong to the original: start afresh."""
    for box in _BOXES:
        for workers in box._idle.values():
            for worker in workers:
                worker.sock.close()
        box._begin()


@lru_cache(maxsize=4096)
def _parsed(source: str, entry: str) -> Any:
    return tasks.parse_assert(source, entry or None)


def _entry_point(tests: Sequence[Any]) -> str:
    """The function that the first test calls; "" if no test parses."""
    for test in tests:
        test = _parsed(test, "") if isinstance(test, str) else test
        if test is not None:
            return test.call.partition("(")[0].strip()
    return ""


def _value(reply: bytes) -> Value:
    """A reply as the trainer sees it. Its data is hostile: bounded in size and depth, and read as JSON."""
    kind, data = reply[:1], reply[1:]
    if kind == RAISED:
        return Value(False, None, data.decode("utf-8", "replace")[:80])
    if kind != VALUE:
        return Value(False, None, {TIMEOUT: "timeout", NOT_RUN: "not_run"}.get(kind, "crash"))
    try:
        return Value(True, decode(json.loads(data)))
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError, OverflowError):
        return Value(False, None, "malformed")


def _status(value: Value, test: Any) -> Status:
    """The verdict on one test. Anything not proven is no pass."""
    if value.ok:
        return Status.PASS if tasks.holds(value.value, test) else Status.FAIL
    return {"timeout": Status.TIMEOUT, "not_run": Status.NOT_RUN}.get(value.error, Status.ERROR)


def _same(a: Value, b: Value) -> bool:
    if isinstance(a.value, Opaque) and isinstance(b.value, Opaque):
        return a.value.type_name == b.value.type_name
    return a.ok and b.ok and tasks.equal(a.value, b.value)


if AS_WORKER:
    _worker_main(int(sys.argv[2]), json.loads(sys.argv[3]))
elif hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
