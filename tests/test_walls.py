"""The walls of the jail, one by one: what a program leaves to the next, what it can reach where
layers are missing, and how long and how much it may use.

Where a test needs a user that is not root, it runs copies of our modules in a child process.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from test_sandbox_attacks import ESCAPES, FORGERIES, HONEST, SECRET, Targets, resident

import asserts
import jail
import sandbox
from sandbox import Sandbox, Status

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux'")
SPACES = [f"{name} namespace" for name in jail.NAMESPACES]
FOLDERS = [p for p in ("/tmp", "/var/tmp", "/mnt") if os.path.isdir(p)]


@pytest.fixture(scope="module", params=[(), SPACES], ids=["all layers", "plain container"])
def alone(request):
    """One worker: programs run one after the other, forked from one process."""
    with Sandbox(workers=1, timeout=0.5, memory_mb=256, _without=request.param) as box:
        yield box


def answers(box, *programs):
    """What f() of each program returns, one program after the other; an error's name is in < >."""
    got = [values[0] for values in box.values([(program, ["f()"]) for program in programs])]
    return [value.value if value.ok else f"<{value.error}>" for value in got]


# ---- state that outlives a program ----

LIBRARY = "import os, this\nLIBRARY = this.__file__\n"
TRIED = """
import ctypes, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def tried(action, *args):
    try:
        return action(*args)
    except OSError as error:
        return error.errno
"""
WORLD = TRIED + """
import resource, signal, sys, threading, time
def f():
    state, fd = os.stat("."), os.open(".", os.O_RDONLY)
    open("mine", "w").write("7")
    return [
        oct(state.st_mode), state.st_nlink, abs(state.st_mtime - time.time()) < 60,
        abs(state.st_atime - time.time()) < 60, os.listxattr("."), os.listdir("."),
        open("mine").read(), oct(os.stat("mine").st_mode), os.listxattr("mine"),
        [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in range(3)], os.umask(0),
        [os.lseek(fd, 0, os.SEEK_CUR) for fd in range(3)], os.sched_getaffinity(0) != set(),
        [tried(fcntl.fcntl, 0, command) for command in (9, 11, 1025, 1035)],
        struct.unpack("hhqqi", fcntl.fcntl(0, 5, struct.pack("hhqqi4x", 1, 0, 0, 0, 0))[:28])[0],
        sorted(signal.sigpending()), threading.active_count(), sorted(os.environ),
        os.getcwd() == os.environ["HOME"],
        [resource.getrlimit(kind) for kind in (0, 1, 2, 3, 6, 7, 8, 9, 10)], len(sys.modules),
        tried(os.listdir, ".."), os.getpriority(os.PRIO_PROCESS, 0),
    ]
"""


def finds_the_same_world(box, attack):
    """What an attack says that it did (numbers are errors: 1 means that it is not allowed). The
    program after it sees what the one before it saw."""
    before, did, after = answers(box, WORLD, TRIED + attack, WORLD)
    assert before == after and len(before) == 23
    return did


def test_the_mode_of_the_folder_is_not_left_behind(alone):
    """After `chmod('.', 0)` no later program of the worker could write a file, nor could the ground
    truth, for the rest of the run."""
    attack = "def f():\n    return tried(os.chmod, '.', 0), tried(open, 'x')\n"
    assert finds_the_same_world(alone, attack) in [(None, 13), (1, 2)]  # no access, no such file


def test_a_default_acl_of_the_folder_is_not_left_behind(alone):
    """It gives each new file of a later program no rights at all."""
    attack = """
def f():
    rights = b"".join(struct.pack("<HHI", tag, 0, 2**32 - 1) for tag in (1, 4, 32))
    return tried(os.setxattr, ".", "system.posix_acl_default", struct.pack("<I", 2) + rights)
"""
    assert finds_the_same_world(alone, attack) in (None, 95, 1)  # 95: not in this kernel


def test_attributes_of_the_folder_are_not_left_behind(alone):
    """A store of a hundred kilobytes, which no one empties with the folder."""
    attack = """
def f():
    tried(os.setxattr, ".", "user.x", b"votes" * 100)
    return [tried(os.setxattr, fd, "user.x", b"1") for fd in range(3)]
"""
    assert all(finds_the_same_world(alone, attack))


def test_times_of_the_folder_are_not_left_behind(alone):
    """Sixteen bytes that any program can set, and the next one read."""
    attack = "def f():\n    return tried(os.utime, '.', (1, 2)), os.stat('.').st_mtime == 2\n"
    assert finds_the_same_world(alone, attack) in [(None, True), (1, False)]


def test_inode_flags_of_the_folder_are_not_left_behind(alone):
    """`chattr` by its number: flags of the folder, of a library, and of what is at 0 to 2."""
    attack = LIBRARY + """
import fcntl
def f():
    fds = [os.open(".", os.O_RDONLY), os.open(LIBRARY, os.O_RDONLY), 0, 1, 2]
    flags = struct.pack("q", 0x80)
    calls = (0x40086602, 0x40086604, 0x401C5820)  # set flags, version, project
    return [tried(fcntl.ioctl, fd, call, flags * 4) for fd in fds for call in calls]
"""
    assert finds_the_same_world(alone, attack) == [1] * 15


def test_files_in_and_beside_the_folder_are_not_left_behind(alone):
    """Links, pipes, folders without rights, deep ones, and names that are no text."""
    attack = """
def f():
    for path in "x", "../x", "/tmp/codea1-x", os.environ["HOME"] + "/y", b"\\xff\\xfe":
        tried(open, path, "w")
    tried(os.symlink, "/", "link")
    tried(os.link, "x", "hard")
    tried(os.mkfifo, "fifo")
    os.makedirs("a/b/c")
    for path in "a/b/d", "a/e", "g":
        os.mkdir(path, 0)
    os.umask(0o777)
    os.makedirs("w")
    return len(os.listdir("."))
"""
    assert finds_the_same_world(alone, attack) == 9


def test_flags_of_descriptors_0_to_2_are_not_left_behind(alone):
    """All programs of a worker once shared three open files: `O_APPEND` and `O_NONBLOCK` of each
    are six bits for the next one."""
    attack = """
def f():
    for fd in range(3):
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
        os.set_inheritable(fd, False)
    return fcntl.fcntl(0, fcntl.F_GETFL) & os.O_APPEND
"""
    assert finds_the_same_world(alone, attack) == os.O_APPEND


def test_owners_and_signals_of_descriptors_cannot_be_set(alone):
    """A shared file that tells a process of each event sends signals to whoever has its number."""
    attack = """
import fcntl
def f():
    by_fcntl = [(8, os.getpid()), (10, 10), (15, bytes(8)), (1026, 1)]
    by_ioctl = [(0x8901, 1), (0x8902, 1), (0x5452, 1)]
    return [tried(fcntl.fcntl, fd, *what) for fd in range(4) for what in by_fcntl] + [
        tried(fcntl.ioctl, fd, call, struct.pack("i", value))
        for fd in range(4) for call, value in by_ioctl]
"""
    assert finds_the_same_world(alone, attack) == [1] * 28


LOCKS = LIBRARY + TRIED + """
import time
def take(kind, fd):
    lock = struct.pack("hhqqi4x", kind, 0, 5, 7, 0)
    return [tried(fcntl.fcntl, fd, 6, lock), tried(fcntl.fcntl, fd, 37, lock),
            tried(fcntl.flock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB)]
def seen(fd):
    asked = tried(fcntl.fcntl, fd, 5, struct.pack("hhqqi4x", 1, 0, 0, 0, 0))
    return struct.unpack_from("h", asked)[0]
def f(seconds=0.6):
    fds = [0, os.open(LIBRARY, os.O_RDONLY), os.open("/dev/null", os.O_RDWR)]
    took = [take(0, fds[1])[1:], take(1, fds[0])[1:], take(1, fds[2])[1:]]
    time.sleep(seconds)
    return took, [seen(fd) for fd in fds]
"""


def test_locks_are_seen_by_no_other_program_nor_worker(alone):
    """A lock of a byte of a library's file is a bit that every program of the machine can see.
    Locks are granted, for a database asks for them, and not made; the other kinds are refused."""
    free = [[[1, 1]] * 3, [2, 2, 2]]
    assert [list(got) for got in answers(alone, LOCKS, LOCKS)] == [free, free]
    with Sandbox(workers=2, timeout=1) as box:
        holders = [box.put(sandbox.request(LOCKS, "", ["f(1)"], 1.0), sandbox.values)
                   for _ in range(2)]  # fmt: skip
        assert [list(holder.result()[0].value) for holder in holders] == [free, free]


def test_no_lease_keeps_others_from_a_library(alone):
    """Whoever opens a file with a lease on it waits up to 45 seconds for the holder to give it up:
    one program could stop all others from importing a module."""
    lease = LIBRARY + TRIED + """
import time
def f():
    fd = os.open(LIBRARY, os.O_RDONLY)
    leases = [tried(fcntl.fcntl, fd, 1024, kind) for kind in (0, 1)]
    time.sleep(0.5)
    return leases
"""
    victim = """
import time
def f():
    start = time.monotonic()
    import this
    open(this.__file__).read()
    return time.monotonic() - start < 5
"""
    with Sandbox(workers=2, timeout=1) as box:
        assert answers(box, lease, victim, lease, victim) == [[1, 1], True, [1, 1], True]


def test_write_hints_cannot_be_set(alone):
    """They stay with a library's file, in memory, for as long as the machine keeps it there."""
    attack = LIBRARY + """
def f():
    fds = [0, 1, 2, os.open(LIBRARY, os.O_RDONLY)]
    commands = (1035, 1036, 1037, 1038)
    return [tried(fcntl.fcntl, fd, command, struct.pack("Q", 3))
            for fd in fds for command in commands]
"""
    assert finds_the_same_world(alone, attack) == [1] * 16


VOTES = LIBRARY + TRIED + """
# A note is a mask of the tests whose answers are known; f(i) of a test that is known is i.
def on_file(mask=None, path="note"):
    open(path, "a").write("".join(chr(48 + i) for i in range(8) if (mask or 0) >> i & 1))
    return sum(1 << int(i) for i in set(open(path).read()))
def by_attribute(mask, path="."):
    if mask:
        os.setxattr(path, "user.note", bytes([mask]))
    return os.getxattr(path, "user.note")[0] if os.listxattr(path) else 0
def by_mode(mask):
    if mask:
        os.chmod(".", 0o1700 | mask)
    mode = os.stat(".").st_mode
    return mode & 0o77 if mode & 0o1000 else 0
def by_time(mask):
    if mask:
        os.utime(".", (mask, mask))
    now = int(os.stat(".").st_mtime)
    return now if now < 256 else 0
def by_flags(mask):
    bits = [(fd, flag) for fd in range(3) for flag in (os.O_APPEND, os.O_NONBLOCK)]
    for i, (fd, flag) in enumerate(bits):
        if mask >> i & 1:
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | flag)
    return sum(1 << i for i, (fd, flag) in enumerate(bits)
               if fcntl.fcntl(fd, fcntl.F_GETFL) & flag)
def by_hint(mask):
    fd = os.open(LIBRARY, os.O_RDONLY)
    if mask:
        fcntl.fcntl(fd, 1036, struct.pack("Q", mask & 7))
    return struct.unpack("Q", fcntl.fcntl(fd, 1035, bytes(8)))[0]
def by_lock(mask):
    for i in range(8):
        if mask >> i & 1:
            fcntl.fcntl(0, 37, struct.pack("hhqqi4x", 0, 0, i, 1, 0))
    state = [fcntl.fcntl(0, 36, struct.pack("hhqqi4x", 1, 0, i, 1, 0)) for i in range(8)]
    return sum(1 << i for i in range(8) if struct.unpack_from("h", state[i])[0] == 0)
WAYS = [on_file, lambda mask: on_file(mask, "../note"), lambda mask: on_file(mask, "/tmp/note"),
        lambda mask: on_file(mask, "/dev/shm/note"), by_attribute, by_time, by_flags,
        lambda mask: by_attribute(mask, 0), lambda mask: by_attribute(mask, LIBRARY),
        lambda mask: by_attribute(mask, "/dev/null"), by_hint, by_lock, by_mode]
def told(mask):
    notes = []
    for way in WAYS:
        try:
            notes.append(way(mask))
        except OSError:
            notes.append(0)
    return notes
before = told(0)
notes = MINE
for note in before:
    notes |= note
after = told(notes)
def f(i):
    return i if notes >> i & 1 else -1
"""


def test_two_wrong_programs_are_no_better_together(alone):
    """Each passes one test of eight. With votes left in any place that outlives a program, the
    second knows what the first knew, and after eight all pass all of them."""
    tests = [f"assert f({i}) == {i}" for i in range(8)]
    programs = [VOTES.replace("MINE", str(1 << i % 8)) for i in range(10)]
    passed = [statuses.count(Status.PASS)
              for statuses in alone.check([(program, tests) for program in programs])]  # fmt: skip
    assert passed == [1] * 10
    works = alone.values([(programs[0], ["after", "before"])])[0]
    ways = [told != before for told, before in zip(works[0].value, works[1].value, strict=True)]
    assert sum(ways) >= 2  # a program does see what it has left itself


# ---- what the filter refuses ----

ARM = os.uname().machine != "x86_64"
CALLS = {  # as the kernel numbers them on x86_64 and on aarch64
    "splice": (275, 76), "tee": (276, 77), "vmsplice": (278, 75), "sendfile": (40, 71),
    "setsockopt": (54, 208), "flock": (73, 32), "sync": (162, 81), "syncfs": (306, 267),
    "setuid": (105, 146), "setreuid": (113, 145), "setresuid": (117, 147), "setfsuid": (122, 151),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "mincore": (27, 232), "preadv2": (327, 286), "memfd_create": (319, 279), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "perf_event_open": (298, 241), "io_uring_setup": (425, 425),
    "pidfd_getfd": (438, 438), "setpriority": (141, 140), "sched_setaffinity": (203, 122),
    "setns": (308, 268), "unshare": (272, 97), "execve": (59, 221), "mount": (165, 40),
    "inotify_init1": (294, 26), "userfaultfd": (323, 282), "add_key": (248, 217),
}  # fmt: skip
BY_NUMBER = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def f(number, *args):
    ctypes.set_errno(0)
    return libc.syscall(number, *args) and ctypes.get_errno()
"""


def errors(box, calls):
    """Error numbers of system calls, given as (number, argument ...); 0: it was done."""
    sources = [f"f({', '.join(map(str, call))})" for call in calls]
    return [value.value for value in box.values([(BY_NUMBER, sources)])[0]]


def test_calls_that_a_function_never_needs_are_refused(alone):
    """Pages in pipes, large buffers of sockets, other users' limits: each was memory, or a way out,
    that no limit counts."""
    got = errors(alone, [(numbers[ARM], -1, -1, -1, -1, -1, -1) for numbers in CALLS.values()])
    assert dict(zip(CALLS, got, strict=True)) == dict.fromkeys(CALLS, 1)


def test_the_numbers_of_calls_are_the_kernels():
    """A wrong number leaves a call open, and refuses another; each kind of machine has its own."""
    tables = jail.FORBIDDEN, jail.PROCESSES, jail.USED, *jail.STAND_INS.values()
    rows = [row.split() for table in tables for row in table.split(",")]
    rows = [[name, both[0], both[-1]] for name, *both in rows]  # one number for both, or two
    for name, numbers in CALLS.items():
        assert [name, *map(str, numbers)] in rows
    compared = 0
    for column, header in ((1, "x86_64-linux-gnu/asm/unistd_64.h"), (2, "asm-generic/unistd.h")):
        path = Path("/usr/include", header)
        text = path.read_text() if path.exists() else ""
        known = dict(re.findall(r"#define __NR(?:3264)?_(?!syscalls)(\w+)\s+(\d+)", text))
        newest = max(map(int, known.values()), default=0)
        for row in rows:
            if known and int(row[column]) <= newest:
                assert known.get(row[0], "-1") == row[column], row
                compared += 1
    if not compared:
        pytest.skip("no headers of the kernel")


def test_calls_newer_than_the_list_are_unknown(alone):
    """From 463 on a kernel may know calls that nobody here has looked at; 463 sets attributes."""
    assert errors(alone, [(n, -1, 0, 0, 0, 0, 0) for n in range(463, 520)]) == [38] * 57


def test_pairs_of_sockets_are_streams_of_the_machine(alone):
    """A pair of datagrams can be pointed at a socket of the machine's; other families have modules
    that are loaded when they are first named."""
    number = 199 if ARM else 53
    families = (0, 1, 2, 10, 16, 21, 30, 38, 40)
    kinds = [(family, kind) for family in families for kind in (1, 2, 3, 5)]
    got = errors(alone, [(number, *kind, 0, 0) for kind in kinds])
    streams = [error for kind, error in zip(kinds, got, strict=True) if kind == (1, 1)]
    assert streams == [14] and got.count(1) == len(kinds) - 1  # 14: where are they to be put?
    program = "import socket\ndef f():\n    a, b = socket.socketpair()\n    a.send(b'x')\n" \
              "    return b.recv(1)\n"  # fmt: skip
    assert answers(alone, program) == [b"x"]


def test_nothing_is_forced_to_disk(alone):
    """`fsync` of a library's file makes the disk write for whoever else is waiting. The calls say
    that it is done, for a database asks, and do nothing: not even look at the descriptor."""
    numbers = [(82, 83, 227, 84)[i] if ARM else (74, 75, 26, 277)[i] for i in range(4)]
    assert errors(alone, [(number, 999, 0, 0, 0) for number in numbers]) == [0] * 4
    program = """
import os, sqlite3
def f():
    db = sqlite3.connect("x.db")
    db.execute("create table t (a)")
    db.executemany("insert into t values (?)", [(i,) for i in range(9)])
    db.commit()
    db.execute("delete from t where a > 4")
    db.rollback()
    fd = os.open("x.db", os.O_RDWR)
    os.fsync(fd)
    return sqlite3.connect("x.db").execute("select sum(a) from t").fetchone()
"""
    assert answers(alone, program) == [(36,)]


def test_threads_share_their_descriptors(alone):
    """With a table of its own each of 256 threads has 128 descriptors, and 64 pipes full of data:
    400 MB that were counted nowhere."""
    clone, range_ = (220 if ARM else 56), 436
    thread = 0x3D0F00 & ~0x400  # what the C library asks for, but for the common descriptors
    calls = [(clone, thread, 0, 0, 0, 0), (range_, 999, 999, 2), (range_, 999, 999, 6)]
    assert errors(alone, calls) == [1, 1, 1]
    assert errors(alone, [(range_, 999, 999, 0), (range_, 999, 999, 4)]) == [0, 0]


def test_a_crash_starts_no_handler_of_the_machines(alone):
    """Where cores go to a program (systemd-coredump, apport), the kernel runs it as root for each
    process that crashes, and hands it the memory, also if cores may have no byte. Not if they may
    have one."""
    program = """
import ctypes, resource, time
def f():
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    finally:
        ctypes.CDLL(None).syscall(NUMBER, 4, (ctypes.c_long * 2)(0, 0))
        time.sleep(1)
""".replace("NUMBER", "164" if ARM else "160")
    job = alone.submit(program, ["assert f() == 1"])
    time.sleep(0.5)
    limits = [Path(f"/proc/{pid}/limits").read_text() for pid in descendants(os.getpid())]
    found = [re.search(r"core file size +(\d+) +(\d+)", text) for text in limits]
    assert job.result() == [Status.FAIL]
    assert sum(match is not None and match[1] == match[2] == "1" for match in found) >= 3


def descendants(pid):
    """A process and all below it, as far as they are still there."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    if not os.path.exists(f"/proc/{pid}"):
        return []
    return [int(pid)] + [each for child in children for each in descendants(child)]


# ---- where layers are missing ----

LANDLOCKED = ["mount namespace", "landlock"]  # they keep programs from files, each alone
OTHERS = """
import ctypes, fcntl, os, resource, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
PID, FILE, ARM = {pid}, {file!r}, {arm}
def number(x86, arm):
    return arm if ARM else x86
def call(number, *args):
    ctypes.set_errno(0)
    return libc.syscall(number, *args) and ctypes.get_errno()
def error(action, *args):
    try:
        action(*args)
        return 0
    except OSError as problem:
        return problem.errno
"""


@pytest.fixture(scope="module")
def targets():
    targets = Targets()
    yield targets
    targets.close()


def touched(targets, without, lines):
    """Error numbers of acts on a process and a file of the test's; 0: done."""
    program = OTHERS.format(pid=targets.process.pid, file=str(targets.file), arm=ARM)
    with Sandbox(workers=1, timeout=1, _without=without) as box:
        return [value.value for value in box.values([(program, lines)])[0]]


def test_no_signal_and_no_limit_for_others_where_processes_can_be_seen(targets):
    """Without the pid namespace a program knows the trainer's number. There are many ways to send a
    signal, and one to take its memory or descriptors away by a limit."""
    acts = [
        "error(os.kill, PID, 10)", "error(os.killpg, PID, 10)", "call(number(200, 130), PID, 10)",
        "call(number(234, 131), PID, PID, 10)", "call(number(129, 138), PID, 10, bytes(128))",
        "call(number(297, 240), PID, PID, 10, struct.pack('iii', 10, 0, -1) + bytes(116))",
        "error(signal.pidfd_send_signal, os.pidfd_open(PID), 10)",
        "error(fcntl.fcntl, 3, 8, PID)", "error(fcntl.fcntl, 3, 15, struct.pack('ii', 1, PID))",
        "error(fcntl.ioctl, 3, 0x8901, struct.pack('i', PID))",
        "error(fcntl.ioctl, 3, 0x8902, struct.pack('i', PID))",
        "error(resource.prlimit, PID, resource.RLIMIT_NOFILE, (0, 0))",
        "call(number(302, 261), PID, 7, struct.pack('QQ', 0, 0), None)",
    ]  # fmt: skip
    assert touched(targets, ["pid namespace", *LANDLOCKED], acts) == [1] * len(acts)
    assert targets.untouched()
    limits = Path(f"/proc/{targets.process.pid}/limits").read_text()
    assert min(map(int, limits.split("open files")[1].split()[:2])) > 0


def test_no_attribute_of_others_where_files_can_be_changed(targets):
    """Landlock sees no attributes, modes, owners and times: without the mount namespace, a note on
    any file of the user's is there for later programs, and for other people."""
    acts = [
        "error(os.setxattr, FILE, 'user.x', b'1')",
        "error(lambda: os.setxattr(FILE, 'user.x', b'1', follow_symlinks=False))",
        "error(os.removexattr, FILE, 'user.kept')", "error(os.chmod, FILE, 0o777)",
        "error(os.chown, FILE, os.getuid(), -1)", "error(os.utime, FILE, (1, 1))",
        "call(number(190, 7), 0, b'user.x', b'1', 1, 0)", "error(os.fchmod, 0, 0o600)",
        "call(452, -100, FILE.encode(), 0o777, 0)", "error(os.truncate, FILE, 0)",
    ]  # fmt: skip
    younger = ["call(463, -100, FILE.encode(), 0, b'user.x', bytes(16), 16)",
               "call(469, -100, FILE.encode(), bytes(24), 24, 0)"]  # fmt: skip
    for without in (["mount namespace"], LANDLOCKED):
        assert touched(targets, without, acts) == [1] * len(acts)
        assert touched(targets, without, younger) == [38] * 2
    assert targets.untouched() and os.listxattr(targets.file) == []


def test_no_queue_or_segment_of_the_machine_where_they_can_be_seen(targets):
    """Without the ipc namespace shared memory stays after a program, and other programs' can be
    read."""
    key = 0x5EC0DF + os.getpid()
    segment = jail.LIBC.shmget(key, 4096, 0o1600)
    acts = [f"call(number(29, 194), {key}, 1, 0)", "call(number(29, 194), 0, 4096, 0o1600)",
            "call(number(64, 190), 0, 1, 0o1600)", "call(number(68, 186), 0, 0o1600)",
            "call(number(240, 180), b'codea1', 0o102, 0o600, None)",
            f"call(number(30, 196), {segment}, 0, 0)"]  # fmt: skip
    try:
        assert touched(targets, ["ipc namespace", *LANDLOCKED], acts) == [1] * len(acts)
    finally:
        jail.LIBC.shmctl(segment, 0, None)


def test_three_devices_can_be_opened():
    """Without Landlock, programs of root's worker could read and write the disk itself: a mount
    that is read-only is so for files alone."""
    program = """
import os, stat
def f():
    found = []
    for folder, _, names in os.walk("/dev"):
        for path in (os.path.join(folder, name) for name in names):
            try:
                if not stat.S_ISREG(os.stat(path).st_mode):
                    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                    found.append(path)
            except OSError:
                pass
    return sorted(found)
"""
    with Sandbox(workers=1, timeout=2, _without=["landlock"]) as box:
        if box.report()["mount namespace"] != "active":
            pytest.skip("the devices are the machine's here")
        assert answers(box, program) == [["/dev/null", "/dev/urandom", "/dev/zero"]]


HOG = """
import threading, time
threading.stack_size(32768)
def f(count):
    for _ in range(count):
        threading.Thread(target=time.sleep, args=[100], daemon=True).start()
    time.sleep(100)
"""


@pytest.mark.parametrize("without", [[], ["user namespace"], SPACES])
def test_threads_are_bounded_and_starve_nobody_else(without):
    """Where the threads of all programs are counted together, one that takes them all kept the fork
    servers of other workers from forking: a fault of ours, and the end of the run."""
    honest = "import threading\ndef f(x):\n    t = threading.Thread(target=abs, args=[x])\n" \
             "    t.start()\n    t.join()\n    return x\n"  # fmt: skip
    with Sandbox(workers=3, timeout=1, memory_mb=1024, _without=without) as box:
        hogs = [box.submit(HOG, ["assert f(6000) == 1"]) for _ in range(4)]
        others = [box.submit(honest, [f"assert f({x}) == {x}" for x in range(5)])
                  for _ in range(60)]  # fmt: skip
        assert all(hog.result()[0] in (Status.TIMEOUT, Status.ERROR) for hog in hogs)
        passed = sum(statuses == [Status.PASS] * 5 for statuses in (o.result() for o in others))
    assert passed >= 58  # at worst two meet a hog before the clock does


@pytest.mark.parametrize("without", [[], ["user namespace"], SPACES])
def test_no_program_goes_on_with_more_threads_than_it_may_have(without):
    """The limit of the user is no limit of a program where both have to be the same number."""
    crowd = HOG.replace("time.sleep(100)\n", "time.sleep(0.5)\n    return 1\n")
    with Sandbox(workers=1, timeout=2, _without=without) as box:
        got = box.values([(crowd, ["f(200)"]), (crowd, ["f(1000)"])])
    assert got[0][0].value == 1 and not got[1][0].ok


DISK = {
    "large files": "    for i in range(24):\n        open(str(i), 'wb').write(bytes(4 << 20))\n",
    "many files": "    for i in range(600):\n        open(str(i), 'w').close()\n",
    "a long path": """
    for _ in range(25):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    open("x", "wb").write(bytes(4 << 20))
""",
    "a folder that cannot be read": """
    os.mkdir("d", 0o300)
    for i in range(24):
        open(f"d/{i}", "wb").write(bytes(4 << 20))
""",
    "open": """
    for i in range(24):
        fd = os.open("x", os.O_RDWR | os.O_CREAT)
        os.unlink("x")
        os.write(fd, bytes(4 << 20))
""",
    "mapped": """
    for i in range(24):
        fd = os.open("x", os.O_RDWR | os.O_CREAT)
        os.unlink("x")
        kept.append(mmap.mmap(fd, os.write(fd, bytes(4 << 20))))
        os.close(fd)
""",
}


@pytest.mark.parametrize("name", DISK)
def test_a_folder_on_disk_is_bounded(name):
    """As often as the clock is looked at: also what lies deeper than a path may be long, in a
    folder that its owner may not read, and in files that are deleted but open or mapped."""
    program = f"import mmap, os, time\nkept = []\ndef f():\n{DISK[name]}\n    time.sleep(0.3)\n"
    with Sandbox(workers=1, timeout=0.5, _without=SPACES) as box:
        got = answers(box, program, "import os\ndef f():\n    return os.listdir('.')\n")
    assert got == ["<timeout>", []]


def test_deleted_files_within_the_bound_are_allowed():
    program = """
import mmap, os, tempfile, time
def f():
    kept = [tempfile.TemporaryFile() for _ in range(9)] + [mmap.mmap(-1, 4096) for _ in range(40)]
    for item in kept:
        item.write(bytes(4096))
    time.sleep(0.2)
    return len(kept)
"""
    with Sandbox(workers=1, timeout=0.5, _without=SPACES) as box:
        assert answers(box, program) == [49]


# ---- memory ----

FILL = """
import array, ctypes, os, socket, threading, time
def fill(fd):
    os.set_blocking(fd, False)
    done = 0
    try:
        while True:
            done += os.write(fd, bytes(1 << 16))
    except BlockingIOError:
        return done
def pipes():
    done = 0
    try:
        while True:
            done += fill(os.pipe()[1])
    except OSError:
        return done
def sockets():
    done, carrier = 0, socket.socketpair()
    try:
        while True:
            a, b = socket.socketpair()
            done += fill(a.fileno()) + fill(b.fileno())
            fds = array.array("i", [a.detach(), b.detach()])
            message = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            try:  # in flight they are no descriptors of the program's
                carrier[0].sendmsg([b"x"], message, socket.MSG_DONTWAIT)
                os.close(fds[0])
                os.close(fds[1])
            except OSError:
                pass
    except OSError:
        return done
def folder():
    done = 0
    try:
        with open("x", "wb", buffering=0) as file:
            while True:
                done += file.write(bytes(1 << 16))
    except OSError:
        return done
def threads(action=lambda: None):
    threading.stack_size(1 << 16)
    def run():
        action()
        time.sleep(100)
    try:
        for _ in range(300):
            threading.Thread(target=run, daemon=True).start()
    except RuntimeError:
        return 0
def unshared():
    done = []
    def run():
        ctypes.CDLL(None).syscall(436, 1 << 30, 1 << 30, 2)
        done.append(pipes())
    threads(run)
    time.sleep(0.3)
    return sum(done)
def tables():
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 6
    for gigabyte in range(1, 60_000):
        page = libc.mmap(gigabyte << 30, 4096, 3, 0x100022, 2**64 - 1, 0)
        if page != 2**64 - 1:
            ctypes.string_at(page, 1)
    return 0
def heap():
    kept = []
    try:
        while True:
            kept.append(bytearray(1 << 20))
    except MemoryError:
        threading.Thread(target=lambda: (kept, time.sleep(100)), daemon=True)
        globals()["kept"] = kept
        return 0
def f(*actions):
    done = sum(globals()[action]() for action in actions)
    time.sleep(0.4)
    return done >> 20
"""


def used(pid):
    """MiB of a process and all below it: what is not shared, tables of pages, stacks in the
    kernel."""
    total = resident(pid)
    for process in descendants(pid):
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        words = dict(line.split(":", 1) for line in lines)
        total += int(words.get("VmPTE", "0 kB").split()[0]) / 1024
        total += int(words.get("Threads", "0")) * 24 / 1024
    return total


@pytest.mark.parametrize("actions", [
    ("pipes",), ("sockets",), ("unshared",), ("tables",), ("folder",),
    ("threads", "sockets", "folder", "heap"),
])  # fmt: skip
def test_memory_of_a_worker_stays_under_its_bound_from_outside(actions):
    """Pipes, sockets (also in flight), threads, tables of pages and the folder take memory that no
    limit of a process counts: all of it together stays under what the header says."""
    bound = 256 + jail.FOLDER_MB + 128
    with Sandbox(workers=1, timeout=5, memory_mb=256) as box:
        box.values([("", ["1"])])
        worker, peak = box.idle[0][0].process.pid, [0.0]
        call = f"f({', '.join(map(repr, actions))})"
        job = box.put(sandbox.request(FILL, "", [call], 5.0), sandbox.values)
        while not job.done():
            peak.append(used(worker))
            time.sleep(0.02)
    (value,) = job.result()
    assert value.ok and (value.value > 0 or actions == ("tables",))
    assert 20 < max(peak) + value.value < bound
    if "heap" not in actions:  # its own limit stands alone for the program's memory
        assert max(peak) + value.value < bound - 256 + 60


# ---- a user that is not root ----

CHILD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import sandbox
from sandbox import Sandbox
job = json.load(sys.stdin)
with Sandbox(**job["settings"]) as box:
    found = {"layers": box.report(), "checked": [], "values": []}
    for statuses in box.check(job["items"]):
        found["checked"].append([status.value for status in statuses])
    for (value,) in box.values([(program, ["f()"]) for program in job["programs"]]):
        found["values"].append(value.value if value.ok else f"<{value.error}>")
found["started"] = next(sandbox.NUMBER)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def nobody():
    """Runs a job in a child process, which is a user without rights where this one is root."""
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    fit = "import sys; sys.exit(sys.version_info < (3, 10))"
    for python in (getattr(sys, "_base_executable", sys.executable), "/usr/bin/python3"):
        try:
            if not subprocess.run([python, "-c", fit], cwd="/", **user).returncode:
                break
        except OSError:  # it lies where others may not look
            pass
    else:
        pytest.skip("no interpreter that a user other than root may start")
    with tempfile.TemporaryDirectory(dir=FOLDERS[-1]) as folder:
        os.chmod(folder, 0o755)
        for module in jail, sandbox, asserts:
            shutil.copy(module.__file__, folder)

        def run(settings, items=(), programs=()):
            job = {"settings": settings, "items": list(items), "programs": list(programs)}
            done = subprocess.run([python, "-c", CHILD, folder], cwd="/", input=json.dumps(job),
                                  capture_output=True, text=True, **user)  # fmt: skip
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        yield run


def test_folders_without_rights_in_a_folder_do_not_end_the_worker(nobody):
    """Who is not root cannot look into them: to clear the folder up was an error, and the fork
    server gone. Two such programs in a row, and the run was over."""
    attack = """
import os
def f():
    os.makedirs("a/b")
    for path in "a/b/c", "a/d", "e":
        os.mkdir(path, 0)
    open("a/b/x", "w").close()
    os.umask(0o777)
    os.makedirs("g")
    return len(os.listdir("."))
"""
    clean = "import os\ndef f():\n    return os.listdir('.')\n"
    for without in (["mount namespace"], SPACES):
        found = nobody({"workers": 1, "_without": without}, programs=[attack, clean] * 3)
        assert found["values"] == [3, []] * 3 and found["started"] == 1


@pytest.mark.parametrize("name", DISK)
def test_a_folder_on_disk_is_bounded_for_a_user_that_is_not_root(nobody, name):
    """Who has no right to look everywhere must not take for empty what he cannot look into."""
    program = f"import mmap, os, time\nkept = []\ndef f():\n{DISK[name]}\n    time.sleep(0.3)\n"
    settings = {"workers": 1, "timeout": 0.5, "_without": SPACES}
    assert nobody(settings, programs=[program])["values"] == ["<timeout>"]


@pytest.mark.parametrize("name, without", [
    ("container without Landlock", [*SPACES, "landlock"]),
    ("user namespace without rights", SPACES[1:]),
    ("resource limits alone", [*SPACES, "landlock", "seccomp", "no new privileges"]),
])  # fmt: skip
def test_no_forgery_passes_for_a_user_that_is_not_root(nobody, name, without):
    """Programs run as the trainer's own user there. Where they can open /proc, they once read what
    is expected from the memory of the trainer."""
    settings = {"workers": 6, "timeout": 0.1, "memory_mb": 256, "_without": without}
    items = [(attack.program, [f"assert f() == {SECRET}"]) for attack in FORGERIES]
    checked = nobody(settings, items)["checked"]
    assert len(checked) == len(FORGERIES) > 60
    forged = [attack for attack, statuses in zip(FORGERIES, checked, strict=True)
              if "pass" in statuses]  # fmt: skip
    assert not forged


def test_nothing_is_written_where_every_file_is_open(nobody, tmp_path):
    """Without the mount namespace and Landlock, programs can write whatever the user can: the
    libraries that the next worker loads, and the trainer with it."""
    os.chmod(tmp_path, 0o777)
    write = f"""
import os
def tried(action, *args):
    try:
        return bool(action(*args)) + 1
    except OSError as error:
        return error.errno
def f():
    here, there = os.getcwd(), {str(tmp_path)!r}
    file = there + "/x"
    flags = [os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_WRONLY | os.O_TMPFILE]
    got = [tried(os.open, os.__file__, flag) for flag in flags[:4]]
    got += [tried(os.open, folder, flags[4]) for folder in (here, there)]
    for path in file, "x":
        got += [tried(open, path, "w"), tried(os.mkdir, path), tried(os.mkfifo, path),
                tried(os.symlink, "/", path), tried(os.link, os.__file__, path)]
    got += [tried(os.rename, here, file), tried(os.rmdir, here), tried(os.unlink, here)]
    return got
"""
    for root in (True, False):
        settings = {"workers": 1, "_without": [*SPACES, "landlock"]}
        if root:
            with Sandbox(**settings) as box:
                got = answers(box, write)[0]
        else:
            got = nobody(settings, programs=[write])["values"][0]
        assert got == [1] * 19 and os.listdir(tmp_path) == []


def test_an_installation_in_place_shows_nothing_of_ours():
    """`pip install -e` puts our folder where the interpreter looks: a program then reads the runs,
    the questions and their answers, which lie beside the code."""
    folder = Path(sandbox.__file__).parent
    with tempfile.TemporaryDirectory(dir=FOLDERS[-1]) as place:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        packages = next(Path(place).glob("lib/python*/site-packages"))
        (packages / "ours.pth").write_text(f"{folder}\n")
        program = f"""
import os, sys
def f():
    found = [{str(folder)!r} in sys.path]
    for act in lambda: __import__("asserts"), lambda: os.listdir({str(folder)!r}):
        try:
            found.append(bool(act()))
        except ImportError:
            found.append("no module")
        except OSError:
            found.append("no folder")
    return found
"""
        code = "import sandbox, sys\nwith sandbox.Sandbox(1) as box:\n    " \
               "print(box.values([(sys.stdin.read(), ['f()'])])[0][0].value)\n"  # fmt: skip
        done = subprocess.run([f"{place}/bin/python", "-c", code], input=program, cwd="/",
                              capture_output=True, text=True)  # fmt: skip
    assert done.stdout == "[False, 'no module', 'no folder']\n", done.stderr


# ---- which layers, and what then holds ----

PLAIN = {"chmod", "shutil", "5_000_000"}  # of honest programs, a word of each
WRITES = PLAIN | {"notes.txt", "tempfile", "sqlite3", "os.replace"}
TABLE = {  # layers left out; kinds of ESCAPES that get through; honest programs that then fail
    "all layers": ([], set(), set()),
    "plain container": (SPACES, set(), PLAIN | {"raise_signal"}),
    "container without Landlock": ([*SPACES, "landlock"], {"reading"}, WRITES | {"raise_signal"}),
    "user namespace without rights": (SPACES[1:], set(), PLAIN | {"raise_signal"}),
    "no Landlock": (["landlock"], {"reading"}, set()),
    "no pid namespace": (["pid namespace"], set(), {"raise_signal"}),
    "no mount namespace": (["mount namespace"], set(), PLAIN),
    "no seccomp": (["seccomp"], {"network", "processes", "privileges", "starving", "memory"},
                   set()),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_holds_where_layers_are_missing(name, targets):
    """No verdict is forged whatever is missing; what else gets through, and which honest programs
    fail, is what the table says, and no more. (With resource limits alone programs do what the user
    may; there only forgeries are tried, by a user without rights.)"""
    without, escapes, failing = TABLE[name]
    with Sandbox(workers=4, timeout=0.1, _without=without) as box:
        missing = {layer for layer, state in box.report().items() if state != "active"}
        if missing != set(without):
            pytest.skip(f"other layers are missing on this machine: {missing}")
        right, *forged = box.check([(program, [f"assert f() == {SECRET}"]) for program in [
            f"def f():\n    return {SECRET}\n", *(attack.program for attack in FORGERIES)]])
        assert right == [Status.PASS] and all(Status.PASS not in each for each in forged)
        got = box.values([(attack.program.format(**targets.names), ["f()"])
                          for attack in ESCAPES])  # fmt: skip
        box.timeout = 2.0
        honest = box.values([(program, ["f()"]) for program, _ in HONEST])
    through = {attack.kind for attack, (value,) in zip(ESCAPES, got, strict=True) if value.ok}
    assert through == escapes
    assert "network" in escapes or targets.untouched()
    failed = [program for (program, expected), (value,) in zip(HONEST, honest, strict=True)
              if not (value.ok and asserts.equal(value.value, eval(expected)))]  # fmt: skip
    words = {word for word in WRITES | {"raise_signal"} for program in failed if word in program}
    assert words == failing and len(failed) == len(failing)


# ---- time ----

SLEEPERS = {
    "sleeps in each of its calls": """
import time
def f(x):
    time.sleep(0.3)
    return x
""",
    "sleeps, and works when the clock is first looked at": """
import time
def f(x):
    for seconds in 0.012, 0.13:
        time.sleep(seconds)
        end = time.perf_counter() + 0.009
        while time.perf_counter() < end: pass
    return x
""",
    "works in short bursts between sleeps": """
import time
def f(x):
    while True:
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end: pass
        time.sleep(0.009)
""",
    "has a second thread that sleeps": """
import threading, time
threading.Thread(target=time.sleep, args=[1000]).start()
def f(x):
    time.sleep(1000)
""",
    "has 240 threads that wake up together, and wait for each other": """
import threading, time
threading.stack_size(65536)
def run():
    while True:
        time.sleep(0.15 - time.monotonic() % 0.15)
def f(x):
    for _ in range(240):
        threading.Thread(target=run, daemon=True).start()
    time.sleep(1000)
""",
    "has a first thread that ended": """
import ctypes, threading, time
def work():
    while True:
        time.sleep(0.01)
def f(x):
    threading.Thread(target=work).start()
    ctypes.CDLL(None).syscall(60 if __import__("os").uname().machine == "x86_64" else 93, 0)
""",
    "works in a second thread when the first has ended": """
import ctypes, threading
def work():
    while True: pass
def f(x):
    threading.Thread(target=work).start()
    ctypes.CDLL(None).syscall(60 if __import__("os").uname().machine == "x86_64" else 93, 0)
""",
    "dribbles a reply": """
import os, time
def f(x):
    for byte in b"\\0\\0\\xff\\xffv" + b" " * 10_000:
        os.write(3, bytes([byte]))
        time.sleep(0.005)
""",
    "crashes after a sleep": """
import os, time
def f(x):
    time.sleep(0.4)
    os._exit(0)
""",
    "stops itself": """
import os, signal
def f(x):
    os.kill(os.getpid(), signal.SIGSTOP)
    while True: pass
""",
}


@pytest.mark.parametrize("name", SLEEPERS)
def test_no_program_holds_a_worker_by_sleeping(name):
    """Twenty calls that each slept just under the limit held a worker for 47 seconds, and a hundred
    threads that wake up together for any time: what they waited for each other was no sleep."""
    without = ["pid namespace", "seccomp"] if name == "stops itself" else []
    calls = 20 if "sleeps," in name or "its calls" in name or "crashes" in name else 1
    with Sandbox(workers=1, timeout=0.25, memory_mb=256, _without=without) as box:
        box.check([("", [])])
        start = time.monotonic()
        (statuses,) = box.check([(SLEEPERS[name], [f"assert f({x}) == {x}" for x in range(calls)])])
        took = time.monotonic() - start
    assert statuses.count(Status.PASS) < calls
    assert 0.2 < took < 5  # 1.75 to sleep, 0.25 to work, and some to be seen
