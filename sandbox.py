"""Runs programs that a model wrote, and says which tests they pass. Reinforcement learning searches for every hole.

    trainer (verdicts) <-> supervisor (limits, kills) <-> fork server (layers) -> a process for every program

- The verdict. A program gets calls and returns values, as tagged JSON. It can lie about its own values, nothing else:
  tests, expected values and ground truth never enter its process nor the one it is forked from (a fork server never
  sees any program, call or value), a reply must carry the fresh number of its request, and values are compared in the
  trainer, as exact built-in types of bounded size. What is not proven is a fail. The script of `check_script` runs in a
  process of its own and reaches the program through stand-ins that carry plain values. The trainer compiles calls,
  and evaluates nothing.
- The machine. User, network, ipc, mount and pid namespaces, Landlock, seccomp, no capabilities, no new privileges,
  resource limits, a clean environment. A program reads the interpreter and its libraries, writes one private folder in
  memory that is emptied after it, starts up to 256 threads but no process, and has no network. `python sandbox.py`
  tries what each layer forbids. Memory stays under workers * (memory_mb + FOLDER_MB + 128 MiB), and in `check_script`
  under workers * (2 * SCRIPT_MB + FOLDER_MB + 128 MiB).
- The run. Limits are kept from outside; nothing outlives a program, its worker or the trainer, also under SIGKILL.
  One that hangs has its turn after the others. A job that takes a worker down twice is the program's fault if a
  harmless program passes then, else a SandboxError.
Not defended: faults of the kernel; side channels; names and sizes of the host's files. macOS has only limits, sessions
and killing from outside. Suites that must share a process with the program (BigCodeBench) can run as one program
through `values`, where the program can forge their result: never for training rewards.
"""

from __future__ import annotations

import _socket as socket  # not `socket`: every fork copies what a worker has loaded
import builtins
import ctypes
import gc
import importlib
import json
import marshal
import math
import os
import select
import signal
import struct
import sys
import time
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import lru_cache, partial
from itertools import count
from typing import Any, NamedTuple

try:
    import resource
except ImportError:
    raise ImportError("programs run on Linux, and on macOS with fewer protections: on Windows use WSL") from None

AS_WORKER = sys.argv[:2] == ["-c", "--worker"]
if not AS_WORKER:  # every fork copies what a worker has loaded, and the rules that judge values have no place there
    import queue
    import subprocess
    import tempfile
    import threading
    from concurrent.futures import Future

    import tasks

MAX_REPLY = 16 << 20  # bytes of one encoded value; of all values of a program 4 times as much
MAX_ITEMS, MAX_DEPTH = 2_000_000, 100  # items of a value, nested ones too, and their nesting
QUICK = 0.003, 0.1  # CPU seconds for all calls of a program, when its turn first comes, and when it comes again
RESUMES = 8  # times that a program is started again after a crash or a timeout
SCRIPT, SCRIPT_MB = 20, 4096  # a script has this many times the limit of one call; its least memory is as in EvalPlus
FOLDER_MB = 64  # size of the private folder

TOO_LARGE = "too large"  # what is said of such a value

# What came of a call: the first byte of a reply. A program chooses between the first two only.
VALUE, RAISED, TIMEOUT, CRASH, NOT_RUN = b"v", b"e", b"t", b"x", b"n"
CALL, REFUTED = b"c", b"f"  # what a script says besides: call the program; an assert did not hold
HEAD = struct.Struct("!8sI")  # in front of a reply: the number of its request, and its length


class Status(Enum):
    """PASS; FAIL: another value; ERROR: exception, exit, crash, values too large together; TIMEOUT; NOT_RUN: given up
    after too many crashes."""

    PASS, FAIL, ERROR, TIMEOUT, NOT_RUN = "pass", "fail", "error", "timeout", "not_run"


class SandboxError(RuntimeError):
    """The sandbox itself is at fault, or a layer that was asked for is missing: nothing may be scored."""


class Opaque:
    """Stands for a value that is no plain data, and equals nothing; or, with a digest for a type name, for a list or
    tuple too large to travel, which a script can still compare."""

    def __init__(self, type_name: str):
        self.type_name = type_name

    def __eq__(self, other: object) -> bool:
        return type(other) in (list, tuple) and digest(other) == self.type_name

    def __repr__(self) -> str:
        return f"Opaque({self.type_name!r})"


class Value(NamedTuple):
    """What a call returned; else error: an exception's name, timeout, crash, not_run, malformed, nondeterministic, too
    large (with those before it; one that is too large by itself is Opaque)."""

    ok: bool
    value: Any = None
    error: str = ""


class Verdict(NamedTuple):
    """loads: the module ran to its end and defines a callable entry point; statuses: one per test, in order."""

    loads: bool
    statuses: list[Status]


# ---- values as data ----

MALFORMED = (ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError)  # what decoding may raise
SCALARS = {str, bool, float, type(None)}  # what JSON says exactly, as it does integers of 64 bits
# What `json.JSONEncoder(separators=(",", ":"))` makes anew for each value.
JSON = json.encoder.c_make_encoder(None, None, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)


def to_json(data: Any) -> str:
    return "".join(JSON(data, 0))


def encode(value: Any, room: list[int], depth: int = MAX_DEPTH) -> Any:
    """A plain value as JSON data: lists stay, every other container or odd scalar is {tag: content}.

    room[0]: how many items more may be encoded; OverflowError when there are more.
    """
    kind = type(value)
    if kind in SCALARS or (kind is int and -(2**63) <= value < 2**63):
        return value
    if kind in (list, tuple, set, frozenset, dict, Counter, OrderedDict, defaultdict):
        room[0] -= 1 + len(value)
        if room[0] < 0:
            raise OverflowError("too many items")
        if depth == 0:
            return {"opaque": "nested too deeply"}
        items = value.items() if issubclass(kind, dict) else value
        kinds = set(map(type, items))
        if not (kinds <= SCALARS or (kinds == {int} and -(2**63) <= min(items) and max(items) < 2**63)):
            items = [encode(item, room, depth - 1) for item in items]
        return items if kind is list else {"dict" if issubclass(kind, dict) else kind.__name__: list(items)}
    if kind is int:
        return {"int": hex(value)}  # decimal text has a digit limit and quadratic cost
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    return {"bytes": value.hex()} if kind is bytes else {"opaque": name(kind)}


def decode(data: Any) -> Any:
    """The value that `encode` wrote, of exact built-in types and Opaque; raises one of MALFORMED for anything else."""
    if type(data) is list:
        return [decode(item) for item in data] if {list, dict}.intersection(map(type, data)) else data
    if type(data) is not dict:
        return data
    ((tag, content),) = data.items()
    if tag in ("opaque", "bytes"):
        return Opaque(content) if tag == "opaque" else bytes.fromhex(content)
    if tag == "int":
        return int(content, 16)
    items = decode(content)
    if tag in ("complex", "tuple"):
        return tuple(items) if tag == "tuple" else complex(*map(float, items))
    keys = [key for key, _ in items] if tag == "dict" else items
    if max(Counter(map(hash, keys)).values(), default=0) > 50:  # easily made, and quadratic time to put into a set
        raise ValueError("too many equal hashes")
    return {"dict": dict, "set": set, "frozenset": frozenset}[tag](items)


def dump(value: Any) -> bytes:
    """A value as a line of bytes; one too large is only known by its digest."""
    try:
        data = to_json(encode(value, [MAX_ITEMS])).encode()
        if len(data) <= MAX_REPLY:
            return data
    except OverflowError:
        pass
    return to_json({"opaque": digest(value) if type(value) in (list, tuple) else TOO_LARGE}).encode()


def digest(value: list | tuple) -> str:
    """What equal values of equal types share, within one version of Python."""
    sha = importlib.import_module("hashlib").sha256()
    for item in value:
        sha.update(marshal.dumps(item, 2))  # version 2: the same bytes whether objects are shared or not
    return f"{type(value).__name__} {sha.hexdigest()}"


def name(kind: type) -> str:
    """The name of a class, which may do anything when it is asked."""
    try:
        return str.__str__(kind.__name__)[:80]
    except BaseException:
        return "object"


def frame(message: Any) -> bytes:
    """A message of the trusted: to someone further down the chain, or to each other. Programs have no part in this."""
    data = marshal.dumps(message)
    return struct.pack("!Q", len(data)) + data


def receive(read: Callable[[int], bytes]) -> Any:
    """The next message of a trusted sender; EOFError when it is gone."""
    data, size = bytearray(), 8
    while len(data) < size or len(data) < (size := 8 + struct.unpack_from("!Q", data)[0]):
        if not (chunk := read(min(max(size - len(data), 1 << 14), 1 << 20))):
            raise EOFError("the other side is gone")
        data += chunk
    return marshal.loads(memoryview(data)[8:])


def write(fd: int, data: bytes) -> None:
    while data := data[os.write(fd, data) :]:
        pass


@lru_cache(maxsize=16384)
def compiled(call: str) -> str | bytes:
    """A short call as code for the process that runs it: many programs get the same calls. Else as it is."""
    try:
        if len(call) < 1000:
            return marshal.dumps(compile(call, "<call>", "eval", dont_inherit=True))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        pass
    return call


# ---- layers: what a fork server gives up, for itself and for all that it starts ----

MACHINE = os.uname().machine if sys.platform == "linux" else ""
ARM = MACHINE in ("aarch64", "arm64")
LIBC = ctypes.CDLL(None, use_errno=True)
NAMESPACES = {"user": 0x10000000, "mount": 0x20000, "network": 0x40000000, "ipc": 0x8000000, "pid": 0x20000000}
HIDDEN = os.path.join(os.path.dirname(os.path.realpath(__file__)), "tiny")  # our own questions, with their answers
# System calls with their numbers on x86_64 and on aarch64. First what a pure function never needs.
FORBIDDEN = """ptrace 101 117, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428,
bpf 321 280, move_mount 429 429, fsopen 430 430, fsmount 432 432, mount_setattr 442 442, add_key 248 217,
request_key 249 218, keyctl 250 219, perf_event_open 298 241, kexec_load 246 104, kexec_file_load 320 294,
init_module 175 105, finit_module 313 273, delete_module 176 106, reboot 169 142, swapon 167 224, acct 163 89,
quotactl 179 60, syslog 103 116, clock_settime 227 112, personality 135 92, process_vm_readv 310 270,
process_vm_writev 311 271, kcmp 312 272, pidfd_getfd 438 438, userfaultfd 323 282, io_uring_setup 425 425,
name_to_handle_at 303 264, open_by_handle_at 304 265, fanotify_init 300 262, memfd_create 319 279,
memfd_secret 447 447, shmget 29 194, msgget 68 186, semget 64 190, mq_open 240 180, socket 41 198, bind 49 200,
connect 42 203, listen 50 201, modify_ldt 154 -1, open_tree_attr 467 467, fspick 433 433, quotactl_fd 443 443,
settimeofday 164 170, adjtimex 159 171, clock_adjtime 305 266, swapoff 168 225, sethostname 170 161, iopl 172 -1,
ioperm 173 -1, migrate_pages 256 238, move_pages 279 239, process_madvise 440 440, inotify_init 253 -1,
inotify_init1 294 26, sync 162 81, syncfs 306 267"""
PROCESSES = """fork 57 -1, vfork 58 -1, execve 59 221, execveat 322 281, unshare 272 97, setns 308 268,
setpriority 141 140, ioprio_set 251 30, sched_setparam 142 118, sched_setscheduler 144 119, sched_setaffinity 203 122,
sched_setattr 314 274, landlock_create_ruleset 444 444, seccomp 317 277"""
STAND_INS = {  # what seccomp forbids instead where a layer is missing
    "pid namespace": "kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, pidfd_send_signal 424 424",
    "mount namespace": """chmod 90 -1, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -1, fchown 93 55,
        lchown 94 -1, fchownat 260 54, utime 132 -1, utimes 235 -1, futimesat 261 -1, utimensat 280 88,
        setxattr 188 5, fsetxattr 190 7""",
}
USED = """clone 56 220, clone3 435 435, socketpair 53 199, prctl 157 167, capset 126 91,
landlock_create_ruleset 444 444, landlock_add_rule 445 445, landlock_restrict_self 446 446"""
LOAD, EQUAL, AT_LEAST, ANY_BIT, MASK = 0x20, 0x15, 0x35, 0x45, 0x54  # operations of a filter
ALLOW, REFUSE, UNKNOWN = (struct.pack("=HBBI", 6, 0, 0, k) for k in (0x7FFF0000, 0x50001, 0x50026))  # last: ENOSYS


def numbers(*tables: str) -> dict[str, int]:
    return {name: int(both[ARM]) for name, *both in map(str.split, ",".join(tables).split(","))}


NUMBERS = numbers(FORBIDDEN, PROCESSES, USED)


def prepared(name: str, *args: int | bytes) -> Callable[[], int]:
    """A system call ready to be made (-1: it failed). The less a fork has to build, the fewer pages it copies."""
    if MACHINE not in ("x86_64", "aarch64", "arm64"):
        raise OSError("not on this system")
    return partial(LIBC.syscall, *(ctypes.c_long(x) if isinstance(x, int) else x for x in (NUMBERS[name], *args)))


def syscall(name: str, *args: int | bytes) -> int:
    if (result := prepared(name, *args)()) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Layers:
    """Puts on the layers, in order. state: of each; folder: the private one; enter: steps before a fork; last: steps of
    a process that is to run b"p" a program, b"q" one beside a script, b"s" a script."""

    def __init__(self, memory_mb: int, without: Sequence[str]):
        self.without, self.state, self.enter, steps = without, {}, [], []
        if MACHINE and os.getuid() == 0 and "resource limits" not in without:
            with suppress(OSError):  # root may have any number of processes, by its real id; a container's root may not
                os.setresuid(65534, -1, -1)
        for name in NAMESPACES:
            self.put_on(f"{name} namespace", self.unshare, name)
        used = [*self.readable(), sys.executable]
        self.folder = next(path for path in ("/tmp", "/var/tmp", "/mnt") if not any(f.startswith(path) for f in used))
        spare = f"{self.folder}/codea1-{os.urandom(8).hex()}"
        if pid := os.fork():  # the child is the first process of its pid namespace: with it, all others end
            os.waitpid(pid, 0)
            if os.path.isdir(spare):
                empty(spare)
                os.rmdir(spare)
            os._exit(0)
        if self.active("pid namespace"):
            home, new = os.open("/proc/self/ns/pid", os.O_RDONLY), NAMESPACES["pid"]
            os.dup2(home, HOME)
            os.close(home)
            self.enter = [prepared("setns", HOME, new), prepared("unshare", new)]
        if self.active("mount namespace"):
            self.put_on("mount namespace", self.mount)
        if not self.active("mount namespace"):
            os.mkdir(spare, 0o700)
            self.folder = spare
        self.put_on("no new privileges", syscall, "prctl", 38, 1, 0, 0, 0)
        self.put_on("landlock", self.landlock)
        self.put_on("seccomp", lambda: syscall("prctl", *self.filter(numbers(FORBIDDEN))))
        if self.active("seccomp"):
            missing = [names for layer, names in STAND_INS.items() if not self.active(layer)]
            steps.append(prepared("prctl", *self.filter(numbers(PROCESSES, *missing), threads_only=True)))
        capset = "capset", struct.pack("Ii", 0x20080522, 0), bytes(24)
        self.put_on("no capabilities", lambda: steps.append(prepared(*capset)))
        self.put_on("resource limits", lambda: None if MACHINE else "missing: the limit of memory")
        # Processes and threads are counted inside of the user namespace.
        more = ({"NICE": 0, "RTPRIO": 0} if MACHINE else {}) | ({"NPROC": 256} if self.active("user namespace") else {})
        for step in self.limits(CORE=0, FSIZE=FOLDER_MB << 20, NOFILE=128, **more):
            step()
        steps += self.limits(CPU=3600) + ([] if self.enter else [os.setsid])
        more_mb = max(memory_mb, SCRIPT_MB)  # macOS reserves more address space than there is memory: no limit there
        sizes = {b"p": memory_mb, b"q": more_mb, b"s": more_mb}
        self.last = {what: steps + (self.limits(AS=size << 20) if MACHINE else []) for what, size in sizes.items()}

    def put_on(self, layer: str, action: Callable, *args: Any) -> None:
        try:
            self.state[layer] = "left out" if layer in self.without else action(*args) or "active"
        except (OSError, AttributeError) as error:
            self.state[layer] = f"missing: {error}"

    def active(self, layer: str) -> bool:
        return self.state[layer] == "active"

    def unshare(self, name: str) -> None:
        uid, gid = os.geteuid(), os.getegid()
        maps = ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")
        syscall("unshare", NAMESPACES[name])
        for file, line in maps if name == "user" else ():  # inside the same user, and no other to become
            with open(f"/proc/self/{file}", "w") as map_file:
                map_file.write(line)

    def mount(self) -> None:
        """All that is mounted becomes read-only; over it a folder in memory, an empty /proc, no data of ours."""
        syscall("mount", b"none", b"/", 0, 0x44000, 0)  # private, recursive
        syscall("mount_setattr", -100, b"/", 0x8000, struct.pack("4Q", 3, 0, 0, 0), 32)  # read-only, no suid, recursive
        for path, read_only, size in ("/proc", 1, "4k"), (HIDDEN, 1, "4k"), (self.folder, 0, f"{FOLDER_MB}m"):
            if os.path.isdir(path):
                options = f"mode=777,nr_inodes=500,size={size}".encode()
                syscall("mount", b"none", path.encode(), b"tmpfs", 6 | read_only, options)  # no suid, no devices

    def readable(self) -> Iterator[str]:
        """The interpreter's libraries, installed packages but not our data, and what those read."""
        todo = [*filter(None, sys.path), sys.base_prefix + "/lib", "/usr/share/zoneinfo", "/dev/urandom", "/dev/zero"]
        todo += "/lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /etc/ld.so.cache /etc/localtime /etc/mime.types".split()
        while todo:
            path = os.path.realpath(todo.pop())
            if HIDDEN.startswith(path + os.sep):
                todo += [entry.path for entry in os.scandir(path)]
            elif path != HIDDEN and os.path.exists(path):
                yield path

    def landlock(self) -> None:
        """No file access but reading what is readable, and anything in the folder; no TCP; no signals to others."""
        abi = syscall("landlock_create_ruleset", 0, 0, 1)
        known = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1  # the kinds of access that this kernel controls
        handled = struct.pack("3Q", known, 3, 3)[: 8 if abi < 4 else 16 if abi < 6 else 24]
        rules = syscall("landlock_create_ruleset", handled, len(handled), 0)
        for path, rights in *((path, 0xC) for path in self.readable()), ("/dev/null", 0x6), (self.folder, known):
            fd = os.open(path, os.O_PATH)
            rights &= known if os.path.isdir(path) else 0xC007
            syscall("landlock_add_rule", rules, 1, struct.pack("=Qi", rights, fd), 0)
            os.close(fd)
        syscall("landlock_restrict_self", rules, 0)
        os.close(rules)

    def filter(self, forbidden: dict[str, int], threads_only: bool = False) -> tuple[int | bytes, ...]:
        """Arguments of the prctl that puts on a seccomp filter. threads_only: clone makes no process. Pairs of sockets
        must be streams, those cannot be pointed elsewhere. No core is kept from others (PR_SCHED_CORE)."""

        def op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
            return struct.pack("=HBBI", code, yes, no, k)

        ops = [op(LOAD, 4), op(EQUAL, 0xC00000B7 if ARM else 0xC000003E, 1), REFUSE]  # no other architecture
        ops += [op(LOAD, 0), op(AT_LEAST, 1 << 30, 0, 1), REFUSE]  # no x32 either
        for number in forbidden.values():
            ops += [op(EQUAL, number, 0, 1), REFUSE] if number >= 0 else []
        if threads_only:  # the flags of clone3 are out of sight: where it is unknown, the C library takes clone
            ops += [op(EQUAL, NUMBERS["clone3"], 0, 1), UNKNOWN]
            ops += [op(EQUAL, NUMBERS["clone"], 0, 4), op(LOAD, 16), op(ANY_BIT, 0x10000, 0, 1), ALLOW, REFUSE]
        ops += [op(EQUAL, NUMBERS["socketpair"], 0, 5), op(LOAD, 24), op(MASK, 15), op(EQUAL, 1, 0, 1), ALLOW, REFUSE]
        ops += [op(EQUAL, NUMBERS["prctl"], 0, 3), op(LOAD, 16), op(EQUAL, 62, 0, 1), REFUSE]
        self.code = ctypes.create_string_buffer(b"".join([*ops, ALLOW]))
        return 22, 2, struct.pack("HP", len(ops) + 1, ctypes.addressof(self.code)), 0, 0

    def limits(self, **wanted: int) -> list[Callable]:
        """Steps that lower resource limits, each at most to the hard limit there is."""
        steps = []
        for name, value in () if "resource limits" in self.without else wanted.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            steps.append(partial(resource.setrlimit, kind, (value, value)))
        return steps


# ---- the process of a program, or of a script ----


def program() -> Callable[[int], None]:
    """What loads a program and answers calls until the supervisor hangs up. Made before the fork, so that a fork copies
    fewer pages. Nothing in its process is to be trusted once it has loaded."""
    next_request, to_bytes, name_of, from_data, send = receive, dump, name, decode, write
    module = sys.modules["solution"] = types.ModuleType("solution")
    namespace = module.__dict__

    def load(source: str, entry: str) -> None:
        exec(compile(source, "<solution>", "exec", dont_inherit=True), namespace)
        if entry and not callable(namespace.get(entry)):
            raise NameError(entry)

    def call(code: str | bytes) -> Any:
        plain = type(code) is str
        return eval(compile(code, "<call>", "eval", dont_inherit=True) if plain else marshal.loads(code), namespace)

    def apply(data: bytes) -> Any:
        name, args, kwargs = json.loads(data)
        return namespace[name](*from_data(args), **from_data(kwargs))

    def reply(action: Callable, *args: Any) -> bytes:
        try:
            return VALUE + to_bytes(action(*args))
        except BaseException as error:
            return RAISED + name_of(type(error)).encode("utf-8", "replace")

    def serve(fd: int) -> None:
        read = partial(os.read, fd)
        while True:
            nonce, what, *args = next_request(read)
            if what == "all":
                replies = [reply(load, *args[:2])]
                replies += [reply(call, code) for code in args[2] if replies[0][:1] == VALUE]
                data = b"\n".join(replies)
            else:
                data = reply({"load": load, "call": call, "apply": apply}[what], *args)
            send(fd, HEAD.pack(nonce, len(data)) + data)

    return serve


STOPS = StopIteration, StopAsyncIteration  # would end the script's own loops, before they have checked everything


def script(fd: int) -> None:
    """Runs check(candidate) of a trusted script. The candidate, and every name that the script uses without defining
    it, is a stand-in that asks the program through the supervisor."""
    nonce, source, entry = receive(partial(os.read, fd))
    raised: list[Exception] = []

    def say(data: bytes) -> None:
        write(fd, HEAD.pack(nonce, len(data)) + data)

    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        say(CALL + to_json([name, encode(list(args), [MAX_ITEMS]), encode(kwargs, [MAX_ITEMS])]).encode())
        answer = receive(partial(os.read, fd))
        if answer[:1] == VALUE:
            return decode(json.loads(answer[1:]))
        kind = getattr(builtins, answer[1:].decode("utf-8", "replace"), None)
        well = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, STOPS)
        raised.append((kind if well else Exception)(name))
        raise raised[-1]

    def names(code: types.CodeType) -> set[str]:
        inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
        return set(code.co_names).union(*map(names, inner))

    outcome = VALUE
    try:
        code = compile(source, "<script>", "exec", dont_inherit=True)
        namespace: dict[str, Any] = {name: partial(call, name) for name in names(code) if not hasattr(builtins, name)}
        exec(code, namespace)
        namespace["check"](partial(call, entry))
    except BaseException as error:
        outcome = REFUTED if isinstance(error, AssertionError) and error not in raised else RAISED
    say(outcome)


# ---- the fork server: a warm process that sees no program, no call and no value, ever ----

CTL, STDERR, HOME = 61, 62, 63  # its descriptors: that of a program's socket is 3, and the rest is closed
ANSWER = struct.Struct("=cd")  # of the fork server: b"d" done, with a number; b"!" a process could not be prepared
SAMPLE = """
import bisect, copy, heapq, itertools, math, operator, random, re, string
from collections import Counter, defaultdict
from typing import Dict, List, Optional, Tuple

def f(xs: List[int], n: Optional[int] = None) -> Tuple[List[int], Dict[int, int]]:
    ordered = sorted(xs, key=lambda x: -x)
    return [x for i, x in enumerate(ordered) if x > 1], dict(Counter(xs))
"""


def rehearse() -> None:
    """Loads the usual modules and runs a program, so that what the first would warm up is warm for all."""
    ours, theirs = socket.socketpair()
    for _ in range(10):
        ours.sendall(frame([bytes(8), "all", SAMPLE, "f", [compiled("f([1, 2, 3])")] * 3]))
    ours.shutdown(socket.SHUT_WR)
    try:
        program()(theirs.fileno())
    except EOFError:
        gc.collect()


def fork_server(ctl: socket.socket, settings: dict) -> None:
    """Obeys commands of two bytes, what and slot: fork (comes with a socket), tell CPU time, kill. Ends when its
    supervisor does."""
    layers = Layers(settings["memory_mb"], settings["without"])
    os.chdir(layers.folder)
    os.environ.update(HOME=layers.folder, TMPDIR=layers.folder)
    rehearse()
    serve = {b"p": program(), b"s": script}
    serve[b"q"] = serve[b"p"]
    getattr(LIBC, "malloc_trim", int)(0)
    gc.freeze()
    gc.disable()
    ctl.sendall(frame(layers.state))
    children: dict[bytes, int] = {}
    while True:
        command, fds, _, _ = ctl.recvmsg(2, 24)
        what, slot = command[:1], command[1:]
        if what in serve:
            if settings["numpy"] and "numpy" not in sys.modules:
                importlib.import_module("numpy").random.seed(settings["seed"])
                gc.freeze()
            if any(step() for step in layers.enter):
                raise OSError("no pid namespace")
            if (pid := os.fork()) == 0:
                start(ctl, int.from_bytes(fds[0][2][:4], sys.byteorder), serve[what], layers.last[what])
            children[slot] = pid
            os.close(int.from_bytes(fds[0][2][:4], sys.byteorder))
        elif what == b"c":
            used = 0.0
            with suppress(KeyError, OSError, AttributeError):  # from now on it may run on any core: it is worth it
                os.sched_setaffinity(children[slot], settings["cpus"])
                used = time.clock_gettime((~children[slot] << 3) | 2)  # Linux: the CPU clock of another process
            ctl.sendall(ANSWER.pack(b"d", used))
        else:
            for pid in [children.pop(slot)] if what else children.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            empty(layers.folder)
            if not what:
                os._exit(0)


def start(ctl: socket.socket, fd: int, serve: Callable, last: Sequence[Callable]) -> None:
    """The first steps of a forked process. Never returns. No program is read before every layer is on."""
    try:
        if any(step() for step in last) or os.dup2(fd, 3) != 3:
            ctl.sendall(ANSWER.pack(b"!", 0))
            os._exit(1)
        os.closerange(4, 64)  # all but the standard ones and the socket
        gc.enable()
        serve(3)
    except EOFError:  # the supervisor needs no more
        pass
    finally:
        os._exit(0)


def empty(folder: str) -> None:
    """Removes what a program left behind, without recursion: what lies deeper is first moved up."""
    while names := os.listdir(folder):
        for path in (os.path.join(folder, name) for name in names):
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, 0o700)
                for inner in os.listdir(path):
                    os.rename(os.path.join(path, inner), os.path.join(folder, os.urandom(8).hex()))
                os.rmdir(path)
            else:
                os.unlink(path)


# ---- the supervisor: outside of every layer, one for each worker ----


class Server:
    """A fork server, as its supervisor sees it."""

    def __init__(self, settings: dict):
        self.ctl, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for old, new in (other.fileno(), CTL), (2, STDERR), (1, 0), (1, 2):  # programs have only /dev/null
                    os.dup2(old, new)
                os.closerange(3, CTL)
                fork_server(socket.socket(fileno=CTL), settings)
            except BaseException:
                os.dup2(STDERR, 2)
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        other.close()
        self.state, self.settled = receive(self.ctl.recv), True

    def command(self, what: bytes, slot: bytes, *fds: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        self.ctl.sendmsg([what + slot], rights)
        self.settled = False

    def seconds(self, slot: bytes) -> float:
        """CPU time of a child. Asking for it also waits until all commands are obeyed."""
        self.command(b"c", slot)
        kind, number = ANSWER.unpack(self.ctl.recv(ANSWER.size, socket.MSG_WAITALL).ljust(ANSWER.size, b"."))
        if kind != b"d":
            raise RuntimeError("a process could not be prepared for the program" if kind == b"!" else
                               "the fork server is gone")  # fmt: skip
        return number

    def settle(self) -> None:
        """Returns when no child is left of those that were closed."""
        if not self.settled:
            self.seconds(b"0")
            self.settled = True

    def asleep(self) -> bool:
        """Whether the newest process that it has forked waits for something; no where that cannot be seen."""
        try:
            pid = str(self.pid)
            for _ in range(2):
                pid = text(f"/proc/{pid}/task/{pid}/children").split()[-1]
            return text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] == "S"
        except (OSError, IndexError):
            return False


def text(path: str) -> str:
    with open(path) as file:
        return file.read()


class Child:
    """A process that runs a program or a script; it answers one request at a time, each within limits."""

    def __init__(self, server: Server, what: bytes, slot: bytes, trainer: select.poll):
        self.server, self.slot, self.trainer = server, slot, trainer
        self.kinds = (VALUE, RAISED) if what != b"s" else (VALUE, RAISED, REFUTED, CALL)
        self.sock, other = socket.socketpair()
        server.command(what, slot, other.fileno())
        other.close()
        self.poll = select.poll()

    def close(self) -> None:
        self.server.command(b"k", self.slot)
        self.sock.close()

    def ask(self, request: Sequence[Any], cpu: float, wall: float | None = None, hurried: bool = False) -> bytes:
        """The reply, TIMEOUT or CRASH; after these two the child is of no further use. What takes a few milliseconds is
        never measured, and CPU time counts from the first measurement. hurried: from the fork, and a child that sleeps
        is not waited for."""
        now, self.cpu, self.hurried, self.nonce = time.monotonic(), cpu, hurried, os.urandom(8)
        self.used = 0.0 if hurried else None
        self.deadline, self.check_at = now + (3 * cpu + 1 if wall is None else wall), now + min(cpu, 0.02)
        return self.tell([self.nonce, *request])

    def tell(self, message: Any) -> bytes:
        """`ask` within the limits of the last request: the answer to a script's own question."""
        data, buffer = memoryview(frame(message)), bytearray()
        try:
            while (reply := self.reply(buffer)) is None or data:
                self.poll.register(self.sock, select.POLLIN | (select.POLLOUT if data else 0))
                if time.monotonic() > self.check_at and self.exceeded():
                    return TIMEOUT
                for _, event in self.poll.poll(max(self.check_at - time.monotonic(), 0) * 1000):
                    with suppress(BlockingIOError):  # a program can make its socket look as if there were data
                        if event & select.POLLOUT:
                            data = data[self.sock.send(data, socket.MSG_DONTWAIT) :]
                        if event & ~select.POLLOUT:
                            if not (chunk := self.sock.recv(1 << 18, socket.MSG_DONTWAIT)):
                                return CRASH
                            buffer += chunk
            return reply
        except (ConnectionError, ValueError):
            return CRASH

    def reply(self, buffer: bytearray) -> bytes | None:
        """The reply, None while it is not complete; ValueError for what is no reply to this very request."""
        if len(buffer) < HEAD.size:
            return None
        nonce, size = HEAD.unpack_from(buffer)
        kind, missing = bytes(buffer[HEAD.size : HEAD.size + 1]), HEAD.size + size - len(buffer)
        most = (4 if CALL in self.kinds else 2) * MAX_REPLY
        if nonce != self.nonce or not 0 < size <= most or missing < 0 or kind not in (b"", *self.kinds):
            raise ValueError("not a reply to this request")
        return None if missing else bytes(memoryview(buffer)[HEAD.size :])

    def exceeded(self) -> bool:
        if self.trainer.poll(0):
            os._exit(0)
        used, now = self.server.seconds(self.slot), time.monotonic()
        self.used = used if self.used is None else self.used
        left = min(self.cpu - (used - self.used), self.deadline - now)
        self.check_at = now + min(max(left, 0.001 if self.hurried else 0.005), 0.25)
        return left <= 0 or (self.hurried and self.server.asleep() and not self.poll.poll(0))


class Supervisor:
    """Answers jobs of the trainer, one at a time, with the replies that came of them."""

    def __init__(self, job: socket.socket, settings: dict):
        self.trainer = select.poll()
        self.trainer.register(job, 0)  # says only that the trainer is gone
        # Both start before any program is seen: what they are forked from must hold nothing worth finding.
        self.servers = [Server({**settings, "numpy": numpy}) for numpy in (False, True)]
        job.sendall(frame(self.servers[0].state))
        while True:
            run, limit, rules, items = receive(job.recv)
            do = {"quick": self.quick, "calls": self.calls, "script": self.script}[run]
            answers = [do(limit, *item, *rules) for item in items]
            for server in self.servers:
                server.settle()
            job.sendall(frame(answers))

    def child(self, what: bytes, source: str, slot: bytes = b"0") -> Child:
        return Child(self.servers["numpy" in source], what, slot, self.trainer)

    def quick(self, limit: float, source: str, entry: str, calls: list, hurried: bool) -> list[bytes]:
        """What came of loading, then of each call, all in one go; nothing unless that goes well and fast."""
        child = self.child(b"p", source)
        replies = child.ask(["all", source, entry, calls], limit, 10 * limit, hurried).split(b"\n")
        child.close()
        well = all(reply[:1] in (VALUE, RAISED) and len(reply) <= MAX_REPLY for reply in replies)
        if well and len(replies) == (1 + len(calls) if replies[0][:1] == VALUE else 1):
            return replies + [NOT_RUN] * (1 + len(calls) - len(replies))
        return []

    def calls(self, timeout: float, source: str, entry: str, calls: list, resumes: int, *walls: float) -> list[bytes]:
        """The same one by one; after a crash or a timeout the rest goes to a fresh process. walls: none, or wall
        seconds for all calls together, then for each."""
        loaded, replies, room, begun = b"", [], 4 * MAX_REPLY, time.monotonic()
        for _ in range(1 + resumes):
            child = self.child(b"p", source)
            reply = child.ask(["load", source, entry], timeout)
            loaded, going = loaded or reply, reply[:1] == VALUE
            while going and len(replies) < len(calls):
                wall = min(walls[0] + begun - time.monotonic(), walls[1 + len(replies)]) if walls else None
                reply = child.ask(["call", calls[len(replies)]], math.inf if walls else timeout, wall)
                room -= len(reply)
                replies.append(reply if room > 0 and len(reply) <= MAX_REPLY else RAISED + TOO_LARGE.encode())
                going = reply[:1] in (VALUE, RAISED)
            child.close()
            if loaded[:1] != VALUE or len(replies) == len(calls):
                break
        return [loaded, *replies, *[NOT_RUN] * (len(calls) - len(replies))]

    def script(self, timeout: float, source: str, entry: str, script: str) -> list[bytes]:
        """What came of check(candidate). Each call has the limit, the script with all calls SCRIPT times as much."""
        program, checker = self.child(b"q", source), self.child(b"s", script, b"1")
        reply = program.ask(["load", source, entry], timeout)
        if reply[:1] == VALUE:
            reply = checker.ask([script, entry], SCRIPT * timeout)
            while reply[:1] == CALL:
                reply = program.ask(["apply", reply[1:]], timeout)
                if reply[:1] in (VALUE, RAISED):
                    reply = checker.tell(reply)
        program.close()
        checker.close()
        return [reply[:1]]


def worker_main(settings: str) -> None:
    """What START runs: becomes the supervisor of one worker. Its standard input is the socket to the trainer."""
    settings = json.loads(settings)
    register, os.register_at_fork = os.register_at_fork, lambda **_: None
    sys.modules.pop("random", None)
    importlib.import_module("random").seed(settings["seed"])  # without the hook that gives every fork its own seed
    os.register_at_fork = register
    if settings["cpu"] is not None:
        os.sched_setaffinity(0, [settings["cpu"]])  # who takes turns does so faster on one core
    with suppress(EOFError):  # the trainer is gone
        Supervisor(socket.socket(fileno=0), settings)
    with suppress(ChildProcessError):  # leaves after those that it started
        while True:
            os.wait()


# ---- the trainer's side ----

START = "import sys; sys.path[0] = sys.argv[2]; import sandbox; del sys.path[0]; sandbox.worker_main(*sys.argv[3:])"
INC = "def inc(x):\n    return x + 1\n", "inc", ["inc(1)"]
GOOD = ("calls", 10.0, (0,), [INC]), [[VALUE + b"null", VALUE + b"2"]]
BATCH = 8  # jobs in one message, if that many wait for each worker
NUMBER = count()


class Job(NamedTuple):
    turns: list[tuple[str, float, tuple]]  # what it is to the supervisor, a limit, rules: each if the one before fails
    data: tuple[str, str, Any]  # program, entry point, calls or script
    finish: Callable[[list[bytes]], Any]  # from the answer to the result of the future
    seed: int
    future: Future


class Worker:
    """A supervisor process, as the trainer sees it. Used by one thread at a time."""

    def __init__(self, settings: dict):
        self.sock, other = socket.socketpair()
        env = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": str(settings["seed"]), "OMP_NUM_THREADS": "1",
               "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}  # fmt: skip
        command = [sys.executable, "-s", "-c", START, "--worker", os.path.dirname(os.path.realpath(__file__))]
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*command, json.dumps(settings)], env=env, cwd="/", stdin=other,
            stdout=subprocess.DEVNULL, stderr=self.errors, start_new_session=True,
        )  # fmt: skip
        other.close()
        try:
            self.state: dict[str, str] = self.request(None, 60)
        except ConnectionError as down:
            raise SandboxError(f"a sandbox worker does not start: {down}") from None

    def request(self, job: Any, patience: float) -> Any:
        """The answer to a job (to None: the greeting); ConnectionError with the reason when there is none."""
        try:
            self.sock.settimeout(patience)
            if job is not None:
                self.sock.sendall(frame(job))
            return receive(self.sock.recv)
        except (OSError, EOFError) as error:
            self.close()
            self.errors.seek(0)
            said = self.errors.read()[-2000:].decode("utf-8", "replace").strip()
            raise ConnectionError(f"{error}, exit status {self.process.returncode}: {said}") from None

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
    memory_mb: address space of a program, MiB; require_isolation: SandboxError where a layer is missing.
    """

    def __init__(self, workers: int | None = None, timeout: float = 2.0, memory_mb: int = 1024,
                 require_isolation: bool = False, _without: Sequence[str] = ()):  # fmt: skip
        cpus = sorted(os.sched_getaffinity(0)) if MACHINE else []
        self.workers, self.timeout = workers or len(cpus) or os.cpu_count() or 1, float(timeout)
        self.settings = {"memory_mb": memory_mb, "without": list(_without), "cpus": cpus}
        self.begin()
        missing = [f"{layer}: {state}" for layer, state in self.report().items() if state != "active"]
        if require_isolation and missing:
            self.close()
            raise SandboxError(f"layers of the sandbox are missing: {'; '.join(missing)}")

    def begin(self) -> None:
        self.pid, self.threads, self.jobs = os.getpid(), [], queue.PriorityQueue()
        self.idle: dict[int, list[Worker]] = {0: [], 1: []}  # by hash seed

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers, after the jobs that were submitted."""
        for _ in self.threads:
            self.jobs.put((1 + len(QUICK), next(NUMBER), None))
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

    def judge(self, items: Iterable[tuple[str, str, Sequence[Any]]], resumes: int = RESUMES) -> list[Verdict]:
        """[(program, entry point, [Test or assert source, ...]), ...] -> verdicts. Each distinct call runs once.

        resumes: how many crashes and timeouts a program may have before its remaining tests are not run.
        """
        return results(self.verdict(*item, resumes) for item in items)

    def loads(self, items: Iterable[tuple[str, str]]) -> list[bool]:
        """[(program, entry point), ...] -> whether the module runs to its end and defines it as a callable."""
        return [verdict.loads for verdict in self.judge((program, entry, []) for program, entry in items)]

    def check(self, items: Iterable[tuple[str, Sequence[Any]]]) -> list[list[Status]]:
        """[(program, [Test or assert source, ...]), ...] -> statuses; what does not load or parse is an ERROR."""
        return results(self.submit(program, tests) for program, tests in items)

    def submit(self, program: str, tests: Sequence[Any]) -> Future[list[Status]]:
        """`check` of one program, without waiting."""
        entry = next((test.call.partition("(")[0] for test in map(parsed, tests) if test is not None), "")
        return self.verdict(program, entry, tests, RESUMES, lambda verdict: verdict.statuses)

    def values(self, items: Iterable[tuple[str, Sequence[str]]]) -> list[list[Value]]:
        """[(program, [call source, ...]), ...] -> what the calls return; a call is any expression, run in order."""
        return results(self.run(program, "", calls, values) for program, calls in items)

    def timed_values(self, items: Iterable[tuple[str, Sequence[str], Sequence[float]]], total: float) -> list:
        """`values` under a benchmark's limits: [(program, calls, wall seconds of each call), ...], and `total` for all
        calls of a program. Its first crash or timeout is its last call."""
        return results(self.run(program, "", calls, values, 0, total, *walls) for program, calls, walls in items)

    def ground_truth(self, items: Iterable[tuple[str, Sequence[str]]]) -> list[list[Value]]:
        """`values`, but each call runs twice, the second time in reverse order under another hash seed: a value that
        differs is none. No number of crashing or hanging calls keeps the others from running."""
        items = [(program, list(calls)) for program, calls in items]
        known = [dict.fromkeys(calls) for _, calls in items]
        for seed in (0, 1):
            rest = [[call for call in reversed(t) if t[call].ok] if seed else list(t) for t in known]
            runs = [self.run(program, "", [*map(compiled, calls)], values, len(calls), seed=seed)
                    for (program, _), calls in zip(items, rest, strict=True)]  # fmt: skip
            for table, calls, run in zip(known, rest, runs, strict=True):
                for call, got in zip(calls, run.result(), strict=True):
                    steady = not seed or (got.ok and same(table[call].value, got.value))
                    table[call] = got if steady else Value(False, None, "nondeterministic")
        return [[table[call] for call in calls] for table, (_, calls) in zip(known, items, strict=True)]

    def check_script(self, program: str, script: str, entry_point: str, timeout: float) -> Status:
        """Runs the script's check(candidate) in a process of its own. timeout: CPU seconds of each call."""
        kinds = {VALUE: Status.PASS, REFUTED: Status.FAIL, TIMEOUT: Status.TIMEOUT}
        data, turn = (program, entry_point, script), ("script", float(timeout), ())
        return self.put(Job([turn], data, lambda answer: kinds.get(answer[0], Status.ERROR), 0, Future())).result()

    def verdict(self, program: str, entry: str, tests: Sequence[Any], resumes: int, then=lambda it: it) -> Future:
        """A future of what `then` makes of the verdict on a program."""
        known = [parsed(test, entry) if isinstance(test, str) else test for test in tests]
        calls = list(dict.fromkeys(test.call for test in known if test is not None))

        def finish(answer: list[bytes]) -> Any:
            if answer[0][:1] != VALUE:
                return then(Verdict(False, [Status.ERROR] * len(tests)))
            replies = dict(zip(calls, answer[1:], strict=True))
            judge = status if max(map(len, answer)) < 1000 else status.__wrapped__  # no cache of large replies
            return then(Verdict(True, [judge(replies[test.call], test) if test else Status.ERROR for test in known]))

        return self.run(program, entry, [*map(compiled, calls)], finish, resumes)

    def run(self, program: str, entry: str, calls: Sequence[str], finish: Callable, *rules: float, seed=0) -> Future:
        """A future of what `finish` makes of the replies; rules: number of resumes, then the wall limits if any."""
        limits = [limit for limit in QUICK if limit < self.timeout and not rules[1:]]
        turns = [("quick", limit, (limit == QUICK[0],)) for limit in limits]
        turns.append(("calls", self.timeout, rules or (RESUMES,)))
        return self.put(Job(turns, (program, entry, list(calls)), finish, seed, Future()))

    def put(self, job: Job) -> Future:
        if self.pid != os.getpid():  # a forked copy of the trainer: the workers belong to the original
            self.begin()
        job.future.set_running_or_notify_cancel()  # there is no way back
        self.jobs.put((0, next(NUMBER), job))
        while len(self.threads) < self.workers:
            self.threads.append(threading.Thread(target=self.work, args=[self.jobs], daemon=True))
            self.threads[-1].start()
        return job.future

    def work(self, todo: queue.PriorityQueue) -> None:
        while batch := self.take(todo):
            answers = self.together(batch) if batch[1:] else [None]
            for (turn, number, job), answer in zip(batch, answers, strict=True):
                try:
                    answer = self.alone(job, turn) if answer is None else answer
                    if answer:
                        job.future.set_result(job.finish(answer))
                    else:  # no quick one: it waits until those that are have had their turn
                        todo.put((turn + 1, number, job))
                except BaseException as error:
                    job.future.set_exception(error)

    def take(self, todo: queue.PriorityQueue) -> list[tuple[int, int, Job]]:
        """The next job, with others like it if there are so many that no worker goes without; nothing at the end."""
        turn, number, job = todo.get()
        batch = [(turn, number, job)] if job else []
        while job and job.turns[turn][0] == "quick" and len(batch) < min(BATCH, todo.qsize() / self.workers):
            try:
                item = todo.get_nowait()
            except queue.Empty:
                break
            if not item[2] or item[0] != turn or item[2].turns != job.turns or item[2].seed != job.seed:
                todo.put(item)
                break
            batch.append(item)
        return batch

    def together(self, batch: list[tuple[int, int, Job]]) -> list[list[bytes] | None]:
        """A worker's answers to jobs that are alike; None for each if that does not go well."""
        turn, _, job = batch[0]
        with suppress(ConnectionError, SandboxError, ValueError):
            return self.ask(job.seed, (*job.turns[turn], [other.data for _, _, other in batch]), 60)
        return [None] * len(batch)

    def alone(self, job: Job, turn: int) -> list[bytes]:
        """A worker's answer. A job that takes its worker down is tried again on a fresh one; down again, it is the
        program's fault (every call a crash) if a harmless program passes, else ours."""
        (run, limit, rules), calls, reasons = job.turns[turn], job.data[2], []
        patience = 30 + (2 * len(calls) + 2 if run != "script" else 6 * SCRIPT) * (3 * limit + 1) + sum(rules[1:2])
        while len(reasons) < 2:
            try:
                (answer,) = self.ask(job.seed, (run, limit, rules, [job.data]), patience, bool(reasons))
                return answer
            except ConnectionError as down:
                reasons.append(str(down))
        try:
            good = self.ask(job.seed, GOOD[0], 60, True)
        except ConnectionError as down:
            good = str(down)
        if good != GOOD[1]:
            raise SandboxError(f"workers go down: {reasons}; and what came of a harmless program is {good!r}")
        return [CRASH] * (1 + len(calls))

    def ask(self, seed: int, message: tuple, patience: float, fresh: bool = False) -> list[list[bytes]]:
        """What a worker answers. ConnectionError: it is gone; ValueError: the message is no data."""
        try:
            worker = self.start(seed) if fresh else self.idle[seed].pop()
        except IndexError:
            worker = self.start(seed)
        try:
            return worker.request(message, patience)
        finally:
            if worker.process.returncode is None:
                self.idle[seed].append(worker)

    def start(self, seed: int) -> Worker:
        cpus = self.settings["cpus"]
        return Worker({**self.settings, "seed": seed, "cpu": cpus[next(NUMBER) % len(cpus)] if cpus else None})


def results(futures: Iterable[Future]) -> list:
    return [future.result() for future in list(futures)]


@lru_cache(maxsize=4096)
def parsed(test: Any, entry: str = "") -> Any:
    return tasks.parse_assert(test, entry or None) if isinstance(test, str) else test


def values(answer: list[bytes]) -> list[Value]:
    loaded, *replies = answer
    return [value(reply if loaded[:1] == VALUE else loaded) for reply in replies]


def value(reply: bytes) -> Value:
    """A reply as the trainer sees it. Its data is hostile: bounded in size, and read as JSON."""
    kind, data = reply[:1], reply[1:]
    if kind == RAISED:
        return Value(False, None, data.decode("utf-8", "replace")[:80])
    if kind != VALUE:
        return Value(False, None, {TIMEOUT: "timeout", NOT_RUN: "not_run"}.get(kind, "crash"))
    try:
        return Value(True, decode(json.loads(data)))
    except MALFORMED:
        return Value(False, None, "malformed")


@lru_cache(maxsize=16384)
def status(reply: bytes, test: Any) -> Status:
    """The verdict on one test. Anything not proven is no pass."""
    got = value(reply)
    if got.ok:
        return Status.PASS if tasks.holds(got.value, test) else Status.FAIL
    return {"timeout": Status.TIMEOUT, "not_run": Status.NOT_RUN}.get(got.error, Status.ERROR)


def same(a: Any, b: Any) -> bool:
    return tasks.equal(a, b) or (isinstance(a, Opaque) and isinstance(b, Opaque) and a.type_name == b.type_name)


# ---- python sandbox.py ----

ACTS = """
import ctypes, os, socket
def libc(name, *args):
    if getattr(ctypes.CDLL(None), name)(*args) == -1:
        raise PermissionError(name)
def gain_privileges():
    if ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) == 1:
        raise PermissionError("no_new_privs is set")
"""
PROOFS = {  # layer: an act that it forbids, and the other layers that would forbid it too
    "user namespace": ("os.setgroups([0])", ["no capabilities"]),
    "mount namespace": ("os.chmod(os.__file__, os.stat(os.__file__).st_mode)", ["seccomp"]),
    "network namespace": ("socket.create_connection(('127.0.0.1', {port}), 1).close()", ["seccomp", "landlock"]),
    "ipc namespace": ("libc('shmget', {key}, 1, 0)", ["seccomp"]),
    "pid namespace": ("os.kill({pid}, 0)", ["seccomp", "landlock"]),
    "no new privileges": ("gain_privileges()", []),
    "landlock": ("os.listdir('/')", []),
    "no capabilities": ("os.setgroups([0])", ["user namespace"]),
    "seccomp": ("os.waitpid(os.fork() or os._exit(0), 0)", []),
    "resource limits": ("len(bytearray({memory}))", []),
}


def main() -> None:
    """Prints the state of each layer on this machine, and what came of an act that it forbids."""
    listener = importlib.import_module("socket").create_server(("127.0.0.1", 0))
    key, memory_mb = 0x5EC0DE, 256
    segment = LIBC.shmget(key, 1, 0o1600)
    known = {"port": listener.getsockname()[1], "key": key, "pid": os.getpid(), "memory": 2 * memory_mb << 20}
    for layer, (template, others) in PROOFS.items():
        act = template.format(**known)
        with Sandbox(1, memory_mb=memory_mb, _without=others) as box:
            got = box.values([(ACTS, [act])])[0][0]
            print(f"{layer:18} {box.report()[layer]:8} {act:62} {'ALLOWED' if got.ok else 'refused: ' + got.error}")
    LIBC.shmctl(segment, 0, None)


if __name__ == "__main__":
    main()
