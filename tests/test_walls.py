"""A program finds the world as the first one found it, and what holds where layers are missing.

State that outlives a program is a store: two wrong programs that could leave votes there passed 8 of 8 tests where each
passed 1. Everything here aims at the program's own process and folder, or at files of this test.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_sandbox_attacks import FORGERIES, SECRET

import jail
import sandbox
from sandbox import Items, Opaque, Sandbox, Status
from tasks import Test

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux'")
ROOT = Path(sandbox.__file__).parent


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=1, timeout=1.0) as box:
        yield box


def value(box, program, call="f()"):
    return box.values([(program, [call])])[0][0]


# ---- state that outlives a program ----

READER = """
import fcntl, os
def f():
    open("notes.txt", "w").write("7")
    state = os.stat(".")
    flags = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in range(3)]
    inside = os.listdir(".")
    return [open("notes.txt").read(), os.listxattr("."), state.st_mode, state.st_mtime > 10**9, inside, flags]
"""
LEFT = {
    "mode": "os.chmod('.', 0)",
    "default ACL": "os.setxattr('.', 'system.posix_acl_default', struct.pack('<I', 2) + b''.join("
                   "struct.pack('<HHI', t, p, 0xffffffff) for t, p in ((1, 0), (4, 0), (0x20, 0))))",
    "attribute": "os.setxattr('.', 'user.x', b'hello')",
    "times": "os.utime('.', (12345, 67890))",
    "files": "os.makedirs('a/b'); open('a/b/c', 'w').write('x'); os.chmod('a', 0)",
    "flags of descriptors": "[fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND) for fd in range(3)]",
    "positions of the standard descriptors": "[os.dup2(os.open('.', 0), fd) for fd in (0, 1, 2)]",
    "a lock": "fcntl.lockf(open(os.__file__), fcntl.LOCK_SH)",
}  # fmt: skip


@pytest.mark.parametrize("kind", LEFT)
def test_nothing_that_a_program_leaves_is_found_by_the_next(box, kind):
    """The folder of a worker was emptied, but what was set on it stayed: after chmod, every later program failed."""
    before = value(box, READER).value
    attack = value(box, f"import fcntl, os, struct\ndef f():\n    {LEFT[kind]}\n    return 1\n")
    assert attack.value == 1, attack
    assert value(box, READER).value == before
    assert before[0] == "7" and before[1] == [] and before[3] and before[4] == ["notes.txt"]


REFUSED = {
    "inode flags of the folder": "fcntl.ioctl(os.open('.', 0), 0x40086602, struct.pack('q', 0x80))",
    "a folder beside its own": "os.mkdir('../other')",
    "a file beside its own": "open('../other', 'w')",
    "the mode of what its folder lies in": "os.chmod('..', 0o777)",
    "an owner of signals": "fcntl.fcntl(0, fcntl.F_SETOWN, 1)",
    "a signal for a descriptor": "fcntl.fcntl(0, fcntl.F_SETSIG, 10)",
    "an owner by ioctl": "fcntl.ioctl(3, 0x8901, struct.pack('i', 1))",
    "signals by ioctl": "fcntl.ioctl(3, 0x5452, struct.pack('i', 1))",
    "a lease on a library": "fcntl.fcntl(os.open(os.__file__, 0), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    "a notice of a library": "fcntl.fcntl(os.open(os.path.dirname(os.__file__), 0), fcntl.F_NOTIFY, 1)",
    "a write hint": "fcntl.fcntl(0, 1036, struct.pack('Q', 2))",
    "a lock by flock": "fcntl.flock(open(os.__file__), fcntl.LOCK_SH)",
    "a lock of a description": "fcntl.fcntl(os.open('x', 66), 37, struct.pack('hhqqi', 1, 0, 0, 0, 0))",
    "a larger pipe": "fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)",
    "larger socket buffers": "socket.socketpair()[0].setsockopt(1, 7, 1 << 20)",
    "pages in a pipe": "libc('vmsplice', os.pipe()[1], (ctypes.c_size_t * 2)(id(0), 8), 1, 0)",
    "a splice": "libc('splice', os.pipe()[0], None, os.pipe()[1], None, 1, 2)",
    "a tee": "libc('tee', os.pipe()[0], os.pipe()[1], 1, 2)",
    "pairs of another family": "socket.socketpair(30, socket.SOCK_STREAM)",
    "pairs of datagrams": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "limits of another process": "resource.prlimit(2**22 - 2, resource.RLIMIT_NOFILE)",
    "segments of the machine": "libc('shmctl', 0, 13, None)",
    "queues of the machine": "libc('msgctl', 0, 11, None)",
    "what is in memory of a file": "libc('mincore', ctypes.c_void_p(id(0) & ~4095), 4096, bytes(1))",
    "asynchronous input": "call(206 if x86 else 0, 1, ctypes.byref(ctypes.c_long()))",
    "a call younger than the list": "call(463, 0, 0, 0, 0, 0, 0)",
    "attributes of a file by a new call": "call(469, -100, b'.', ctypes.create_string_buffer(32), 32, 0)",
}  # fmt: skip
FRONT = """
import ctypes, errno, fcntl, os, platform, resource, socket, struct
x86 = platform.machine() == "x86_64"
def libc(name, *args):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) == -1:
        raise OSError(ctypes.get_errno(), name)
def call(*args):
    if ctypes.CDLL(None, use_errno=True).syscall(*args) == -1:
        raise OSError(ctypes.get_errno(), "call")
def f():
    try:
        ACT
    except OSError as error:
        return errno.errorcode[error.errno]
"""


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_function_never_needs_is_refused(box, what):
    """By the filter or by the kernel's rules; not because the arguments are wrong."""
    got = value(box, FRONT.replace("ACT", REFUSED[what]))
    assert got.value in ("EPERM", "EACCES", "EROFS", "ENOSYS", "ESRCH"), got


def test_locks_of_one_worker_are_not_seen_by_another():
    """A lock on a library's file is a flag that every program of every worker can read."""
    holder = "import fcntl, os, time\nfile = open(os.__file__)\ndef f():\n    fcntl.lockf(file, fcntl.LOCK_SH)\n" \
             "    time.sleep(1)\n    return 1\n"  # fmt: skip
    asker = "import fcntl, os, struct, time\ndef f():\n    time.sleep(0.4)\n" \
            "    lock = struct.pack('hhqqi', 1, 0, 0, 0, 0)\n" \
            "    lock = fcntl.fcntl(os.open(os.__file__, 0), fcntl.F_GETLK, lock)\n" \
            "    return struct.unpack('hhqqi', lock)[0]\n"  # fmt: skip
    with Sandbox(workers=2, timeout=1.0) as box:
        held, seen = (row[0] for row in box.values([(holder, ["f()"]), (asker, ["f()"])]))
    assert (held.value, seen.value) == (1, 2)  # 2: F_UNLCK, nobody is in the way


def test_a_file_can_be_synced_and_locked_as_if_it_were(box):
    """Databases do so. The filter says that it was done, so that no file of the machine is flushed."""
    program = "import fcntl, mmap, os\ndef f():\n    file = open('x', 'wb+')\n    file.write(bytes(4096))\n" \
              "    file.flush()\n    os.fsync(file.fileno())\n    os.fdatasync(os.open(os.__file__, 0))\n" \
              "    fcntl.lockf(file, fcntl.LOCK_EX)\n    mmap.mmap(file.fileno(), 4096).flush()\n    return 1\n"
    assert value(box, program).value == 1


# ---- right answers in library types ----

LIBRARY = """
import collections, decimal, enum, fractions
from typing import NamedTuple
try:
    import numpy as np
except ImportError:
    np = None
class Point(NamedTuple):
    x: int
    y: int
class Colour(enum.IntEnum):
    RED = 1
class Word(str, enum.Enum):
    A = "a"
class Liar(int):
    def __eq__(self, other): return True
    def __index__(self): return 99
    __hash__ = None
class Bag(list):
    def __iter__(self): return iter([99])
    def __len__(self): return 99
class Text(str):
    def __str__(self): return "forged"
def numbers():
    yield from range(3)
"""


@pytest.mark.parametrize("call, wanted", [
    ("Point(1, 2)", (1, 2)), ("[Point(1, 2)]", [(1, 2)]), ("Colour.RED", 1), ("Word.A", "a"), ("Liar(3)", 3),
    ("Bag([1, 2])", [1, 2]), ("Text('x')", "x"), ("bytearray(b'aa')", b"aa"), ("fractions.Fraction(1, 2)", 0.5),
    ("fractions.Fraction(4, 2)", 2), ("decimal.Decimal('0.5')", 0.5), ("decimal.Decimal('3')", 3),
    ("decimal.Decimal('-Infinity')", float("-inf")), ("collections.Counter('aab')", {"a": 2, "b": 1}),
    ("{Colour.RED: [Liar(2)]}", {1: [2]}),
])  # fmt: skip
def test_values_of_library_types_are_the_plain_values_that_they_stand_for(box, call, wanted):
    """Converted by the sender, without asking their own comparison: right programs failed for a namedtuple."""
    got = value(box, LIBRARY, call).value
    assert got == wanted and repr(got) == repr(wanted)


@pytest.mark.parametrize("call, wanted", [
    ("np.sum([2, 1])", 3), ("np.mean([2.0, 2.0])", 2.0), ("np.all([1])", True), ("np.float32(0.5)", 0.5),
    ("[np.int64(1), np.float64(2.5)]", [1, 2.5]), ("{np.int64(1): np.str_('a')}", {1: "a"})])
def test_numpy_scalars_are_numbers(box, call, wanted):
    pytest.importorskip("numpy")
    got = value(box, LIBRARY, call).value
    assert got == wanted and type(got) is type(wanted)


@pytest.mark.parametrize("call, name", [
    ("fractions.Fraction(1, 3)", "Fraction"), ("decimal.Decimal('0.1')", "Decimal"), ("object()", "object")])
def test_what_no_plain_value_says_exactly_stays_opaque(box, call, name):
    got = value(box, LIBRARY, call).value
    assert isinstance(got, Opaque) and got.type_name == name


@pytest.mark.parametrize("call, kind, items", [
    ("numbers()", "generator", [0, 1, 2]), ("map(str, [1])", "map", ["1"]), ("zip([1], [2])", "zip", [(1, 2)]),
    ("range(3)", "range", [0, 1, 2]), ("{1: 2}.keys()", "dict_keys", [1]), ("{1: 2}.items()", "dict_items", [(1, 2)]),
    ("collections.deque([1])", "deque", [1]), ("enumerate('a')", "enumerate", [(0, "a")])])
def test_iterators_travel_as_their_items(box, call, kind, items):
    got = value(box, LIBRARY, call).value
    assert isinstance(got, Items) and (got.kind, got.items) == (kind, items) and got != items


def test_an_assert_takes_the_items_of_an_iterator_as_python_does(box):
    program = "def f(n):\n    for i in range(n):\n        yield i\n"
    tests = ["assert list(f(3)) == [0, 1, 2]", "assert sum(f(3)) == 3", "assert f(3) == [0, 1, 2]",
             "assert len(f(3)) == 3"]  # fmt: skip
    assert box.check([(program, tests)]) == [[Status.PASS, Status.PASS, Status.FAIL, Status.FAIL]]
    endless = "def f(n):\n    while True:\n        yield n\n"
    assert box.check([(endless, ["assert list(f(3)) == [3]"])])[0][0] in (Status.FAIL, Status.TIMEOUT)


# ---- where layers are missing ----

CONTAINER = ("user namespace", "mount namespace", "network namespace", "ipc namespace", "pid namespace")
SETS = {
    "every layer": (),
    "a plain container": CONTAINER,
    "a container on an old kernel": (*CONTAINER, "landlock"),
    "a laptop whose user namespace gives no rights": CONTAINER[1:],
    "no seccomp": ("seccomp",),
    "only resource limits": (*CONTAINER, "landlock", "seccomp", "no new privileges", "no capabilities"),
}
ACTS = {  # what a program tries to do to the machine
    "write a file of the user": "open({file!r}, 'a').write('x')",
    "change the mode of a file": "os.chmod({file!r}, 0o777)",
    "read a file of the user": "open({file!r}).read()",
    "set an attribute of a file": "os.setxattr({file!r}, 'user.x', b'1')",
    "see a process of the user": "os.kill({pid}, 0)",
    "signal it": "call(297 if x86 else 240, {pid}, {pid}, 0, ctypes.create_string_buffer(128))",
    "start a process": "os.posix_spawn('/bin/true', ['true'], {{}})",
    "connect": "socket.create_connection(('127.0.0.1', {port}), 1)",
    "find segments": "libc('shmctl', 0, 13, None)",
    "keep a lease on a library": "fcntl.fcntl(os.open(os.__file__, 0), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
}
# What does not hold where these layers are missing; everything else does.
DONE = {
    "a container on an old kernel": {"read a file of the user"},
    "no seccomp": {"keep a lease on a library"},
    "only resource limits": set(ACTS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_no_verdict_is_forged_whichever_layers_are_missing(name):
    """Verdicts rest on what never enters the process, not on the layers."""
    tests = [Test("f()", str(SECRET)), f"assert f() == {SECRET}"]
    with Sandbox(workers=2, timeout=0.25, memory_mb=512, _without=SETS[name]) as box:
        verdicts = box.judge([(attack.program, "f", tests) for attack in FORGERIES])
        assert not [a for a, v in zip(FORGERIES, verdicts, strict=True) if Status.PASS in v.statuses]
        assert box.check([(f"def f():\n    return {SECRET}\n", tests)]) == [[Status.PASS] * 2]


@pytest.mark.parametrize("name", SETS)
def test_what_holds_where_layers_are_missing(name):
    """Exactly what the table says gets through: a plain container and a laptop keep the machine shut as well."""
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file, Sandbox(1, timeout=5, _without=SETS[name]) as box:
        known = {"file": file.name, "pid": other.pid, "port": listener.getsockname()[1]}
        done = set()
        for act, source in ACTS.items():
            got = value(box, FRONT.replace("ACT", source.format(**known)))
            done |= {act} if got.ok and got.value is None else set()
    other.kill()
    other.wait()
    listener.close()
    allowed = DONE.get(name, set())
    assert done <= allowed if name == "only resource limits" or os.getuid() else done == allowed


def test_threads_are_bounded_without_a_user_namespace():
    """Small stacks fit into the memory of a program by the ten thousand."""
    program = "import threading\nthreading.stack_size(32768)\nlock = threading.Lock()\ndef f():\n" \
              "    lock.acquire()\n    try:\n        for n in range(20_000):\n" \
              "            threading.Thread(target=lock.acquire, daemon=True).start()\n" \
              "    except RuntimeError:\n        return n\n"  # fmt: skip
    with Sandbox(1, timeout=5, _without=CONTAINER) as box:
        got = value(box, program)
        assert not got.ok or got.value < 6_000
        assert value(box, "def f():\n    return 1\n").value == 1


def test_a_folder_on_disk_has_its_limits_too():
    """Without the mount namespace there is no file system of a fixed size: it is looked at as often as the clock."""
    program = "def f():\n    for n in range(100_000):\n        open(str(n), 'wb').write(bytes(1 << 20))\n"
    with Sandbox(1, timeout=20, _without=CONTAINER) as box:
        assert not value(box, program).ok
        assert value(box, "import os\ndef f():\n    return os.listdir('.')\n").value == []


AS_NOBODY = """
import sys
sys.path.insert(0, {folder!r})
from sandbox import Sandbox
deep = '''
import os
os.makedirs("a/b/c")
os.mkdir("a/b/d", 0)
os.umask(0o777)
os.mkdir("a/b/c/e")
os.mkdir("z")
def f():
    return 1
'''
for without in ((), {container!r}):
    with Sandbox(1, _without=without) as box:
        box.report()
        worker = box.idle[0][0].process.pid
        values = [row[0].value for row in box.values([(deep, ["f()"])] * 3)]
        print(values, worker == box.idle[0][0].process.pid)
"""


def can_run(python, who):
    try:
        new = "import sys; sys.exit(sys.version_info < (3, 10))"
        return subprocess.run([python, "-c", new], cwd="/", capture_output=True, **who).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_folders_without_rights_do_not_end_a_worker_of_an_ordinary_user():
    """To move a folder its owner needs the right to write it: a folder of mode 0 in a folder killed the fork server."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        for name in ("jail.py", "sandbox.py", "asserts.py"):
            shutil.copy(ROOT / name, folder)
            os.chmod(Path(folder, name), 0o644)
        who = dict(user=65534, group=65534, extra_groups=[])
        pythons = [path for path in (sys._base_executable, "/usr/bin/python3") if can_run(path, who)]
        if not pythons:
            pytest.skip("no interpreter is there for an ordinary user")
        code = AS_NOBODY.format(folder=folder, container=CONTAINER)
        done = subprocess.run([pythons[0], "-c", code], cwd="/", capture_output=True, text=True, timeout=120, **who)
    assert done.stdout.splitlines() == ["[1, 1, 1] True"] * 2, done.stderr[-2000:]


def test_system_calls_have_the_numbers_of_this_machine():
    """A wrong number refuses something else, and lets the call through."""
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if jail.MACHINE != "x86_64" or not header.exists():
        pytest.skip("the kernel's list of calls is not installed")
    words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_")]
    known = {parts[1].removeprefix("__NR_"): int(parts[2]) for parts in words}
    tables = jail.numbers(jail.FORBIDDEN, jail.PROCESSES, jail.USED, *jail.STAND_INS.values())
    assert {name: known[name] for name in tables if name in known} == {n: k for n, k in tables.items() if n in known}
