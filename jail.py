"""Runs programs that nobody trusts, each in a process of its own. Imports nothing of ours.

    whoever asks <-> supervisor (limits, kills) <-> fork server (layers) -> a process per program

`main` is one worker: the supervisor, which takes jobs from a socket on its standard input. Its fork
server puts on the layers, loads the usual modules, and forks a process for every program.
Reinforcement learning searches for every hole, so:

- What a program can say. It gets calls and returns values, as tagged JSON: no test, expected value
  or ground truth ever enters its process or the one it is forked from. The kind of an outcome (the
  first byte of a reply) is the supervisor's word but for two: "returned" and "raised". A program
  may lie about its own values, and can be no more right for it.
- What a program finds. The world as the first one found it: descriptors and a folder of its own, a
  process forked from a server that has seen no program. It reads the interpreter and its libraries,
  writes only its folder (64 MiB and 500 files in memory), starts up to 256 threads but no process,
  and has no network.
- What it costs. CPU time is limited for each call, sleeping for a program as a whole; both are
  measured and ended from outside. Memory stays under memory_mb + FOLDER_MB + 128 MiB a worker.
  Nothing outlives a program, its worker or the trainer, also under SIGKILL.

Layers, and what holds without them (`python sandbox.py` says which there are on a machine):
- without the mount namespace, as in a plain container: the folder lies on disk, a file in it has
  4 MiB at most, and its size is looked at only as often as the clock is (with what is deleted but
  still held, unless a container's root may not look); modes, owners, times and attributes of files
  cannot be changed at all; the times of last access of library files can be seen to change.
- without Landlock: what the user may read can be read. Without the mount namespace too, nothing
  can be written, not even the private folder.
- without the user namespace: threads are counted with those of the whole user, up to 4,096 more,
  and those of one program as often as the clock is looked at.
- without the pid namespace: processes of the machine can be seen, not touched; no program can send
  a signal to itself.
- without seccomp: what it refuses hangs on the other layers; locks and leases can carry notes
  between programs that run at the same time.
Verdicts cannot be forged in any of these cases. With resource limits alone, as on macOS, programs
can do what the user can, and change these files.
Not defended: faults of the kernel; side channels (timing, counters of the kernel, which files of
a library have been read); names and sizes of the host's files.
"""

from __future__ import annotations

import _socket as socket  # not `socket`: every fork copies what a worker has loaded
import ctypes
import gc
import importlib
import json
import marshal
import math
import os
import select
import signal
import stat
import struct
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

try:
    import resource
except ImportError:
    message = "programs run on Linux, and on macOS with fewer protections: on Windows use WSL"
    raise ImportError(message) from None

MAX_REPLY = 16 << 20  # bytes of one value as JSON
# Items of a value, nested ones too, and their nesting. What is not a number, text or list counts
# as eight more; so do the items of a set or dict that are containers.
MAX_ITEMS, MAX_DEPTH = 1_200_000, 100
TOTAL = 4 * MAX_REPLY  # bytes of all values of a program; those beyond are "too large"
FOLDER_MB, FOLDER_FILES = 64, 500  # size of the private folder
FILE_ON_DISK = 4 << 20  # bytes of a file, where the folder lies on disk
THREADS = 256  # of a program
SLEEP = 3.0, 1.0  # a program may sleep this many times the CPU limit of a call, and seconds more

# What came of a call: the first byte of a reply. A program chooses between the first two only.
VALUE, RAISED, TIMEOUT, CRASH, NOT_RUN = b"v", b"e", b"t", b"x", b"n"
TOO_LARGE = VALUE + b'{"opaque":"too large"}'
HEAD = struct.Struct("!I")  # in front of a reply: its length


# ---- values as data ----

SCALARS = {str, bool, float, type(None)}  # what JSON says exactly, as it does integers of 64 bits
# What `json.JSONEncoder(separators=(",", ":"))` makes anew for each value.
escape = json.encoder.encode_basestring_ascii
JSON = json.encoder.c_make_encoder(None, None, escape, None, ":", ",", False, False, True)
ALL = slice(None)
# Copies of exact type, made by the base class itself: the object's own methods are not asked.
COPIES: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__, float: float.__pos__, complex: complex.__pos__, str: str.__str__,
    bytes: lambda x: bytes.__getitem__(x, ALL), bytearray: lambda x: bytes(bytearray.copy(x)),
    list: lambda x: list.__getitem__(x, ALL), tuple: lambda x: tuple.__getitem__(x, ALL),
    dict: dict.copy, set: lambda x: set(set.__iter__(x)),
    frozenset: lambda x: frozenset(frozenset.__iter__(x)),
}
LIBRARIES = ("numpy", "generic"), ("decimal", "Decimal"), ("fractions", "Fraction")
LISTED = (range, deque, type({}.keys()), type({}.values()), type({}.items()))  # as iterators are


def to_json(data: Any) -> bytes:
    return "".join(JSON(data, 0)).encode()


def encode(value: Any, room: list[int], depth: int = MAX_DEPTH) -> Any:
    """A value as JSON data: lists stay, every other container or odd scalar is {tag: content}.

    room[0]: how many items more may be encoded; OverflowError when there are more.
    >>> encode((1, {2: "x"}), [99])
    {'tuple': [1, {'dict': [{'tuple': [2, 'x']}]}]}
    """
    kind = type(value)
    if kind in SCALARS or (kind is int and -(2**63) <= value < 2**63):
        return value
    if kind in (list, tuple, set, frozenset, dict):
        room[0] -= 1 + len(value)
        if room[0] < 0:
            raise OverflowError("too many items")
        if depth == 0:
            return {"opaque": "nested too deeply"}
        items = value.items() if kind is dict else value
        kinds = set(map(type, items))
        small = kinds == {int} and -(2**63) <= min(items) and max(items) < 2**63
        if not (kinds <= SCALARS or small):
            items = [encode(item, room, depth - 1) for item in items]
        return items if kind is list else {kind.__name__: list(items)}
    if kind is int:
        return {"int": hex(value)}  # decimal text has a digit limit and quadratic cost
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if (plain := as_plain(value, kind)) is not value:
        return encode(plain, room, depth)
    if kind in LISTED or hasattr(kind, "__next__"):  # an iterator travels as its items, marked
        items = list(islice(value, max(room[0], 0) + 1))
        return {"items": [name(kind), encode(items, room, depth - 1) if depth else []]}
    return {"opaque": name(kind)}


def as_plain(value: Any, kind: type) -> Any:
    """The built-in value that an object of a subclass, a numpy scalar, or a number that a float or
    an integer says exactly stands for; else the object itself."""
    for base in COPIES:
        if issubclass(kind, base):
            return COPIES[base](value)
    # What is not loaded has no objects.
    numpy, decimal, fraction = (getattr(sys.modules.get(m), x, ()) for m, x in LIBRARIES)
    if isinstance(value, numpy):
        plain = value.item()
        return value if isinstance(plain, numpy) else plain
    if isinstance(value, decimal) and not value.is_finite():
        return float(value)
    if isinstance(value, (decimal, fraction)):
        ratio = tuple(map(int, value.as_integer_ratio()))
        with suppress(OverflowError):  # an integer too large for a float
            if ratio[1] > 1 and (ratio[0] / ratio[1]).as_integer_ratio() == ratio:
                return ratio[0] / ratio[1]
        return ratio[0] if ratio[1] == 1 else value
    return value


def weight(data: bytes) -> int:
    """About how many items it costs to read a JSON text; commas and brackets in strings count."""
    return data.count(b",") + data.count(b"[") + 8 * data.count(b"{")


def dump(value: Any, limit: int) -> bytes:
    """A value as JSON of at most `limit` bytes and MAX_ITEMS items."""
    with suppress(OverflowError):
        data = to_json(encode(value, [MAX_ITEMS]))
        if len(data) <= limit and weight(data) <= MAX_ITEMS:
            return data
    return TOO_LARGE[1:]


def name(kind: type) -> str:
    """The name of a class, which may do anything when it is asked."""
    try:
        return str.__str__(kind.__name__)[:80]
    except BaseException:
        return "object"


def frame(message: Any) -> bytes:
    """A message of the trusted."""
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


# ---- layers ----

MACHINE = os.uname().machine if sys.platform == "linux" else ""
ARM = MACHINE in ("aarch64", "arm64")
LIBC = ctypes.CDLL(None, use_errno=True)
NAMESPACES = {"user": 0x10000000, "mount": 0x20000, "network": 0x40000000, "ipc": 0x8000000,
              "pid": 0x20000000}
HERE = os.path.dirname(os.path.realpath(__file__))
HIDDEN = os.path.join(HERE, "tiny")  # our own questions, with their answers

# System calls with their numbers on x86_64 and, where it differs, on aarch64 (-1: there is none).
FORBIDDEN = """ptrace 101 117, pivot_root 155 41, chroot 161 51, open_tree 428, bpf 321 280,
move_mount 429, fsopen 430, fsmount 432, mount_setattr 442, fspick 433,
add_key 248 217, request_key 249 218, keyctl 250 219, perf_event_open 298 241, personality 135 92,
kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273,
delete_module 176 106, reboot 169 142, swapon 167 224, swapoff 168 225, acct 163 89,
quotactl 179 60, quotactl_fd 443, syslog 103 116, clock_settime 227 112, settimeofday 164 170,
adjtimex 159 171, clock_adjtime 305 266, sethostname 170 161, iopl 172 -1, ioperm 173 -1,
modify_ldt 154 -1, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272,
pidfd_getfd 438, process_madvise 440, process_mrelease 448, migrate_pages 256 238,
move_pages 279 239, userfaultfd 323 282, io_uring_setup 425, io_setup 206 0,
name_to_handle_at 303 264, open_by_handle_at 304 265, fanotify_init 300 262, inotify_init 253 -1,
inotify_init1 294 26, memfd_create 319 279, memfd_secret 447, vmsplice 278 75, splice 275 76,
tee 276 77, shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193,
semctl 66 191, semtimedop 220 192, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187,
mq_open 240 180, mq_unlink 241 181, socket 41 198, bind 49 200, connect 42 203, listen 50 201,
setsockopt 54 208, flock 73 32, sync 162 81, syncfs 306 267, fadvise64 221 223,
readahead 187 213, mincore 27 232, cachestat 451, preadv2 327 286, sendfile 40 71,
setuid 105 146, setreuid 113 145, setresuid 117 147, setfsuid 122 151, setdomainname 171 162,
map_shadow_stack 453"""
# What the fork server needs still, and a program never.
PROCESSES = """mount 165 40, umount2 166 39, fork 57 -1, vfork 58 -1, execve 59 221,
execveat 322 281, unshare 272 97, setns 308 268, setpriority 141 140, ioprio_set 251 30,
sched_setparam 142 118, sched_setscheduler 144 119, sched_setaffinity 203 122,
sched_setattr 314 274, landlock_create_ruleset 444, seccomp 317 277"""
STAND_INS = {  # what seccomp forbids instead where a layer is missing
    "pid namespace": """kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138,
        rt_tgsigqueueinfo 297 240, pidfd_send_signal 424""",
    "mount namespace": """chmod 90 -1, fchmod 91 52, fchmodat 268 53, fchmodat2 452,
        chown 92 -1, fchown 93 55, lchown 94 -1, fchownat 260 54, utime 132 -1, utimes 235 -1,
        futimesat 261 -1, utimensat 280 88, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7,
        removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, truncate 76 45""",
    "files": """creat 85 -1, openat2 437, mkdir 83 -1, mkdirat 258 34, mknod 133 -1,
        mknodat 259 33, rename 82 -1, renameat 264 38, renameat2 316 276, link 86 -1,
        linkat 265 37, symlink 88 -1, symlinkat 266 36, unlink 87 -1, unlinkat 263 35,
        rmdir 84 -1""",
}
USED = """clone 56 220, clone3 435, socketpair 53 199, prctl 157 167, capset 126 91,
landlock_add_rule 445, landlock_restrict_self 446, fcntl 72 25, ioctl 16 29,
prlimit64 302 261, fsync 74 82, fdatasync 75 83, msync 26 227, sync_file_range 277 84,
close_range 436, mmap 9 222, mremap 25 216, open 2 -1, openat 257 56,
setrlimit 160 164"""
NEWEST = 463  # calls from this number on are younger than this list
# Commands of fcntl: duplicate, flags of the descriptor, ask about flags, locks and pipes.
FCNTL = 0, 1, 2, 3, 4, 5, 1030, 1032
LOCKS = 6, 7  # fcntl's; nobody else is there to be locked out, so they are granted and not made
# Commands of ioctl: is it a terminal, its size, bytes to be read, close on exec, do not block.
IOCTL = 0x5401, 0x802C542A, 0x5413, 0x541B, 0x5450, 0x5451, 0x5421

THREAD = 0x10400  # flags of clone: of this process, and with its descriptors
WRITING = 0x400243  # flags of open: to write, create, empty, or have a file without a name

LOAD, EQUAL, AT_LEAST, ANY_BIT, MASK = 0x20, 0x15, 0x35, 0x45, 0x54  # operations of a filter
LOW, HIGH = range(16, 64, 8), range(20, 64, 8)  # where it finds the two words of each argument


def op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    """One operation of a filter; yes, no: how many operations a comparison skips."""
    return struct.pack("=HBBI", code, yes, no, k)


# Answers; the last is no error, but nothing is done.
ALLOW, REFUSE, UNKNOWN, DONE = op(6, 0x7FFF0000), op(6, 0x50001), op(6, 0x50026), op(6, 0x50000)


def numbers(*tables: str) -> dict[str, int]:
    rows = map(str.split, ",".join(tables).split(","))
    return {name: int(both[-1 if ARM else 0]) for name, *both in rows}


NUMBERS = numbers(FORBIDDEN, PROCESSES, USED)


def prepared(name: str, *args: int | bytes) -> Callable[[], int]:
    """A system call ready to be made, with little left to build after a fork; -1: it failed."""
    if MACHINE not in ("x86_64", "aarch64", "arm64"):
        raise OSError("not on this system")
    words = [ctypes.c_long(x) if isinstance(x, int) else x for x in (NUMBERS[name], *args)]
    return partial(LIBC.syscall, *words)


def syscall(name: str, *args: int | bytes) -> int:
    if (result := prepared(name, *args)()) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def rule(call: str, *ops: bytes) -> list[bytes]:
    """Operations for one call, the last an answer; none where there is no such call."""
    number = NUMBERS[call]
    return [op(EQUAL, number, 0, len(ops)), *ops] if number >= 0 else []


def only(where: int, allowed: Iterable[int]) -> list[bytes]:
    """Operations that allow a call with these values of a word of its arguments alone."""
    ops = [op(LOAD, where)]
    for value in allowed:
        ops += [op(EQUAL, value, 0, 1), ALLOW]
    return [*ops, REFUSE]


def threads_only(reads_only: bool) -> list[bytes]:
    """Rules for a program alone; reads_only: it opens no file to write."""
    # No processes, and no thread with descriptors of its own: what they hold is counted for all.
    ops = rule("clone", op(LOAD, LOW[0]), op(MASK, THREAD), op(EQUAL, THREAD, 0, 1), ALLOW, REFUSE)
    # Limits are its own, but for that of core files (4).
    core = op(EQUAL, 4, 0, 1), DONE
    ops += rule("prlimit64", op(LOAD, LOW[1]), *core, *only(LOW[0], [0]))
    ops += rule("setrlimit", op(LOAD, LOW[0]), *core, ALLOW)
    for call, flags in [("open", LOW[1]), ("openat", LOW[2])] if reads_only else []:
        ops += rule(call, op(LOAD, flags), op(ANY_BIT, WRITING, 0, 1), REFUSE, ALLOW)
    return ops


def short_lists() -> list[bytes]:
    """Rules for calls that a program needs, as far as it needs them. Put on by the fork server, for
    it takes the kernel a tenth of a millisecond."""
    ops = [op(AT_LEAST, NEWEST, 0, 1), UNKNOWN]
    # The flags of clone3 are out of sight: where it is unknown, the C library takes clone.
    ops += rule("clone3", UNKNOWN)
    ops += rule("close_range", *only(LOW[2], (0, 4)))
    # Streams of the machine: pairs of any other kind could be pointed elsewhere.
    ops += rule("socketpair", op(LOAD, LOW[0]), op(EQUAL, 1, 1), REFUSE, op(LOAD, LOW[1]),
                op(MASK, 15), op(EQUAL, 1, 0, 1), ALLOW, REFUSE)
    # Near what is mapped already, for pages far from each other need tables that nothing counts.
    near = (ctypes.cast(LIBC.syscall, ctypes.c_void_p).value or 0) >> 32
    ops += rule("mmap", *only(HIGH[0], (0, near - 1, near, near + 1)))
    ops += rule("mremap", *only(LOW[3], (0, 1)))
    # No core is kept from others (PR_SCHED_CORE).
    ops += rule("prctl", op(LOAD, LOW[0]), op(EQUAL, 62, 0, 1), REFUSE, ALLOW)
    for call in "fsync", "fdatasync", "msync", "sync_file_range":
        ops += rule(call, DONE)  # what was written to a file is not forced to disk
    locks = [part for command in LOCKS for part in (op(EQUAL, command, 0, 1), DONE)]
    ops += rule("fcntl", op(LOAD, LOW[1]), *locks, *only(LOW[1], FCNTL))
    ops += rule("ioctl", *only(LOW[1], IOCTL))
    return ops


def seccomp_filter(forbidden: dict[str, int], rules: Sequence[bytes] = ()) -> tuple:
    """Arguments of the prctl that puts it on, and the buffer that they point to."""
    ops = [op(LOAD, 4), op(EQUAL, 0xC00000B7 if ARM else 0xC000003E, 1), REFUSE]  # the architecture
    ops += [op(LOAD, 0), op(AT_LEAST, 1 << 30, 0, 1), REFUSE]  # no x32 either
    for number in forbidden.values():
        ops += [op(EQUAL, number, 0, 1), REFUSE] if number >= 0 else []
    code = ctypes.create_string_buffer(b"".join([*ops, *rules, ALLOW]))
    count = len(ops) + len(rules) + 1
    return (22, 2, struct.pack("HP", count, ctypes.addressof(code)), 0, 0), code


class Jail:
    """What a fork server and all that it starts have given up."""

    def __init__(self, without: Sequence[str]):
        self.without = without
        self.state: dict[str, str] = {}  # layer -> "active", or why not
        self.enter: list[Callable] = []  # steps before each fork
        self.last: list[Callable] = []  # steps of a process before it is a program's
        self.home, self.folder = "", ""  # where the private folders are made, and the present one
        self.readable = list(readable())
        self.kept: list[Any] = []  # what the kernel reads by its address, when a step is made

    def put_on(self, layer: str, action: Callable, *args: Any) -> None:
        try:
            left_out = layer in self.without
            self.state[layer] = "left out" if left_out else action(*args) or "active"
        except (OSError, AttributeError, StopIteration) as error:
            self.state[layer] = f"missing: {error}"

    def active(self, layer: str) -> bool:
        return self.state[layer] == "active"

    def new_folder(self) -> None:
        """An empty folder, that the next program alone may write."""
        if self.active("mount namespace"):
            options = f"mode=777,nr_inodes={FOLDER_FILES},size={FOLDER_MB}m".encode()
            syscall("mount", b"none", self.folder.encode(), b"tmpfs", 6, options)
            return
        self.folder = os.path.join(self.home, os.urandom(8).hex())
        os.mkdir(self.folder, 0o700)
        os.environ.update(HOME=self.folder, TMPDIR=self.folder)
        if self.active("landlock"):
            self.landlock()

    def drop_folder(self) -> None:
        """Removes it, with all that the program left in it or set on it."""
        if self.active("mount namespace"):
            with suppress(OSError):  # there is none
                syscall("umount2", self.folder.encode(), 2)
        elif os.path.isdir(self.folder):
            remove(self.folder)

    def crowded(self) -> bool:
        """Whether a folder on disk holds more than one in memory could, or hides what it holds."""
        if self.active("mount namespace"):
            return False
        files, size = 0, self.deleted()
        try:
            for path, folders, names in os.walk(self.folder, onerror=unless_gone):
                files += len(folders) + len(names)
                for name in names:
                    with suppress(FileNotFoundError):
                        size += os.lstat(os.path.join(path, name)).st_blocks * 512
                if files > FOLDER_FILES or size > FOLDER_MB << 20:
                    return True
        except OSError:  # a folder without rights, or with too long a path
            return True
        return size > FOLDER_MB << 20

    def deleted(self) -> int:
        """At least the bytes of deleted files that the program holds, where they are seen."""
        size = 0
        with suppress(OSError, IndexError):
            with open("/proc/thread-self/children") as file:
                process = f"/proc/{file.read().split()[-1]}"
            for fd in os.listdir(f"{process}/fd"):
                with suppress(OSError):
                    state = os.stat(f"{process}/fd/{fd}")
                    kept = stat.S_ISREG(state.st_mode) and state.st_nlink == 0
                    size += state.st_blocks * 512 * kept
            with open(f"{process}/maps", errors="replace") as file:
                mapped = {line.split()[4] for line in file if self.folder in line}
            size += len(mapped) * FILE_ON_DISK  # whose size is not seen
        return size

    def unshare(self, name: str) -> None:
        uid, gid = os.geteuid(), os.getegid()
        syscall("unshare", NAMESPACES[name])
        maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for file, line in maps.items() if name == "user" else ():  # the same user, and no other
            with open(f"/proc/self/{file}", "w") as map_file:
                map_file.write(line)

    def mount(self) -> None:
        """The machine read-only, with three devices; over it an empty /proc, no data of ours, and a
        place for the private folders, in which nothing else can be written."""
        syscall("mount", b"none", b"/", 0, 0x44000, 0)  # private, recursive
        devices = [b"/dev/null", b"/dev/zero", b"/dev/urandom"]
        for device in devices:  # a mount of its own, for its own flags
            syscall("mount", device, device, 0, 0x1000, 0)
        everything = struct.pack("4Q", 7, 0, 0, 0)  # read-only, no suid, no devices
        syscall("mount_setattr", -100, b"/", 0x8000, everything, 32)  # recursive
        for device in devices:
            syscall("mount_setattr", -100, device, 0, struct.pack("4Q", 0, 4, 0, 0), 32)
        covered = [path.encode() for path in ("/proc", HIDDEN, self.home) if os.path.isdir(path)]
        for path in covered:
            syscall("mount", b"none", path, b"tmpfs", 6, b"mode=755,size=4k")
        self.folder = os.path.join(self.home, "program")
        os.mkdir(self.folder)
        for path in covered:  # flags: remount, read-only, no suid, no devices
            syscall("mount", b"none", path, b"tmpfs", 0x27, b"")

    def landlock(self) -> None:
        """No file access but reading what is readable, and anything in the private folder; no TCP;
        no signals to others. Makes the rules, which a program's process puts on."""
        abi = syscall("landlock_create_ruleset", 0, 0, 1)
        known = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1  # kinds of access
        handled = struct.pack("3Q", known, 3, 3)[: 8 if abi < 4 else 16 if abi < 6 else 24]
        rules = syscall("landlock_create_ruleset", handled, len(handled), 0)
        place = self.home if self.active("mount namespace") else self.folder
        rights_in = dict.fromkeys(self.readable, 0xC) | {"/dev/null": 6, place: known}
        for path, rights in rights_in.items():
            fd = os.open(path, os.O_PATH)
            rights &= known if os.path.isdir(path) else 0xC007
            syscall("landlock_add_rule", rules, 1, struct.pack("=Qi", rights, fd), 0)
            os.close(fd)
        os.dup2(rules, RULES)
        os.close(rules)

    def begin_landlock(self) -> None:
        self.landlock()
        step = prepared("landlock_restrict_self", RULES, 0)
        try_out(step)
        self.last.append(step)

    def begin_seccomp(self) -> None:
        step = self.seccomp(FORBIDDEN, rules=short_lists())
        try_out(step)
        step()
        missing = [layer for layer in self.state if not self.active(layer)]
        if {"mount namespace", "landlock"} <= set(missing):
            missing.append("files")
        tables = [STAND_INS[layer] for layer in missing if layer in STAND_INS]
        self.last.append(self.seccomp(PROCESSES, *tables, rules=threads_only("files" in missing)))

    def seccomp(self, *tables: str, rules: Sequence[bytes] = ()) -> Callable[[], int]:
        args, code = seccomp_filter(numbers(*tables), rules)
        self.kept.append(code)
        return prepared("prctl", *args)

    def limits(self, **wanted: int) -> list[Callable]:
        """Steps that lower resource limits, each at most to the hard limit there is."""
        steps = []
        for name, value in wanted.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            steps.append(partial(resource.setrlimit, kind, (value, value)))
        return [] if "resource limits" in self.without else steps


def readable() -> Iterator[str]:
    """The interpreter's libraries, installed packages, and what those read; not our data."""
    todo = [*filter(None, sys.path), sys.base_prefix + "/lib"]
    todo += "/usr/share/zoneinfo /dev/urandom /dev/zero /lib /lib64 /usr/lib /usr/lib64".split()
    todo += "/usr/local/lib /etc/ld.so.cache /etc/localtime /etc/mime.types".split()
    while todo:
        path = os.path.realpath(todo.pop())
        if HIDDEN.startswith(path + os.sep):
            todo += [entry.path for entry in os.scandir(path)]
        elif path != HIDDEN and os.path.exists(path):
            yield path


def unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def remove(folder: str) -> None:
    """Removes a folder of any depth and with any modes, without recursion: what lies deeper is
    first moved up, for which its owner needs the right to write it too."""
    os.chmod(folder, 0o700)
    while names := os.listdir(folder):
        for path in (os.path.join(folder, name) for name in names):
            if not os.path.isdir(path) or os.path.islink(path):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            for inner in os.listdir(path):
                old = os.path.join(path, inner)
                if os.path.isdir(old) and not os.path.islink(old):
                    os.chmod(old, 0o700)
                os.rename(old, os.path.join(folder, os.urandom(8).hex()))
            os.rmdir(path)
    os.rmdir(folder)


def tasks_of(uid: int) -> int:
    """How many processes and threads a user has."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def enter_jail_in_a_fork(memory_mb: int, without: Sequence[str]) -> Jail:
    """Puts on the layers. Returns in a forked copy, the first process of its pid namespace: with it
    all others end. The caller itself waits for that, cleans up and exits."""
    jail = Jail(without)
    uid = os.getuid()
    if MACHINE and uid == 0 and "resource limits" not in without:
        # Root may have any number of processes, by its real id; a container's root may not.
        with suppress(OSError):
            os.setresuid(uid := 65534, -1, -1)
    for name in NAMESPACES:
        jail.put_on(f"{name} namespace", jail.unshare, name)
    used = [*jail.readable, sys.executable]
    folders = [path for path in ("/tmp", "/var/tmp", "/mnt") if os.path.isdir(path)]
    jail.home = next(path for path in folders if not any(f.startswith(path) for f in used))
    on_disk = f"{jail.home}/codea1-{os.urandom(8).hex()}"
    if pid := os.fork():
        os.waitpid(pid, 0)
        if os.path.isdir(on_disk):
            remove(on_disk)
        os._exit(0)
    if jail.active("pid namespace"):
        home, new = os.open("/proc/self/ns/pid", os.O_RDONLY), NAMESPACES["pid"]
        os.dup2(home, PIDS)
        os.close(home)
        jail.enter = [prepared("setns", PIDS, new), prepared("unshare", new)]
    threads = THREADS
    if MACHINE and not jail.active("user namespace"):  # there they are counted apart
        threads = tasks_of(uid) + 4096
    if jail.active("mount namespace"):
        jail.put_on("mount namespace", jail.mount)
    if not jail.active("mount namespace"):
        os.mkdir(on_disk, 0o700)
        jail.home = jail.folder = on_disk
    os.environ.update(HOME=jail.folder, TMPDIR=jail.folder)
    jail.put_on("no new privileges", syscall, "prctl", 38, 1, 0, 0, 0)
    put_on_later(jail, memory_mb, threads)
    return jail


def put_on_later(jail: Jail, memory_mb: int, threads: int) -> None:
    """The layers that a program's process puts on."""
    jail.put_on("landlock", jail.begin_landlock)
    jail.put_on("seccomp", jail.begin_seccomp)
    capset = "capset", struct.pack("Ii", 0x20080522, 0), bytes(24)
    jail.put_on("no capabilities", lambda: jail.last.append(prepared(*capset)))
    jail.put_on("resource limits", lambda: None if MACHINE else "missing: the limit of memory")
    largest = FOLDER_MB << 20 if jail.active("mount namespace") else FILE_ON_DISK
    # A core of one byte is none at all. With 0 the kernel starts the machine's crash handler.
    wanted = {"CORE": 1, "FSIZE": largest, "NOFILE": 128}
    if MACHINE:
        wanted |= {"NICE": 0, "RTPRIO": 0, "SIGPENDING": 1024}
        # Not the fork server's: where threads are counted with those of others, it needs its own.
        # macOS reserves more than there is memory.
        jail.last += jail.limits(AS=memory_mb << 20, NPROC=threads)
    for step in jail.limits(**wanted):
        step()
    jail.last += jail.limits(CPU=3600) + ([] if jail.enter else [os.setsid])
    keep_memory_private(jail.state)


def keep_memory_private(state: dict[str, str]) -> None:
    """Where programs can open /proc, the memory of this process, and of its forks, is not there."""
    if MACHINE and not {state["mount namespace"], state["landlock"]} & {"active"}:
        LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def try_out(step: Callable[[], int]) -> None:
    """OSError if it fails in a process that does nothing else."""
    if (pid := os.fork()) == 0:
        os._exit(step() != 0)
    if os.waitpid(pid, 0)[1]:
        raise OSError("the kernel refuses it")


# ---- the process of a program ----


def program() -> Callable[[int], None]:
    """What loads a program and answers its calls, one reply each; made before the fork, which then
    copies fewer pages. Nothing in its process is to be trusted once it has loaded."""
    to_bytes, json_of, name_of, bound, send = dump, to_json, name, arguments, write
    module = sys.modules["solution"] = types.ModuleType("solution")
    namespace = module.__dict__

    def load(source: str, entry: str) -> bytes:
        exec(compile(source, "<solution>", "exec", dont_inherit=True), namespace)
        if entry and not callable(namespace.get(entry)):
            raise NameError(entry)
        return b"null"

    def evaluate(code: str | bytes, names: dict) -> Any:
        if type(code) is str:
            code = compile(code, "<call>", "eval", dont_inherit=True)
        else:
            code = marshal.loads(code)
        if type(code) is tuple:  # the name of a function, and its arguments
            return names[code[0]](*code[1:])
        return eval(code, names)

    def serve(fd: int) -> None:
        source, entry, calls, limit, bind = receive(partial(os.read, fd))
        if bind:
            importlib.import_module("inspect")

        def answer(action: Callable[..., bytes], *args: Any) -> bytes:
            try:
                reply = VALUE + action(*args)
            except BaseException as error:
                reply = RAISED + name_of(type(error)).encode("utf-8", "replace")
            send(fd, HEAD.pack(len(reply)) + reply)
            return reply[:1]

        def call(code: str | bytes) -> bytes:
            if not bind:
                return to_bytes(evaluate(code, namespace), limit)
            args, kwargs = evaluate(code, {entry: lambda *args, **kwargs: (args, kwargs)})
            function = namespace[entry]
            said = json_of(bound(function, args, kwargs))  # first: a call may change them
            return b"[%s,%s]" % (said, to_bytes(function(*args, **kwargs), limit))

        if answer(load, source, entry) == VALUE:
            for code in calls:
                answer(call, code)

    return serve


def arguments(function: Callable, args: tuple, kwargs: dict) -> list:
    """The arguments of a call as the function itself binds them: [[value, default], ...] of those
    with a position, and [[name, value, default], ...] of the others. Plain defaults stand for what
    is not given. TypeError: no such call.

    >>> def f(a, b=2, *, c=3): ...
    >>> arguments(f, (), {"a": 1, "c": 4})[1]
    [['c', 4, 3]]
    """
    inspect = sys.modules["inspect"]
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # of some built-in functions nothing is known
        none = said(inspect.Parameter.empty)
        return [[[said(x), none] for x in args], [[k, said(x), none] for k, x in kwargs.items()]]
    given, positions, keywords = signature.bind(*args, **kwargs).arguments, [], []
    in_order = True  # every parameter before this one has its position
    for p in signature.parameters.values():
        default = said(p.default)
        if p.kind is p.VAR_POSITIONAL:
            positions += [[said(x), default] for x in given.get(p.name, ())]
        elif p.kind is p.VAR_KEYWORD:
            keywords += [[k, said(x), default] for k, x in given.get(p.name, {}).items()]
        elif p.kind is p.KEYWORD_ONLY or not in_order:
            keywords += [[p.name, said(given[p.name]), default]] if p.name in given else []
        elif p.name in given or (p.default is not p.empty and "opaque" not in str(default)):
            positions.append([said(given.get(p.name, p.default)), default])
        else:
            in_order = False
    return [positions, keywords]


def said(value: Any) -> Any:
    """An argument as JSON data; a range is not spread out."""
    if type(value) is range:
        return {"range": [hex(value.start), hex(value.stop), hex(value.step)]}
    return encode(value, [MAX_ITEMS // 100])


# ---- the fork server: a warm process that sees no program, no call and no value, ever ----

RULES, CTL, STDERR, PIDS = 60, 61, 62, 63  # its descriptors; a program's socket is 3
ANSWER = struct.Struct("=cd")  # b"d": CPU seconds; b"f": its folder is full; b"!": not prepared
SAMPLE = """
import bisect, copy, heapq, itertools, math, operator, random, re, string
from collections import Counter, defaultdict
from typing import Dict, List, Optional, Tuple

def f(xs: List[int], n: Optional[int] = None) -> Tuple[List[int], Dict[int, int]]:
    ordered = sorted(xs, key=lambda x: -x)
    return [x for i, x in enumerate(ordered) if x > 1], dict(Counter(xs))
"""


def rehearse() -> None:
    """Loads the usual modules, and warms up what the first program would."""
    ours, theirs = socket.socketpair()
    for _ in range(10):
        ours.sendall(frame([SAMPLE, "f", ["f([1, 2, 3])"] * 3, MAX_REPLY, False]))
        program()(theirs.fileno())
    gc.collect()


def fork_server(ctl: socket.socket, settings: dict) -> None:
    """Obeys commands of one byte: fork (comes with a socket), tell CPU time, kill. Ends with its
    supervisor."""
    jail = enter_jail_in_a_fork(settings["memory_mb"], settings["without"])
    os.chdir("/")
    rehearse()
    serve = program()
    getattr(LIBC, "malloc_trim", int)(0)
    gc.freeze()
    gc.disable()
    ctl.sendall(frame(jail.state))
    child = 0
    while True:
        command, fds, _, _ = ctl.recvmsg(1, 24)
        if command == b"f":
            if settings["numpy"] and "numpy" not in sys.modules:
                with suppress(ImportError):
                    importlib.import_module("numpy").random.seed(settings["seed"])
                    gc.freeze()
            jail.new_folder()
            if any(step() for step in jail.enter):
                raise OSError("no pid namespace")
            fd = int.from_bytes(fds[0][2][:4], sys.byteorder)
            if (child := os.fork()) == 0:
                become_program(jail, ctl, fd, serve)
            os.close(fd)
        elif command == b"c":
            used = 0.0
            with suppress(OSError, AttributeError):
                used = time.clock_gettime((~child << 3) | 2)  # Linux: another process' CPU clock
                if child:
                    os.sched_setaffinity(child, settings["cpus"])  # a slow one: on any core
            ctl.sendall(ANSWER.pack(b"f" if jail.crowded() else b"d", used))
        else:
            if child:
                with suppress(ProcessLookupError):  # it leads no group: in a pid namespace, or yet
                    os.killpg(child, signal.SIGKILL)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                jail.drop_folder()
            child = 0
            if not command:
                os._exit(0)


def become_program(jail: Jail, ctl: socket.socket, fd: int, serve: Callable) -> None:
    """A forked process, which reads no program before every layer is on. Never returns."""
    try:
        os.chdir(jail.folder)
        for standard in range(3):  # its own: flags, locks and owners of shared ones would stay
            os.dup2(os.open("/dev/null", os.O_RDWR), standard)
        os.dup2(fd, 3)
        if any(step() for step in jail.last):
            ctl.sendall(ANSWER.pack(b"!", 0))
            os._exit(1)
        os.closerange(4, 64)
        gc.enable()
        serve(3)
    finally:
        os._exit(0)


# ---- the supervisor: outside of every layer ----


class Server:
    """A fork server, as its supervisor sees it."""

    def __init__(self, settings: dict):
        self.ctl, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for old, new in (other.fileno(), CTL), (2, STDERR), (1, 0), (1, 2):
                    os.dup2(old, new)  # programs have only /dev/null
                os.closerange(3, RULES)
                os.closerange(RULES, CTL)
                fork_server(socket.socket(fileno=CTL), settings)
            except BaseException:
                os.dup2(STDERR, 2)
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        other.close()
        self.state, self.busy = receive(self.ctl.recv), False

    def settle(self) -> None:
        """Returns when no process and no folder of a program is left."""
        if self.busy:
            self.seconds()
            self.busy = False

    def command(self, what: bytes, *fds: int) -> None:
        self.busy = True
        packed = struct.pack(f"{len(fds)}i", *fds)
        self.ctl.sendmsg([what], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if fds else [])

    def answer(self, flags: int = 0) -> float:
        """CPU seconds of the child, infinite if its folder is full; RuntimeError for bad news."""
        said = self.ctl.recv(ANSWER.size, socket.MSG_WAITALL | flags).ljust(ANSWER.size, b".")
        kind, number = ANSWER.unpack(said)
        if kind not in b"df":
            raise RuntimeError("a process could not be prepared for the program" if kind == b"!"
                               else "the fork server is gone")
        return number if kind == b"d" else math.inf

    def seconds(self) -> float:
        self.command(b"c")
        return self.answer()

    def kill(self) -> None:
        """Ends the child. What was not asked for, and stands there before, is bad news."""
        with suppress(BlockingIOError):
            self.answer(socket.MSG_DONTWAIT)
        self.command(b"k")

    def child(self) -> str:
        """The process id of its newest fork; "" where that is not seen."""
        pid = str(self.pid)
        with suppress(OSError, IndexError):
            for _ in range(2):
                with open(f"/proc/{pid}/task/{pid}/children") as file:
                    pid = file.read().split()[-1]
            return pid
        return ""


def threads(pid: str) -> tuple[bool, dict[str, float]]:
    """Whether a thread of a process runs or could run, and the seconds that each has run or waited
    for a core; (False, {}) where that is not seen."""
    runnable, awake = False, {}
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, IndexError, ValueError):  # it has just ended
                with open(f"/proc/{pid}/task/{task}/stat") as file:
                    runnable |= file.read().rpartition(")")[2].split()[0] == "R"
                with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                    awake[task] = sum(map(int, file.read().split()[:2])) / 1e9
    return runnable, awake


def slept(before: tuple, after: tuple) -> float:
    """Seconds between two looks in which a process did nothing, though it could have had a core."""
    (then, cpu_then, awake_then), (now, cpu, awake) = before, after
    # Not the sum over its threads: a hundred that wake up together all wait, for each other.
    busy = [seconds - awake_then.get(task, 0.0) for task, seconds in awake.items()]
    return max(now - then - max(cpu - cpu_then, *busy, 0.0), 0.0)


class Child:
    """A process that runs a program: a request goes in, replies come out in order.

    What it uses is looked at only when a reply is late: nothing is measured of a call that takes a
    few milliseconds, and its CPU time counts from the first look on.
    sleep: how many seconds it may still sleep.
    """

    def __init__(self, server: Server, trainer: select.poll, request: list, sleep: float):
        self.server, self.trainer, self.sleep = server, trainer, sleep
        self.asleep: tuple[float, float, dict[str, float]] | None = None
        self.sock, other = socket.socketpair()
        server.command(b"f", other.fileno())
        other.close()
        self.poll, self.buffer = select.poll(), bytearray()
        self.request = memoryview(frame(request))
        *_, limit, bind = request
        self.largest = 1 + limit + bind * MAX_REPLY  # bytes of a reply

    def close(self) -> None:
        self.server.kill()
        self.sock.close()

    def next(self, cpu: float, wall: float = math.inf) -> bytes:
        """The next reply, TIMEOUT or CRASH; after these two the child is of no further use."""
        now = time.monotonic()
        self.cpu, self.deadline, self.begun = cpu, now + wall, None
        self.look_at = now + min(cpu, 0.02)
        try:
            while (reply := self.reply()) is None:
                late = time.monotonic() > self.look_at and self.exceeded()
                self.wait(0.0 if late else self.look_at - time.monotonic())
                if late and self.reply(keep=True) is None:
                    return TIMEOUT
            return reply
        except (ConnectionError, ValueError):
            return CRASH

    def exceeded(self) -> bool:
        """Whether a limit is passed."""
        if self.trainer.poll(0):
            os._exit(0)  # nobody waits for an answer
        now, cpu = time.monotonic(), self.server.seconds()
        runnable, awake = threads(self.server.child())
        if self.begun is None:
            self.begun = cpu
        if self.asleep is None:
            self.asleep = now, cpu, awake
        if not runnable:  # else it may be so for the look alone: this time is counted later
            self.sleep -= slept(self.asleep, (now, cpu, awake))
            self.asleep = now, cpu, awake
        left = min(self.cpu - (cpu - self.begun), self.deadline - now)
        # Not on the beat: a program must not know when it is looked at.
        soon = min(max(left, 0.005), max(self.sleep, 0.02), 0.2)
        self.look_at = now + soon * (1 - os.urandom(1)[0] / 800)
        too_much = cpu == math.inf or len(awake) > THREADS
        return too_much or left <= 0 or (self.sleep <= 0 and not runnable)

    def wait(self, seconds: float) -> None:
        """Sends and receives what can be, as soon as something can, at most after `seconds`."""
        # At first only its end is waited for: a wake-up for each of many short replies is dear.
        events = 0 if self.begun is None else select.POLLIN
        self.poll.register(self.sock, events | (select.POLLOUT if self.request else 0))
        for _, event in self.poll.poll(max(seconds, 0.0) * 1000):
            with suppress(BlockingIOError):  # a socket can be made to look as if there were data
                if event & select.POLLOUT:
                    sent = self.sock.send(self.request, socket.MSG_DONTWAIT)
                    self.request = self.request[sent:]
                if event & ~select.POLLOUT:
                    if not (chunk := self.sock.recv(1 << 16, socket.MSG_DONTWAIT)):
                        raise ConnectionError("it has ended")
                    self.buffer += chunk

    def reply(self, keep: bool = False) -> bytes | None:
        """The first whole reply in the buffer, which leaves it unless kept; None if there is none,
        ValueError for what is no reply."""
        if len(self.buffer) < HEAD.size:
            return None
        (size,) = HEAD.unpack_from(self.buffer)
        end = HEAD.size + size
        kind = bytes(self.buffer[HEAD.size : HEAD.size + 1])
        if not 0 < size <= self.largest or kind not in (b"", VALUE, RAISED):
            raise ValueError("not a reply")
        if len(self.buffer) < end:
            return None
        reply = bytes(memoryview(self.buffer)[HEAD.size : end])
        del self.buffer[: 0 if keep else end]
        return reply


class Supervisor:
    """Answers jobs of the trainer, one at a time, with the replies that came of them."""

    def __init__(self, job: socket.socket, settings: dict):
        self.trainer = select.poll()
        self.trainer.register(job, 0)  # says only that the trainer is gone
        # Both start before any program is seen: what they are forked from must hold nothing.
        self.servers = [Server({**settings, "numpy": numpy}) for numpy in (False, True)]
        keep_memory_private(self.servers[0].state)
        job.sendall(frame(self.servers[0].state))
        while True:
            job.sendall(frame(self.run(**receive(job.recv))))
            for server in self.servers:
                server.settle()

    def run(self, program: str, entry: str, calls: list, cpu: float, resumes: int, limit: int,
            total: int, bind: bool, walls: list) -> list[bytes]:
        """What came of loading, then of each call; after a crash or a timeout from a fresh process,
        at most `resumes` times.

        cpu: seconds for each call; limit, total: bytes of a value, and of all values; bind: values
        come with the arguments, as the program's entry point binds them; walls: none, or wall
        seconds for all calls together, then for each, in place of the other limits.
        """
        server, loaded, replies = self.servers["numpy" in program], b"", []
        sleep = math.inf if walls else SLEEP[0] * cpu + SLEEP[1]
        begun = time.monotonic()
        for _ in range(1 + resumes):
            request = [program, entry, calls[len(replies) :], limit, bind]
            child = Child(server, self.trainer, request, sleep)
            reply = child.next(cpu, walls[0] if walls else math.inf)
            loaded, going = loaded or reply, reply[:1] == VALUE
            while going and len(replies) < len(calls):
                wall = math.inf
                if walls:
                    wall = min(walls[0] + begun - time.monotonic(), walls[1 + len(replies)])
                reply = child.next(math.inf if walls else cpu, wall)
                total -= max(len(reply), 4 * weight(reply))  # what it costs to read
                replies.append(reply if total > 0 else TOO_LARGE)
                going = reply[:1] in (VALUE, RAISED) and total > 0
            child.close()
            sleep = child.sleep
            if total <= 0:  # whatever else it returned would be too large as well
                replies += [TOO_LARGE] * (len(calls) - len(replies))
            if loaded[:1] != VALUE or len(replies) == len(calls):
                break
        return [loaded, *replies, *[NOT_RUN] * (len(calls) - len(replies))]


def main(settings: str) -> None:
    """One worker. Its standard input is the socket to the trainer."""
    del sys.path[0]
    # Programs have no business in our folder, installed in place or not.
    if not HERE.endswith("-packages"):
        sys.path[:] = [path for path in sys.path if os.path.realpath(path) != HERE]
    settings = json.loads(settings)
    # The module that programs see, without the hook that gives every fork a seed of its own.
    register, os.register_at_fork = os.register_at_fork, lambda **_: None
    importlib.import_module("random").seed(settings["seed"])
    os.register_at_fork = register
    if settings["cpus"]:  # who takes turns does so faster on one core
        os.sched_setaffinity(0, [settings["cpus"][settings["number"] % len(settings["cpus"])]])
    with suppress(EOFError):  # the trainer is gone
        Supervisor(socket.socket(fileno=0), settings)
    with suppress(ChildProcessError):  # leaves after those that it started
        while True:
            os.wait()
