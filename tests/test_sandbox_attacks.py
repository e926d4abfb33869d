"""Programs that try to cheat the reward, to get out, or to stay: none may. And honest programs that
look like them.

Each attack is a program with an f() and a line saying what it would have come to without the
defence. The secret number that the asserts expect is drawn anew for each run, so no program can
know it. What the attacks aim at (a file, a listener, a process) belongs to the test; memory and
disk bombs end at the limits of the sandbox.
"""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

import jail
import sandbox
import tasks
from sandbox import Opaque, Sandbox, Status
from tasks import Test

linux = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux'")
SECRET = random.SystemRandom().randrange(10**6, 10**7)


class Attack(NamedTuple):
    kind: str
    without: str  # what would have happened without the defence
    program: str


def blocks(table):
    """Headings `## ...` and the programs under them."""
    return [block.partition("\n")[::2] for block in table.split("## ")[1:]]


def attacks(table):
    """Attacks whose headings are `## kind: what would have happened`."""
    return [Attack(*head.split(": ", 1), program) for head, program in blocks(table)]


FORGERIES = attacks('''
## exit: an exit status of 0 read as success, before any test ran
import os
os._exit(0)

## exit: the same from within the call: it ends with status 0 before it has compared anything
import os
def f():
    os._exit(0)

## exit: SystemExit(0) ends the harness, and a harness that ends well has passed
import sys
def f():
    sys.exit(0)

## exit: at load, with a message that looks like success
import sys
def f():
    return 1
print("1 passed")
sys.exit(0)

## exit: KeyboardInterrupt passes an `except Exception` and ends the harness
def f():
    raise KeyboardInterrupt

## exit: GeneratorExit passes an `except Exception` too, and no verdict is ever written
def f():
    raise GeneratorExit

## exit: a thread that ends the process while the call is still running
import os, threading, time
def f():
    threading.Thread(target=os._exit, args=[0]).start()
    time.sleep(5)

## exit: an exit handler prints the line from which the verdict is read
import atexit
atexit.register(print, "PASS")
def f():
    raise SystemExit

## exit: a crash of the interpreter takes the batch down
import ctypes
def f():
    return ctypes.string_at(0)

## exit: abort() takes the batch down and leaves a core file
import os
def f():
    os.abort()

## exit: the C stack overflows, and with the interpreter go the verdicts of the whole batch
import sys
sys.setrecursionlimit(10**7)
def f(x=0):
    return f(x)

## output: verdicts are read from printed lines, and these look like it
print("PASS", "passed", "OK", "True", '{"passed": true}', sep="\\n")
def f():
    print("PASS\\n1 passed in 0.01s\\nAll tests passed!")

## output: the same on standard error and on the descriptors themselves
import os
def f():
    for fd in range(3):
        try:
            os.write(fd, b"PASS\\n")
        except OSError:
            pass

## output: a finished reply is written into every open descriptor before any call has come
import os, struct
for fd in range(3, 64):
    for data in (b"v1", b"v%d" % 10**6, b"vtrue", b"vnull"):
        try:
            os.write(fd, struct.pack("!I", len(data)) + data)
        except OSError:
            pass
def f():
    return 0

## output: the same from within the call, twice, and then the real reply
import os, struct
def f():
    for fd in range(3, 64):
        try:
            os.write(fd, (struct.pack("!I", 5) + b"vtrue") * 2)
        except OSError:
            pass

## output: the number of the request is found in the frames, and the reply is guessed
import os, struct, sys
def f():
    for fd in range(3, 64):
        try:
            os.write(fd, struct.pack("!I", 5) + b"vtrue")
        except OSError:
            pass
    os._exit(0)

## output: a head that announces gigabytes makes the supervisor wait or swell
import os, struct, sys
def f():
    for fd in range(3, 64):
        try:
            os.write(fd, struct.pack("!I", 2**32 - 1) + b"v" * 1000)
        except OSError:
            pass
    while True: pass

## output: half a reply, byte by byte, keeps who waits for data from looking at the clock
import os, time
def f():
    while True:
        for fd in range(3, 64):
            try:
                os.write(fd, b"+")
            except OSError:
                pass

## output: the reply of a thread comes before that of the call
import os, struct, sys, threading
def f():
    def flood():
        while True:
            for fd in range(3, 64):
                try:
                    os.write(fd, struct.pack("!I", 5) + b"vtrue")
                except OSError:
                    pass
    threading.Thread(target=flood, daemon=True).start()

## objects: compared in its own process, an object that equals everything is the right answer
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __hash__(self): return 0
def f():
    return Yes()

## objects: it passes a check for the type, and as an int it equals everything
class Yes(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
def f():
    return Yes(3)

## objects: a str, a list, a tuple and a float that equal everything
def yes(base):
    methods = {"__eq__": lambda a, b: True, "__ne__": lambda a, b: False, "__hash__": lambda a: 0}
    return type("Yes", (base,), methods)()
def f():
    return [yes(str), yes(list), yes(tuple), yes(float)]

## objects: a dict whose items match whatever is asked for
class Yes(dict):
    def __eq__(self, other): return True
    def __contains__(self, key): return True
    def __getitem__(self, key): return key
    def __len__(self): return 1
def f():
    return Yes()

## objects: isinstance(x, int) holds for it, so that a filter by type lets it through
class Yes:
    __class__ = int
    def __eq__(self, other): return True
def f():
    return Yes()

## objects: mock.ANY is in the standard library, and equals the expected value
from unittest import mock
def f():
    return mock.ANY

## objects: an enum member is an int to isinstance, and brings its own comparison
import enum
class Yes(enum.IntEnum):
    A = 3
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def f():
    return Yes.A

## objects: a metaclass whose name does things when it is asked for
import os
class Meta(type):
    @property
    def __name__(cls):
        os._exit(0)
class Yes(metaclass=Meta):
    pass
def f():
    return Yes()

## objects: NaN as a key, and as a value that equals nothing, not even the expected
def f():
    return {float("nan"): float("nan")}

## objects: a list that contains itself sends the encoder round for ever
def f():
    x = []
    x.append(x)
    return [x, {1: x}]

## objects: a value nested ten thousand deep breaks whoever reads it
def f():
    x = []
    for _ in range(10_000):
        x = [x]
    return x

## objects: an integer whose decimal text takes hours, or raises in the trainer
def f():
    return 1 << 50_000_000

## objects: a string of a gigabyte is copied through the trainer
def f():
    return "x" * (100 << 20)

## objects: a hundred thousand keys with one hash take the trainer hours to put into a set
import os, struct, sys
def f():
    data = b'v{"set":[%s]}' % b",".join(b"%d" % (k * (2**61 - 1)) for k in range(100_000))
    for fd in range(3, 64):
        try:
            os.write(fd, struct.pack("!I", len(data)) + data)
        except OSError:
            pass
    return 0

## objects: a generator of all numbers contains the right one, and never ends when it is listed
def f():
    return (x for x in range(10**9))

## harness: the encoder is replaced by one that says what the tests want
import json
json.JSONEncoder.encode = lambda self, value: "true"
json.dumps = lambda *a, **k: "true"
json.encoder.c_make_encoder = None
json.encoder.encode_basestring_ascii = lambda text: "true"
def f():
    return 0

## harness: the encoder inside the harness itself is replaced, whose output was the verdict
import sys
for module in list(sys.modules.values()):
    for name in ("dump", "encode", "to_json", "name", "decode", "digest"):
        if hasattr(module, name) and "jail" in str(module):
            setattr(module, name, lambda *a, **k: b"true")
def f():
    return 0

## harness: constants of the harness are changed, so that an exception counts as a value
import sys
def f():
    harness = sys.modules.get("jail")
    for name in ("RAISED", "TIMEOUT", "CRASH", "NOT_RUN"):
        setattr(harness, name, b"v")
    raise ValueError

## harness: the functions that report a result get code that reports a pass
import gc, types
def wins(*a, **k):
    return b"vtrue"
for item in gc.get_objects():
    inner = isinstance(item, types.FunctionType) and not item.__closure__
    if inner and item.__name__ in ("reply", "dump", "encode"):
        item.__code__ = wins.__code__
def f():
    return 0

## harness: closures of the harness are changed through the frames
import sys, ctypes
def f():
    frame = sys._getframe(1)
    while frame:
        for name in frame.f_locals:
            frame.f_locals[name] = b"vtrue"
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        frame = frame.f_back
    return 0

## harness: every later line of the harness is traced, and its locals changed
import sys
def trace(frame, event, arg):
    for name in ("expected", "data", "value", "kind", "passed", "result"):
        if name in frame.f_locals:
            frame.f_locals[name] = True
    return trace
sys.settrace(trace)
def f():
    return 0

## harness: a profiler sees the expected value as it is returned in the same interpreter
import sys
sys.setprofile(lambda frame, event, arg: None)
def f():
    return sys.getprofile()

## builtins: comparison and its helpers are replaced for all who share the interpreter
import builtins, math
builtins.all = builtins.any = builtins.isinstance = builtins.bool = lambda *a: True
builtins.abs = builtins.len = lambda *a: 0
math.isclose = lambda *a, **k: True
def f():
    return 0

## builtins: asserts that run through compile, eval or exec no longer run
import builtins
builtins.eval = builtins.compile = builtins.exec = lambda *a, **k: True
def f():
    return 0

## builtins: AssertionError becomes something that is never raised, or never caught
import builtins
builtins.AssertionError = type("Quiet", (Exception,), {"__init__": lambda self, *a: None})
def f():
    raise AssertionError

## builtins: exceptions go to a hook that says all is well
import sys, threading
sys.excepthook = threading.excepthook = sys.unraisablehook = lambda *a: print("PASS")
def f():
    raise ValueError

## imports: what the harness imports later are the program's modules
import sys, types
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None
sys.meta_path.insert(0, Finder)
for name in ("json", "math", "marshal", "struct", "tasks", "unittest", "pytest"):
    sys.modules[name] = types.ModuleType(name)
def f():
    return 0

## imports: files named like the harness' modules lie where it looks
import os
for name in ("json", "numpy", "tasks", "sandbox", "sitecustomize", "usercustomize"):
    with open(name + ".py", "w") as file:
        file.write("raise SystemExit(0)")
def f():
    return sorted(os.listdir("."))

## expected: the expected value is an object in the same interpreter
import gc
def f():
    texts = [x for x in gc.get_objects() if type(x) is str and "assert f" in x]
    return texts[:5] or [x for x in gc.get_objects() if type(x).__name__ == "Test"] or 0

## expected: the tests stand in the frames of the harness, to be read and answered
import sys, re
def f():
    frame, text = sys._getframe(1), ""
    while frame:
        text += repr(frame.f_locals) + repr(list(frame.f_globals)[:1000])
        frame = frame.f_back
    found = re.findall(r"assert .{1,60}|==\\s*\\d{7}", text)
    return int(re.findall(r"\\d{7}", found[0])[0]) if found else 0

## expected: the module of verdicts can be imported, and its caches read
def f():
    try:
        import tasks
        return tasks.holds.cache_info()
    except ImportError:
        return 0

## expected: the source of the tests is in the cache of source lines
import linecache, inspect
def f():
    text = str(linecache.cache) + "".join(str(inspect.stack()) for _ in range(2))
    return "assert" in text and 1

## expected: numbers of seven digits lie in the memory of the process
import ctypes, re
def f():
    found = set()
    try:
        maps = open("/proc/self/maps").read()
    except OSError:
        top = id(object()) >> 20 << 20
        maps = f"{top:x}-{top + (1 << 20):x} rw-p"
    for line in maps.splitlines():
        start, end = [int(x, 16) for x in line.split()[0].split("-")]
        if " rw-p" in line and end - start < 1 << 24:
            found.update(re.findall(rb"== ?(\\d{7})", ctypes.string_at(start, end - start)))
    return int(found.pop()) if found else 0

## expected: the questions file and the tests lie on the disk, to be read and answered
import glob, os, re
def f():
    for root in ("/root", "/home", "/tmp", os.path.expanduser("~"), os.getcwd(), ".."):
        questions = glob.glob(root + "/**/*.jsonl*", recursive=True)
        for path in questions[:100] + glob.glob(root + "/**/tests/*.py")[:100]:
            try:
                if text := open(path, "rb").read(1000):
                    return text
            except OSError:
                pass
    return 0

## expected: they stand in the arguments or the environment of some process
import glob, os, re, sys
def f():
    text = repr(dict(os.environ)) + repr(sys.argv) + repr(getattr(sys, "orig_argv", ""))
    for path in glob.glob("/proc/*/cmdline") + glob.glob("/proc/*/environ"):
        try:
            text += open(path, "rb").read().decode("latin-1")
        except OSError:
            pass
    return int((re.findall(r"== ?(\\d{7})", text) or [0])[0])

## expected: the test lies in the pipe from which the harness reads it
import os, re, socket
def f():
    for fd in range(3, 64):
        try:
            data = socket.socket(fileno=fd).recv(1 << 16, socket.MSG_DONTWAIT | socket.MSG_PEEK)
            return int(re.findall(rb"\\d{7}", data)[0])
        except (OSError, IndexError):
            pass
    return 0

## expected: they stand in the memory of the trainer, which the same user may open
import glob, re
def f():
    for path in glob.glob("/proc/[0-9]*/maps"):
        try:
            maps, memory = open(path).read(), open(path[:-4] + "mem", "rb")
        except OSError:
            continue
        for line in maps.splitlines():
            start, end = [int(x, 16) for x in line.split()[0].split("-")]
            if " rw-p" in line and end - start < 1 << 27:
                try:
                    memory.seek(start)
                    found = re.search(rb"assert f\\(\\) == (\\d{7})", memory.read(end - start))
                except (OSError, ValueError):
                    continue
                if found:
                    return int(found[1])

## timeouts: the limit arrives as an exception that the program swallows
def f():
    while True:
        try:
            while True: pass
        except BaseException:
            pass

## timeouts: a limit kept by an alarm inside the process is switched off by it
import signal
def f():
    signal.alarm(0)
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    while True: pass

## timeouts: one call into C lasts for ever, and no signal handler gets its turn
def f():
    return sum(range(10**13))

## timeouts: a regular expression that never ends holds the interpreter's lock
import re
def f():
    return bool(re.match(r"(a+)+$", "a" * 60 + "b"))

## timeouts: a limit in CPU time alone never ends a program that sleeps
import time
def f():
    time.sleep(1000)

## timeouts: threads that never end keep the process from ending
import threading, time
for _ in range(20):
    threading.Thread(target=time.sleep, args=[1000]).start()
def f():
    return 0

## timeouts: a deadlock uses no CPU time, and no exception reaches it
import threading
def f():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

## timeouts: a stopped process uses no time, and whoever waits for it waits for ever
import os, signal
def f():
    os.kill(os.getpid(), signal.SIGSTOP)
    while True: pass

## timeouts: a harness that looks at time.time() sees no time pass
import time
time.time = time.monotonic = time.perf_counter = lambda: 0.0
def f():
    while True: pass

## input: a prompt waits for the person at the terminal
def f():
    return input("password: ")
''')

ESCAPES = attacks('''
## files: a checkpoint or a log of the trainer is written to
def f():
    open({file!r}, "a").write("x")

## files: the same file is emptied without being opened for writing
import os
def f():
    os.truncate({file!r}, 0)

## files: a file that the user owns is gone
import os
def f():
    os.unlink({file!r})

## files: a file that the user owns is somewhere else
import os
def f():
    os.rename({file!r}, {file!r} + ".old")

## files: a file that the user owns has the program's text in it
import os
def f():
    open("new", "w").write("x")
    os.replace("new", {file!r})

## files: a file that the user owns can be read by everybody (Landlock does not see chmod)
import os
def f():
    os.chmod({file!r}, 0o777)

## files: its time is changed, so that make and checkpoint search are misled
import os
def f():
    os.utime({file!r}, (1, 1))

## files: the owner changes, and set-user-id bits or quotas with it (Landlock does not see chown)
import os
def f():
    os.chown({file!r}, os.getuid(), os.getgid())

## files: an attribute marks the file of the user (Landlock does not see it)
import os
def f():
    os.setxattr({file!r}, "user.x", b"1")

## reading: what the trainer can read, a program can answer with
def f():
    return open({file!r}).read()

## reading: it is read through a symbolic link in the program's own folder
import os
def f():
    os.symlink({file!r}, "link")
    return open("link").read()

## reading: a hard link carries it into the program's own folder
import os
def f():
    os.link({file!r}, "link")
    return open("link").read()

## reading: the file is reached through /proc, around every rule for paths
import glob
def f():
    for root in glob.glob("/proc/*/root") + ["/proc/1/root", "/proc/self/root"]:
        try:
            return open(root + {file!r}).read()
        except OSError:
            pass
    raise OSError

## files: a folder is made where the trainer looks for its runs
import os
def f():
    os.mkdir({file!r} + ".d")

## reading: names of runs and of people are read
import os
def f():
    return os.listdir(os.path.dirname({file!r}))

## reading: the users of the machine are read
def f():
    return open("/etc/passwd").read()

## reading: keys and tokens in the home folder are read
import os
def f():
    return os.listdir("/root") or os.listdir("/home")

## files: a note for later programs is left in shared memory
def f():
    open("/dev/shm/codea1-left", "w").write("x")

## files: a note for later programs is left where temporary files are kept
import os
def f():
    done = 0
    for folder in ("/tmp", "/var/tmp", "/mnt"):
        if not os.getcwd().startswith(folder):  # its own folder, which is emptied after it
            try:
                done += open(folder + "/codea1-left", "w").write("x")
            except OSError:
                pass
    assert done

## files: a library that every later program loads is changed
import os
def f():
    open(os.__file__, "a").write("# x")

## files: a package is left where the interpreter looks for them
import site
def f():
    open(site.getsitepackages()[0] + "/codea1_left.py", "w").write("x = 1")

## reading: the questions that come with the package are read, answers and all
import os
def f():
    return os.listdir({root!r} + "/tiny")

## files: a device is made, and the disk is read past all permissions
import os, stat
def f():
    os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0))

## reading: the memory of the machine is read, the trainer's with it
def f():
    return open("/dev/mem", "rb").read(1)

## files: a folder of the machine is mounted into the program's own
import ctypes
def f():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"/", b".", None, 4096, None):
        raise OSError(ctypes.get_errno())

## files: chroot twice and walk out of the folder
import os
def f():
    os.mkdir("d")
    os.chroot("d")

## files: the disk is full of files that are deleted, but still open or mapped
import mmap, os, time
def f():
    kept = []
    for number in range(24):
        fd = os.open("x", os.O_RDWR | os.O_CREAT)
        os.unlink("x")
        kept.append(mmap.mmap(fd, os.write(fd, bytes(4 << 20))))
        os.close(fd)
    time.sleep(0.5)

## network: the program sends what it has read to another machine
import socket
def f():
    socket.create_connection(("127.0.0.1", {port}), 1).sendall(b"x")

## network: a datagram carries what it has read to another machine
import socket
def f():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", {port}))

## network: over a socket in the file system, as Docker's is
import socket
def f():
    s = socket.socket(socket.AF_UNIX)
    s.connect({unix!r})

## network: an abstract socket reaches the desktop's services, past file permissions
import socket
def f():
    s = socket.socket(socket.AF_UNIX)
    s.connect("\\0" + {abstract!r})

## network: a pair of datagram sockets, pointed at the socket in the file system
import socket
def f():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.sendto(b"x", {unix!r})

## network: the program serves, and takes orders from another program of the batch
import socket
def f():
    socket.create_server(("127.0.0.1", 0))

## network: the machine's routes and interfaces are read or changed
import socket
def f():
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)

## network: a look-up of a name carries data out
import socket
def f():
    return socket.getaddrinfo("example.com", 80)

## signals: the trainer is killed by its own program
import os
def f():
    os.kill({pid}, 9)

## signals: every process of the user is killed
import os
def f():
    os.kill(-1, 9)
    raise OSError("nobody else was there")

## signals: the parent is killed, and the verdicts of the batch are lost
import os
def f():
    if os.getppid():
        os.kill(os.getppid(), 9)
    raise OSError("no parent in sight")

## signals: the trainer and its terminal are stopped
import os
def f():
    os.killpg(os.getpgid({pid}), 19)

## signals: a descriptor of the process gets past a filter for kill()
import os, signal
def f():
    signal.pidfd_send_signal(os.pidfd_open({pid}), 9)

## processes: the expected values are read from the trainer's memory
import ctypes
def f():
    buffer = ctypes.create_string_buffer(8)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    if ctypes.CDLL(None).process_vm_readv({pid}, vector, 1, vector, 1, 0) == -1:
        raise OSError

## processes: the trainer is traced, and does what the program wants
import ctypes
def f():
    if ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == -1:
        raise OSError

## processes: the trainer is slowed down for good
import os
def f():
    os.setpriority(os.PRIO_PROCESS, {pid}, 19)

## processes: a process goes on after the program, and outlives the run
import os
def f():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open({file!r}, "a").write("x")
        os._exit(0)

## processes: any command of the machine runs as the user
import subprocess
def f():
    return subprocess.run(["/bin/sh", "-c", "id"], capture_output=True).stdout

## processes: another interpreter takes the place of the harness
import os, sys
def f():
    os.execv(sys.executable, [sys.executable, "-c", "print(1)"])

## processes: posix_spawn uses vfork or clone, past a filter for fork
import os, sys
def f():
    os.posix_spawn(sys.executable, [sys.executable, "-c", "1"], {{}})

## processes: a pool leaves helpers, and semaphores in shared memory
import multiprocessing
def f():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [1])

## processes: clone and clone3 are called by number, past the C library
import ctypes, platform
def f():
    clone = 56 if platform.machine() == "x86_64" else 220
    for number in (clone, 435):
        if ctypes.CDLL(None).syscall(number, 17, 0, 0, 0, 0) == 0:
            ctypes.CDLL(None)._exit(0)
    raise OSError

## processes: by the number of the 32-bit interface, or of x32
import ctypes
def f():
    if ctypes.CDLL(None).syscall(0x40000000 + 57) >= 0:
        return 1
    raise OSError

## privileges: a new user namespace has all capabilities, and a larger part of the kernel to attack
import ctypes
def f():
    if ctypes.CDLL(None).unshare(0x10000000) == -1:
        raise OSError

## privileges: the limits counted for this user do not hold for another
import os
def f():
    os.setgroups([])
    os.setuid(1)

## privileges: bpf, perf, keys, io_uring, modules and ptrace open the kernel
import ctypes, platform
def f():
    numbers = [321, 298, 250, 425, 323, 246, 175, 101]
    if platform.machine() != "x86_64":
        numbers = [280, 241, 219, 425, 282]
    if any(ctypes.CDLL(None).syscall(number, 0, 0, 0, 0, 0) >= 0 for number in numbers):
        return 1
    raise OSError

## starving: a real-time class keeps a core from everyone else
import os
def f():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))

## starving: the same for one thread, past the C library
import ctypes, platform, struct
def f():
    number = 314 if platform.machine() == "x86_64" else 274
    wanted = struct.pack("IIQiIQQQ", 48, 1, 0, 0, 1, 0, 0, 0)
    if ctypes.CDLL(None).syscall(number, 0, wanted, 0) == -1:
        raise OSError

## starving: a better nice value takes the larger share of a core
import os
def f():
    os.setpriority(os.PRIO_PROCESS, 0, -20)

## starving: one program spreads over all cores, with a thread for each
import os
def f():
    os.sched_setaffinity(0, range(os.cpu_count()))

## starving: it reads and writes before everyone else
import ctypes, platform
def f():
    number = 251 if platform.machine() == "x86_64" else 30
    if ctypes.CDLL(None).syscall(number, 1, 0, 1 << 13) == -1:
        raise OSError

## starving: a core scheduling cookie leaves the other half of a core idle
import ctypes
def f():
    if ctypes.CDLL(None).prctl(62, 1, 0, 0, 0) == -1:
        raise OSError

## starving: a hard limit of the user's allows what the kernel else refuses
import resource
def f():
    resource.setrlimit(resource.RLIMIT_RTPRIO, (99, 99))

## memory: the kernel kills the largest process, which is the trainer
def f():
    return len([bytearray(64 << 20) for _ in range(10_000)])

## memory: the same, and MemoryError is caught until the machine gives in
import time
def f():
    a, end = [], time.process_time() + 60
    while time.process_time() < end:
        try:
            a.append(bytearray(16 << 20))
        except MemoryError:
            pass

## memory: mappings count against no limit on the heap
import mmap
def f():
    return len([mmap.mmap(-1, 64 << 20) for _ in range(10_000)])

## memory: shared segments stay after the process, and no limit of a process counts them
import ctypes
def f():
    if ctypes.CDLL(None).shmget(0, 64 << 20, 0o1600) == -1:
        raise OSError

## memory: files without a name are memory that no limit of a process counts
import os
def f():
    os.write(os.memfd_create("x"), bytes(1 << 20))

## memory: a folder in memory takes the memory of the machine
def f():
    for i in range(10_000):
        open(str(i), "wb").write(bytes(1 << 20))

## memory: a table of descriptors for each thread holds a hundred times as many full pipes
import ctypes
def f():
    if ctypes.CDLL(None).syscall(436, 1 << 30, 1 << 30, 2) == -1:
        raise OSError

## memory: another user has no limit of threads, and root is one
import os
def f():
    os.setresuid(os.geteuid(), -1, -1)

## memory: pages far from each other take a table each, which no limit counts
import ctypes
def f():
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 6
    if libc.mmap(1 << 40, 4096, 3, 0x100022, 2**64 - 1, 0) == 2**64 - 1:
        raise OSError

## memory: timers and signals that wait are memory of the kernel's
import ctypes, platform
def f():
    timer, number = ctypes.c_long(), 222 if platform.machine() == "x86_64" else 107
    for _ in range(3000):
        if ctypes.CDLL(None).syscall(number, 1, None, ctypes.byref(timer)) == -1:
            raise OSError

## memory: a hundred thousand threads take all the process numbers of the machine
import threading, time
def f():
    threads = [threading.Thread(target=time.sleep, args=[100], daemon=True) for _ in range(100_000)]
    for thread in threads:
        thread.start()

## memory: threads with small stacks do the same within it, for root's processes are not counted
import threading, time
def f():
    threading.stack_size(32768)
    for _ in range(5000):
        threading.Thread(target=time.sleep, args=[100], daemon=True).start()

## memory: a million empty files take the inodes of the disk, or minutes to remove
def f():
    for i in range(1_000_000):
        open(str(i), "w").close()

## memory: the descriptors of the machine run out
import os
def f():
    return len([os.dup(0) for _ in range(100_000)])

## memory: a limit that the program may raise again is none
import resource
def f():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

## memory: output that is kept takes the memory of the trainer, and a full pipe blocks
import sys, time
def f():
    end = time.process_time() + 60
    while time.process_time() < end:
        sys.stdout.write("x" * (1 << 20))
''')


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2, timeout=0.25, memory_mb=256) as box:
        yield box


def held_processes(box):
    """Processes under each supervisor, with what each has open, once nothing changes any more: a
    worker has answered before it has cleared up."""
    last = None
    for _ in range(50):
        with contextlib.suppress(FileNotFoundError):  # one has just ended
            if (now := held_just_now(box)) == last:
                break
            last = now
        time.sleep(0.2)
    return last


def held_just_now(box):
    found, todo = [], [worker.process.pid for worker in sum(box.idle.values(), [])]
    while todo:
        pid = todo.pop()
        found.append(len(os.listdir(f"/proc/{pid}/fd")))
        for thread in os.listdir(f"/proc/{pid}/task"):
            todo += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return sorted(found)


def test_there_are_enough_attacks():
    assert len({attack.program for attack in FORGERIES + ESCAPES}) >= 120
    assert all(len(attack.without) > 30 for attack in FORGERIES + ESCAPES)


def test_no_forgery_passes(box):
    """Whatever a program prints, patches, returns or writes: it does not know the secret, so it
    does not pass."""
    tests = [Test("f()", str(SECRET)), f"assert f() == {SECRET}"]
    verdicts = box.judge([(attack.program, "f", tests) for attack in FORGERIES])
    assert not [attack for attack, verdict in zip(FORGERIES, verdicts, strict=True)
                if Status.PASS in verdict.statuses]  # fmt: skip


def test_an_input_cannot_change_the_ground_truth(box):
    """A call's arguments are worked out beside the program, in a namespace of their own: one that
    replaces the function changed the value of all later calls."""
    truth = "def f(x):\n    return x + 1\n"
    inputs = ["f(1)", "f(globals().update(f=lambda *a: 99) or 5)", "f(2)", "f(3)"]
    got = box.ground_truth([(truth, "f", inputs)])[0]
    assert [(v.value.value, v.value.error) for v in got] == [(2, ""), (6, ""), (3, ""), (4, "")]


class Targets:
    """What the attacks aim at: a file, listeners that remember who came, a process."""

    def __init__(self):
        place = "/var/tmp" if os.path.isdir("/var/tmp") else None
        self.folder = tempfile.TemporaryDirectory(dir=place)
        self.file = Path(self.folder.name, "secret")
        self.file.write_text("secret")
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(self.tcp.getsockname())
        self.unix = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.unix.bind(self.folder.name + "/socket")
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0codea1-{os.getpid()}")
        self.abstract.listen()
        self.state = self.file.stat()
        self.names = {
            "file": str(self.file), "port": self.tcp.getsockname()[1],
            "unix": self.folder.name + "/socket", "abstract": f"codea1-{os.getpid()}",
            "pid": self.process.pid, "root": str(Path(sandbox.__file__).parent),
        }  # fmt: skip

    def untouched(self):
        for listener in (self.tcp, self.udp, self.unix, self.abstract):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept()
        now = self.file.stat()
        names = ("st_mode", "st_mtime_ns", "st_nlink", "st_size")
        same = [getattr(now, name) == getattr(self.state, name) for name in names]
        left = [folder for folder in ("/dev/shm", "/tmp", "/var/tmp", "/mnt")
                if os.path.exists(f"{folder}/codea1-left")]
        alive = self.process.poll() is None
        return all(same) and not left and alive and self.file.read_text() == "secret"

    def close(self):
        self.process.kill()
        self.process.wait()
        for listener in (self.tcp, self.udp, self.unix, self.abstract):
            listener.close()
        self.folder.cleanup()


@pytest.fixture(scope="module")
def targets():
    targets = Targets()
    yield targets
    targets.close()


@linux
def test_no_attack_gets_out_or_stays(box, targets):
    """No forbidden act returns; what they aim at is as before; no process, file or descriptor is
    left."""
    box.values([("def f():\n    return 0\n", ["f()"])] * 20)
    before = held_processes(box)
    programs = [attack.program.format(**targets.names) for attack in ESCAPES]
    got = [values[0] for values in box.values([(program, ["f()"]) for program in programs])]
    escaped = [(attack, value) for attack, value in zip(ESCAPES, got, strict=True) if value.ok]
    assert not escaped
    assert targets.untouched()
    assert held_processes(box) == before
    listed = box.values([("import os\n", ["os.listdir('.')"])] * 4)
    assert all(values[0].value == [] for values in listed)


def test_fork_and_memory_bombs_stay_under_the_stated_bound(targets):
    """Several bombs at once: the memory of all workers and programs stays under workers *
    (memory_mb + 192 MiB)."""
    bombs = [attack.program.format(**targets.names) for attack in ESCAPES
             if attack.kind == "memory"]  # fmt: skip
    fork_bomb = """
import os
def f():
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
    with Sandbox(workers=2, timeout=0.25, memory_mb=256) as box:
        peak, stop = [0], threading.Event()

        def watch():
            roots = [worker.process.pid for worker in sum(box.idle.values(), [])]
            while not stop.is_set():
                roots = [*{*roots, *(worker.process.pid for worker in sum(box.idle.values(), []))}]
                peak[0] = max(peak[0], sum(map(resident, roots)))
                time.sleep(0.01)

        box.values([("", ["1"])] * 4)
        watcher = threading.Thread(target=watch)
        watcher.start()
        large = "x = bytearray(140 << 20)\ndef f():\n    return 'x' * (15 << 20)\n"
        got = box.values([(program, ["f()"]) for program in [*bombs, fork_bomb]])
        box.values([(large, ["f()"] * 6)] * 2)
        stop.set()
        watcher.join()
    assert not any(values[0].ok for values in got)
    assert 50 < peak[0] < 2 * (256 + jail.FOLDER_MB + 128)


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
    "network namespace": ("socket.create_connection(('127.0.0.1', {port}), 1).close()",
                          ["seccomp", "landlock"]),
    "ipc namespace": ("libc('shmget', {key}, 1, 0)", ["seccomp"]),
    "pid namespace": ("os.kill({pid}, 0)", ["seccomp", "landlock"]),
    "no new privileges": ("gain_privileges()", []),
    "landlock": ("os.listdir('/')", []),
    "no capabilities": ("os.setgroups([0])", ["user namespace"]),
    "seccomp": ("os.waitpid(os.fork() or os._exit(0), 0)", []),
    "resource limits": ("len(bytearray({memory}))", []),
}


def resident(pid):
    """MiB of a process and all below it that are not shared."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        kilobytes = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(kilobytes) / 1024 + sum(map(resident, children))
    except (OSError, ValueError):
        return 0


@linux
@pytest.mark.parametrize("layer", PROOFS)
def test_each_layer_holds_alone_and_its_act_succeeds_without_it(layer):
    """With the layers that overlap left out, the layer itself refuses the act; left out too, the
    act is done."""
    act, others = PROOFS[layer]
    key = 0x5EC0DE + os.getpid()
    segment = jail.LIBC.shmget(key, 1, 0o1600)
    listener = socket.create_server(("127.0.0.1", 0))
    act = act.format(port=listener.getsockname()[1], key=key, pid=os.getpid(), memory=512 << 20)
    try:
        with Sandbox(workers=1, timeout=10, memory_mb=256, _without=others) as box:
            if box.report()[layer] != "active":
                pytest.skip(f"{layer} is {box.report()[layer]}")
            assert not box.values([(ACTS, [act])])[0][0].ok
        if os.getuid() == 0:
            with Sandbox(workers=1, timeout=10, memory_mb=256, _without=[layer, *others]) as box:
                assert box.values([(ACTS, [act])])[0][0].ok
    finally:
        jail.LIBC.shmctl(segment, 0, None)
        listener.close()


def test_state_does_not_pass_between_programs(box):
    """A file, a patched library or a thread of one program once changed the verdict on the next."""
    poison = """
import builtins, json, math, os, sys, threading, time
open("answer.py", "w").write("x = 1")
os.makedirs("a/b/c/d")
os.chmod("a", 0)
builtins.sorted = lambda *a, **k: []
math.sqrt = lambda x: -1
sys.modules["heapq"] = None
sys.path.insert(0, os.getcwd())
os.environ["POISON"] = "1"
threading.Thread(target=time.sleep, args=[100], daemon=True).start()
def f():
    return 1
"""
    clean = """
import heapq, math, os, sys, threading
def f():
    return [os.listdir("."), sorted([2, 1]), math.sqrt(4), "POISON" in os.environ,
            threading.active_count(), os.getcwd() in sys.path]
"""
    fresh = [[], [1, 2], 2.0, False, 1, False]
    for _ in range(3):
        assert box.values([(poison, ["f()"]), (clean, ["f()"])])[1][0].value == fresh
    with Sandbox(workers=1) as alone:
        got = alone.values([(poison, ["f()"]), (clean, ["f()"])] * 3)
    assert [values[0].value for values in got] == [1, fresh] * 3


def test_a_folder_of_any_depth_is_emptied(box):
    """A tree deeper than the recursion limit, with names longer than a path may be, once stopped
    the cleaning."""
    program = """
import os
def f():
    try:
        while True:
            os.mkdir('d' * 200)
            os.chdir('d' * 200)
    except OSError as e:
        return 1
"""
    for _ in range(2):
        assert box.values([(program, ["f()"])] * 2)[0][0].value == 1
    assert [v[0].value for v in box.values([("import os\n", ["os.listdir('.')"])] * 4)] == [[]] * 4


def test_what_a_program_writes_ahead_are_its_own_answers(box):
    """It knows its calls, not what is expected: an early reply is judged like any other, and those
    behind it are not read."""
    program = """
import os, struct
def f(x):
    os.write(3, 3 * (struct.pack("!I", 2) + b"v7"))
    return 0
"""
    statuses = box.check([(program, [f"assert f({x}) == {x}" for x in range(3)])])[0]
    assert statuses == [Status.FAIL] * 3
    assert [v.value for v in box.values([(program, ["f(1)", "f(2)"])])[0]] == [7, 7]


def test_an_urgent_byte_does_not_stop_the_clock(box):
    """It makes the socket look as if there were data to read. Who waits for them then looks at no
    clock for minutes."""
    program = """
import socket
s = socket.socket(fileno=3)
def f(x):
    s.send(b'y', socket.MSG_OOB)
    while x: pass
    return 1
"""
    start = time.monotonic()
    assert [v.error for v in box.values([(program, ["f(1)", "f(0)"])])[0]][:1] == ["timeout"]
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("kind", [b"t", b"x", b"n", b"c", b"f", b"+", b"\0"])
def test_a_program_cannot_choose_what_only_the_supervisor_says(box, kind):
    """A call that a program may declare as not run is left out of its pass rate: the failing ones,
    that would be."""
    program = f"""
import os, struct, sys
def f(x):
    for fd in range(3, 64):
        try:
            os.write(fd, struct.pack("!I", 5) + {kind!r} + b"true")
        except OSError:
            pass
    os._exit(0)
"""
    tests = ["assert f(1) == True", "assert f(2) == True"]
    assert box.check([(program, tests)]) == [[Status.ERROR] * 2]


def test_output_is_thrown_away(box):
    """What programs write to standard error was once kept by the worker, up to the limit for
    files."""
    program = """
import os, sys
def f():
    sys.stderr.write('x' * 100_000)
    return os.write(2, bytes(1000))
"""
    assert box.values([(program, ["f()"])] * 4)[0][0].value == 1000
    workers = sum(box.idle.values(), [])
    assert all(os.fstat(worker.errors.fileno()).st_size == 0 for worker in workers)


SAME_HASH = [str(k * (2**61 - 1)) for k in range(50_000)]
BESIDE_OTHERS = [f"{number},{k}" for k, number in enumerate(SAME_HASH)]
LIKE_TUPLES = [f'{{"tuple":[{"7," * 39_000}{-1 - k % 2},{k // 2}]}}' for k in range(50)]


@pytest.mark.parametrize("data", [
    b'{"set":[[1]]}', b'{"dict":[[{"dict":[]},1]]}', b'{"int":"zz"}', b'{"tuple":3}',
    b'{"nothing":1}', b"{}", b"[", b'{"a":1,"b":2}', b'{"complex":["a",1]}',
    b'{"complex":[1,2,3]}', b'{"bytes":"x"}', b'{"dict":[1]}', b"[" * 100_000, b"1" * 5000,
    b"\xff", b'{"opaque":', b'{"int":1}', b'{"frozenset":{"a":{}}}', b'{"huge":[]}',
    b'{"opaque":[1]}', b'{"opaque":{"opaque":"x"}}', b'{"int":{"bytes":"61"}}',
    b'{"items":[]}', b'{"items":["map"]}', b'{"items":[1,[]]}', b'{"items":["map",3]}',
    b'{"items":["map",{"items":["map",[]]}]}', b'{"items":["map",[],[]]}', b'{"tuple":"ab"}',
    b'{"range":["0x0","0x9","0x1"]}', b'{"range":["0x0","0x3b9aca00","0x1"]}',
    b'{"tuple":{"range":["0x0","0x3b9aca00","0x1"]}}', b'{"dict":[["a",1,2]]}',
    b'{"dict":{"a":1}}', b'{"set":{"tuple":[1]}}', b'{"int":"' + b"_" * 100 + b'"}',
    b'{"set":[' + ",".join(SAME_HASH).encode() + b"]}",
    b'{"set":[' + ",".join(BESIDE_OTHERS).encode() + b"]}",
])  # fmt: skip
def test_hostile_data_is_malformed_or_harmless(data):
    """A program may write any bytes in place of a value: the trainer must neither raise, hang nor
    be deceived."""
    value = sandbox.value(jail.VALUE + data)
    assert not value.ok and value.error == "malformed" or isinstance(value.value, Opaque)
    assert sandbox.status(jail.VALUE + data, Test("f()", "3")) is not Status.PASS


def seconds(work, *args):
    """CPU time of a piece of work, in what a million numbers show to be a second of a machine that
    does nothing else: a busy one's seconds are shorter. The best of three, for a look through all
    that other tests have left in memory may fall into it."""
    return min(seconds_once(work, *args) for _ in range(3))


def seconds_once(work, *args):
    start = time.process_time()
    json.loads(b"[" + b"1.5," * 1_000_000 + b"1]")
    middle = time.process_time()
    work(*args)
    return (time.process_time() - middle) / (middle - start) / 3.5


@pytest.mark.parametrize("piece", [
    b"5e-324", b"1.234567890123456e-300", b"[]", b'""', b'",,,"', b'{"tuple":[]}', b'{"set":[]}',
    b'{"int":"1"}', b'{"opaque":""}', b'{"items":["",[]]}', b'{"complex":[1,2]}',
    b'{"dict":[{"tuple":[1,1]}]}',
])  # fmt: skip
def test_the_largest_reply_of_each_kind_is_read_within_a_second(piece):
    """Sixteen megabytes of empty lists took 15 seconds, and 1.1 GB. What costs more to read than a
    number weighs more; what weighs more than an honest value may is not read at all."""
    room = jail.MAX_REPLY // (len(piece) + 1), jail.MAX_ITEMS // jail.weight(piece + b",") - 1
    reply = jail.VALUE + b"[" + b",".join([piece] * min(room)) + b"]"
    assert sandbox.value(reply).ok
    assert seconds(sandbox.value, reply) < 1.5
    more = reply[:-1] + b"," + reply[2:] * 3
    assert sandbox.value(more).error == "malformed"
    assert seconds(sandbox.value, more) < 0.3


@pytest.mark.parametrize("data", [
    b"[" + b"," * 4_000_001 + b'"' + b'\\"' * 5_000_000, b'"' + b",[" * (8 << 20) + b'"',
    b'{"set":[' + b",".join(b"%d" % (k << 41) for k in range(700_000)) + b"]}",
    b'{"set":[' + ",".join(LIKE_TUPLES).encode() + b"]}", b"1." + b"1" * (16 << 20),
    b'{"int":"' + b"1" * (16 << 20) + b'"}', b'{"bytes":"' + b"61" * (8 << 20) + b'"}',
], ids=["open text", "text", "low bits", "one hash", "digits", "hexadecimal", "bytes"])  # fmt: skip
def test_no_odd_reply_holds_the_trainer_for_a_second(data):
    """A text of escaped quotes that never ends, looked through by a pattern, took hours."""
    assert seconds(sandbox.value, jail.VALUE + data) < 1.5


def test_a_reply_is_read_once_for_all_tests_of_its_call(monkeypatch):
    """Many tests of one call, each of which reads its 16 MB anew, held the trainer for as many
    seconds."""
    read = []
    monkeypatch.setattr(sandbox, "decode", lambda data, tags: read.append(len(data)) or [1])
    program = "def f(x):\n    return [x] * 1000\n"
    steps = ["len", "sum", "min", "max", "sorted"]
    with Sandbox(workers=1) as box:
        box.check([(program, [f"assert {step}(f({x})) == 1" for step in steps for x in (1, 2)])])
    assert read == [2001] * 2


def test_only_the_reference_says_ranges(box):
    """One of a billion numbers is a few bytes long, and `list` or `sum` around the call of a
    program that says it would spread it out in the trainer."""
    program = """
import os, struct
def f():
    data = b'v{"range":["0x0","0x3b9aca00","0x1"]}'
    os.write(3, struct.pack("!I", len(data)) + data)
"""
    assert box.check([(program, ["assert len(f()) == 10**9"])]) == [[Status.ERROR]]
    (truth,) = box.ground_truth([("def f(x):\n    return len(x)\n", "f", ["f(range(10**9))"])])[0]
    assert truth.value.value == 10**9 and truth.call is not None


# ---- honest programs that come close to those patterns ----

HONEST = [(program, expected) for expected, program in blocks('''
## 1
import threading, time
def f():
    threading.Thread(target=time.sleep, args=[100]).start()
    return 1

## [2]
import threading
def f():
    out = []
    t = threading.Thread(target=out.append, args=[2])
    t.start()
    t.join()
    return out

## [3, 2, 1, 0, 1, 2]
from concurrent.futures import ThreadPoolExecutor
def f():
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(abs, range(-3, 3)))

## 100
import threading, time
def f():
    threads = [threading.Thread(target=time.sleep, args=[0.05]) for _ in range(100)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return len(threads)

## [50_000]
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(1 << 27)
def g(n):
    return 0 if n == 0 else 1 + g(n - 1)
def f():
    out = []
    t = threading.Thread(target=lambda: out.append(g(50_000)))
    t.start()
    t.join()
    return out

## None
import os
def f():
    return os.sync()

## 3
import asyncio
async def g():
    await asyncio.sleep(0.01)
    return 3
def f():
    return asyncio.run(g())

## 2
import threading, queue
q, r = queue.Queue(), queue.Queue()
threading.Thread(target=lambda: r.put(q.get() + 1), daemon=True).start()
def f():
    q.put(1)
    return r.get()

## 1
def f():
    return len(bytearray(300_000_000)[:1])

## 900
def g(n):
    return 0 if n == 0 else 1 + g(n - 1)
def f():
    return g(900)

## 9000
import sys
sys.setrecursionlimit(20_000)
def g(n):
    return 0 if n == 0 else 1 + g(n - 1)
def f():
    return g(9000)

## 4
def g(n):
    return g(n + 1)
def f():
    try:
        return g(0)
    except RecursionError:
        return 4

## 90000.0
import numpy as np
def f():
    return float(np.linalg.norm(np.ones((300, 300)) @ np.ones((300, 300))))

## [0, 1, 2]
import numpy
def f():
    return numpy.arange(3).tolist()

## 5
import sys
def f():
    sys.stdout.buffer.write(b'\\xff\\xfe\\x00')
    sys.stderr.write('\\ud800'.encode('utf-8', 'surrogatepass').decode('latin-1'))
    return 5

## 6
def f():
    print('PASS', 'x' * 10_000_000)
    return 6

## list(range(200_000))
def f():
    return list(range(200_000))

## 'é€😀' * 100_000
def f():
    return 'é€😀' * 100_000

## {i: str(i) for i in range(50_000)}
def f():
    return {i: str(i) for i in range(50_000)}

## (None, True)
import os
def f():
    return os.environ.get('API_KEY'), os.environ.get('HOME') is not None

## '1'
import os
def f():
    os.environ['X'] = '1'
    return os.environ['X']

## '7'
def f():
    with open('notes.txt', 'w') as a:
        a.write('7')
    with open('notes.txt') as a:
        return a.read()

## '8'
import tempfile, os
def f():
    with tempfile.TemporaryDirectory() as d:
        p = os.path.join(d, 'x')
        open(p, 'w').write('8')
        return open(p).read()

## '9'
import shutil
def f():
    open('a', 'w').write('9')
    shutil.copy('a', 'b')
    return open('b').read()

## [(1,)]
import sqlite3
def f():
    db = sqlite3.connect('x.db')
    db.execute('create table t (a)')
    db.execute('insert into t values (1)')
    db.commit()
    return db.execute('select a from t').fetchall()

## 0o600
import os
def f():
    open('mine', 'w').close()
    os.chmod('mine', 0o600)
    return os.stat('mine').st_mode & 0o777

## 5_000_000
import os
def f():
    with open('large', 'wb') as file:
        file.write(bytes(5_000_000))
    return os.path.getsize('large')

## 'new'
import os
def f():
    with open('part', 'w') as file:
        file.write('new')
        file.flush()
        os.fsync(file.fileno())
    os.replace('part', 'whole')
    return open('whole').read()

## [10]
import signal
def f():
    got = []
    signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    signal.raise_signal(signal.SIGUSR1)
    return got

## ''
import sys
def f():
    return sys.stdin.read()

## 10
def f():
    try:
        return input()
    except EOFError:
        return 10

## 11
import sys
def f():
    try:
        sys.exit(0)
    except SystemExit:
        return 11

## []
import atexit
log = []
atexit.register(log.append, 1)
def f():
    return log

## [1]
import signal
def f():
    got = []
    signal.signal(signal.SIGALRM, lambda *a: got.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.pause()
    return got

## [True, True]
import gc, inspect, sys
def f():
    return [len(gc.get_objects()) > 0, inspect.currentframe() is sys._getframe()]

## ['a', 'b']
import inspect
def f(a=1, *, b=2):
    return list(inspect.signature(f).parameters)

## 12
import ctypes
def f():
    return ctypes.CDLL(None).abs(-12)

## 13
import builtins
print = builtins.print
len = lambda x: 13
def f():
    return len([])

## 14
def eval(x):
    return 14
def compile(*a):
    return 0
def f():
    return eval('1 + 1')

## 15
def f():
    return eval('1 + 14') + exec('') if False else eval('15')

## [16, 16]
def range(n):
    return [16] * n
def f():
    return range(2)

## True
class C:
    def __eq__(self, other):
        return other == 17
def f():
    return C() == 17

## [0, 1, 2]
import random
random.seed(1)
def f():
    return sorted(random.sample(range(3), 3))

## True
import time
def f():
    start = time.time()
    time.sleep(0.05)
    return time.time() > start

## (True, 1)
from __future__ import annotations
from dataclasses import dataclass
@dataclass(order=True)
class P:
    x: int
def f():
    return P(1) < P(2), sorted([P(2), P(1)])[0].x

## [{'a': 2, 'b': 1}, {'a': 1}, {1: [2]}]
from collections import Counter, OrderedDict, defaultdict
def f():
    d = defaultdict(list)
    d[1].append(2)
    return [Counter('aab'), OrderedDict(a=1), d]

## 2880067194370816120
from functools import lru_cache
@lru_cache(None)
def g(n):
    return n if n < 2 else g(n - 1) + g(n - 2)
def f():
    return g(90)

## 3 ** 5000
def f():
    return 3 ** 5000

## (float('nan'), float('inf'), 0.0)
def f():
    return float('nan'), float('inf'), -0.0

## 'a2b23'
import re
def f():
    return re.sub(r'(\\d+)', lambda m: str(int(m[1]) + 1), 'a1b22')

## '2024-01-01T00:00:00+01:00'
import datetime, zoneinfo
def f():
    zone = datetime.timezone(datetime.timedelta(hours=1))
    if "Europe/Paris" in zoneinfo.available_timezones():
        zone = zoneinfo.ZoneInfo("Europe/Paris")
    return datetime.datetime(2024, 1, 1, tzinfo=zone).isoformat()

## (64, 36)
import hashlib, secrets, uuid
def f():
    return len(hashlib.sha256(secrets.token_bytes(8)).hexdigest()), len(str(uuid.uuid4()))

## ([1], b'YQ==')
import pickle, json, base64
def f():
    return pickle.loads(pickle.dumps(json.loads('[1]'))), base64.b64encode(b'a')

## (1.5, 0.25, 1.5)
import decimal, fractions, statistics
def f():
    half, quarter = decimal.Decimal('0.5') + 1, fractions.Fraction(1, 4)
    return float(half), float(quarter), statistics.mean([1, 2])

## None
try:
    import no_such_module
except ImportError:
    no_such_module = None
def f():
    return no_such_module

## 18
import warnings, logging
def f():
    warnings.warn('x')
    logging.error('PASS')
    return 18

## 1
x = 0
def f():
    global x
    x += 1
    return x

## 0
import subprocess
def f():
    try:
        return subprocess.run(['true']).returncode
    except OSError:
        return 0

## (True, 'a/b', True)
import os
def f():
    return os.cpu_count() > 0, os.path.join('a', 'b'), os.getcwd() == os.environ['HOME']

## 19
import tracemalloc, cProfile
def f():
    p = cProfile.Profile()
    p.enable()
    p.disable()
    return 19

## None
import sys
def f():
    old = sys.gettrace()
    sys.settrace(None)
    return old

## 1999999000000
def f():
    s = 0
    for i in range(2_000_000):
        s += i
    return s
''')]


@pytest.fixture(scope="module")
def roomy():
    with Sandbox(workers=2, timeout=5, memory_mb=1024) as box:
        yield box


def test_no_honest_program_fails(roomy):
    """One by one they look like attacks; all of them pass."""
    got = roomy.values([(program, ["f()"]) for program, _ in HONEST])
    failed = [(program, str(value)[:200])
              for (program, expected), (value,) in zip(HONEST, got, strict=True)
              if not (value.ok and tasks.equal(value.value, eval(expected)))]  # fmt: skip
    assert not failed and len(HONEST) >= 40


# ---- values in the types of libraries, and objects that lie ----

NUMPY = "import numpy as np\n"
POINT = "from typing import NamedTuple\nclass Point(NamedTuple):\n    x: int\n    y: int\n"
ENUM = "import enum\nclass Colour({base}, enum.Enum):\n    A = {value!r}\n"


@pytest.mark.parametrize("program, expression, expected", [
    (NUMPY, "np.int64(3)", 3), (NUMPY, "np.uint8(3)", 3), (NUMPY, "np.float64(0.5)", 0.5),
    (NUMPY, "np.float32(0.5)", 0.5), (NUMPY, "np.bool_(True)", True), (NUMPY, "np.str_('a')", "a"),
    (NUMPY, "np.complex128(1j)", 1j), (NUMPY, "np.bytes_(b'a')", b"a"),
    (NUMPY, "[np.int64(1), (np.float64(2.0), {np.str_('k'): np.bool_(False)})]",
     [1, (2.0, {"k": False})]),
    (NUMPY, "list(np.arange(3))", [0, 1, 2]), (NUMPY, "{np.int64(1): 1}", {1: 1}),
    (NUMPY, "np.array([1, 2]).tolist()", [1, 2]),
    (POINT, "Point(1, 2)", (1, 2)), (POINT, "[Point(1, 2)]", [(1, 2)]),
    (POINT, "{Point(1, 2): [Point(3, 4)]}", {(1, 2): [(3, 4)]}),
    (ENUM.format(base="int", value=1), "Colour.A", 1),
    (ENUM.format(base="str", value="red"), "[Colour.A]", ["red"]),
    (ENUM.format(base="float", value=0.5), "{Colour.A: Colour.A}", {0.5: 0.5}),
    ("import enum\nclass F(enum.IntFlag):\n    A = 1\n    B = 2\n", "F.A | F.B", 3),
    ("", "bytearray(b'ab')", b"ab"), ("", "[bytearray(b'a')] * 2", [b"a", b"a"]),
    ("from fractions import Fraction\n", "Fraction(1, 2)", 0.5),
    ("from fractions import Fraction\n", "Fraction(-6, 2)", -3),
    ("from fractions import Fraction\n", "Fraction(2**80, 1)", 2**80),
    ("from decimal import Decimal\n", "Decimal('0.25')", 0.25),
    ("from decimal import Decimal\n", "Decimal('7')", 7),
    ("from decimal import Decimal\n", "Decimal('inf')", float("inf")),
    ("from collections import *\n", "[Counter('aab'), OrderedDict(a=1), defaultdict(list, b=[2])]",
     [{"a": 2, "b": 1}, {"a": 1}, {"b": [2]}]),
    ("class Text(str):\n    pass\n", "Text('a')", "a"),
    ("class Rows(list):\n    pass\n", "Rows([Rows([1])])", [[1]]),
])  # fmt: skip
def test_right_answers_in_the_types_of_libraries_are_right(roomy, program, expression, expected):
    """Numpy's numbers, named tuples, members of mixed enums: right to whoever compares with `==`,
    and once wrong here. They are made plain at the sending end; nobody asks their `__eq__`."""
    program += f"def f():\n    return {expression}\n"
    (value,) = roomy.values([(program, ["f()"])])[0]
    assert value.ok and value.value == expected and type(value.value) is type(expected)
    test = Test("f()", repr(expected).replace("inf", "float('inf')"))
    assert roomy.check([(program, [test])]) == [[Status.PASS]]


@pytest.mark.parametrize("expression, kind", [
    ("Fraction(1, 3)", "Fraction"), ("Decimal('0.1')", "Decimal"), ("Fraction(1, 10)", "Fraction"),
    ("Decimal(1) / 3", "Decimal"), ("np.array([1])", "ndarray"), ("np.longdouble(1) / 3", ""),
    ("enum.Enum('Colour', 'A').A", "Colour"), ("object()", "object"), ("len", ""), ("int", "type"),
    ("np.datetime64('2020-01-01')", ""), ("np.void(b'a')", ""),
])  # fmt: skip
def test_what_no_plain_value_says_exactly_is_opaque(roomy, expression, kind):
    """A third is not 0.3333333333333333: what would have to be rounded equals nothing."""
    program = "import enum\nimport numpy as np\nfrom decimal import Decimal\n"
    program += "from fractions import Fraction\n"
    (value,) = roomy.values([(program, [expression])])[0]
    assert value.ok and (isinstance(value.value, Opaque) or not kind)
    assert kind in ("", getattr(value.value, "type_name", None))
    assert sandbox.status(jail.VALUE + b'{"opaque":"x"}', Test("f()", "0.1")) is Status.FAIL


LIAR = """
import collections, decimal, enum, fractions, itertools
LIES = {name: lambda self, *others: True for name in (
    "__eq__", "__bool__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__"
)} | {"__hash__": lambda self: 0, "__len__": lambda self: 1, "__iter__": lambda self: iter([7]),
      "__int__": lambda self: 7, "__float__": lambda self: 7.0, "__index__": lambda self: 7,
      "__repr__": lambda self: "7", "__str__": lambda self: "7", "__abs__": lambda self: 7,
      "__getitem__": lambda self, key: 7, "__reversed__": lambda self: iter([7]),
      "__sub__": lambda self, other: 0, "__rsub__": lambda self, other: 0}
def f(base, *args):
    return type("Liar", (base,), LIES)(*args)
"""


@pytest.mark.parametrize("call, honest", [
    ("f(int, 3)", 3), ("f(float, 3.5)", 3.5), ("f(str, 'abc')", "abc"), ("f(bytes, b'ab')", b"ab"),
    ("f(list, [1, 2, 3])", [1, 2, 3]), ("f(tuple, (1, 2))", (1, 2)), ("f(set, [1, 2])", {1, 2}),
    ("f(frozenset, [1])", frozenset([1])), ("f(bytearray, b'ab')", b"ab"), ("f(complex, 1j)", 1j),
])  # fmt: skip
def test_an_object_that_lies_is_sent_as_what_it_is(roomy, call, honest):
    """A subclass may say that it equals everything, has one item, and is seven: nobody asks it."""
    (alone,), (nested,) = roomy.values([(LIAR, [call]), (LIAR, [f"[{call}]"])])
    assert alone.value == honest and type(alone.value) is type(honest)
    assert nested.value == [honest] and type(nested.value[0]) is type(honest)
    tests = [Test(call, str(SECRET)), Test(call, "7"), Test(call, str(SECRET), tolerance=0.1),
             Test(call, f"[{SECRET}]"), Test(call, str(SECRET), via=("sum",))]  # fmt: skip
    assert Status.PASS not in roomy.judge([(LIAR, "f", tests)])[0].statuses


@pytest.mark.parametrize("base", ["dict", "collections.OrderedDict", "collections.Counter",
                                  "collections.defaultdict", "fractions.Fraction",
                                  "decimal.Decimal", "collections.deque", "itertools.count",
                                  "map"])  # fmt: skip
def test_an_object_that_lies_about_its_items_forges_nothing(roomy, base):
    """What it says is its own answer, of plain types, and no better than any other."""
    args = {"map": "str, [1]", "itertools.count": "1"}.get(base, "")
    program = LIAR + f"def g():\n    return f({base}, {args})\n"
    tests = [Test("g()", str(SECRET)), Test("g()", f"[{SECRET}]"), Test("g()", f"{{1: {SECRET}}}"),
             Test("g()", str(SECRET), via=("len",)), Test("g()", str(SECRET), via=("sum",)),
             Test("g()", f"[{SECRET}]", via=("sorted",))]  # fmt: skip
    assert Status.PASS not in roomy.judge([(program, "g", tests)])[0].statuses


@pytest.mark.parametrize("body, test", [
    ("yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
    ("yield from range(n)", "assert sum(f(3)) == 3"),
    ("return map(str, range(n))", "assert list(f(2)) == ['0', '1']"),
    ("return zip(range(n), range(n))", "assert list(f(2)) == [(0, 0), (1, 1)]"),
    ("return filter(None, range(n))", "assert list(f(3)) == [1, 2]"),
    ("return reversed([1] * n)", "assert tuple(f(2)) == (1, 1)"),
    ("return enumerate('ab')", "assert list(f(2)) == [(0, 'a'), (1, 'b')]"),
    ("return range(n)", "assert list(f(2)) == [0, 1]"),
    ("return range(n)", "assert len(f(2)) == 2"),
    ("return {i: 1 for i in range(n)}.keys()", "assert sorted(f(2)) == [0, 1]"),
    ("return {i: 1 for i in range(n)}.values()", "assert list(f(2)) == [1, 1]"),
    ("return {i: 1 for i in range(n)}.items()", "assert sorted(f(2)) == [(0, 1), (1, 1)]"),
    ("import collections\n    return collections.deque(range(n))", "assert list(f(2)) == [0, 1]"),
    ("import itertools\n    return itertools.permutations(range(n))",
     "assert list(f(2)) == [(0, 1), (1, 0)]"),
])  # fmt: skip
def test_an_iterator_is_what_is_made_of_its_items(roomy, body, test):
    """With a generator as the ground truth no test of a question was valid, and nobody learned."""
    program = f"def f(n):\n    {body}\n"
    assert roomy.check([(program, [test])]) == [[Status.PASS]]
    bare = test.replace("list(f(3))", "f(3)").replace("list(f(2))", "f(2)")
    if bare != test:  # without it, an iterator equals no list
        assert roomy.check([(program, [bare])]) == [[Status.FAIL]]


@pytest.mark.parametrize("expression", [
    "itertools.count()", "itertools.cycle([1])", "itertools.repeat([1, 2])", "iter(int, 1)",
    "(x for x in itertools.count())", "[itertools.count()]", "range(10**12)",
])  # fmt: skip
def test_an_endless_iterator_ends(roomy, expression):
    """It is taken apart up to the number of items that a value may have, and is too large then."""
    program = f"import itertools\ndef f():\n    return {expression}\n"
    (value,) = roomy.values([(program, ["f()"])])[0]
    assert value.ok and value.value.type_name == "too large"
