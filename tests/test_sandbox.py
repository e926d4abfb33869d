"""The sandbox does its honest work: verdicts, statuses, limits, resumption, faults of its own, threads, cleaning up."""

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

import sandbox
from sandbox import Opaque, Sandbox, SandboxError, Status
from tasks import Test

PASS, FAIL, ERROR, TIMEOUT, NOT_RUN = Status
ROOT = Path(sandbox.__file__).parent
INC = "def inc(x):\n    return x + 1\n"


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2, timeout=0.5, memory_mb=512) as box:
        yield box


def value(box, program, call):
    return box.values([(program, [call])])[0][0]


# ---- verdicts ----


def test_one_program_with_every_status(box):
    """Each call has its own fate: a wrong value, an exception, an exit and a hang cost only themselves."""
    program = """
import os
def f(x):
    if x == 2: return 0
    if x == 3: raise ValueError("boom")
    if x == 4: os._exit(0)
    if x == 5:
        while True: pass
    return x
"""
    tests = [f"assert f({i}) == {i}" for i in range(7)]
    assert box.check([(program, tests)]) == [[PASS, PASS, FAIL, ERROR, ERROR, TIMEOUT, PASS]]


def test_an_exception_is_never_an_empty_answer(box):
    """A raising program once passed `assert not find(...)`, its exception having been read as None."""
    program = "def find(xs, y):\n    raise ValueError('boom')\n"
    assert box.check([(program, ["assert find([1], 2) is None", "assert not find([], 1)"])]) == [[ERROR, ERROR]]


def test_no_test_gives_no_status(box):
    """No tests at all must not become full marks: an empty list stays empty, and an unreadable assert is an error."""
    assert box.check([(INC, []), (INC, ["assert inc(", "not python"])]) == [[], [ERROR, ERROR]]


def test_forms_of_an_assert_keep_their_meaning(box):
    program = "def f(x):\n    return x\n"
    tests = ["assert f([]) == []", "assert not f([])", "assert f([])", "assert f(1) is True",
             "assert len(f('ab')) == 2", "assert 3 == f(3)", "assert abs(f(0.1) - 0.1000001) < 1e-3"]  # fmt: skip
    assert box.check([(program, tests)]) == [[PASS, PASS, FAIL, FAIL, PASS, PASS, PASS]]


def test_what_does_not_load_has_no_passing_test(box):
    """One rule for loading: the module runs to its end and defines a callable entry point."""
    programs = ["def inc(x:", "inc = 3", "x = 1", "raise SystemExit", "import no_such_module\n" + INC,
                INC + "import sys\nsys.exit(0)\n", INC + "while True:\n    pass\n", "\0", "\udc80"]  # fmt: skip
    tests = ["assert inc(1) == 2"]
    assert box.loads([(program, "inc") for program in programs + [INC]]) == [False] * len(programs) + [True]
    verdicts = box.judge([(program, "inc", tests) for program in programs])
    assert [(v.loads, v.statuses) for v in verdicts] == [(False, [ERROR])] * len(programs)


def test_a_program_stays_as_written(box):
    """Nothing is hoisted, indented or rewritten, and the main guard is never entered."""
    program = '''"""doc"""
from __future__ import annotations
try:
    import no_such_module as np
except ImportError:
    np = None
from dataclasses import dataclass

@dataclass
class Point:
    x: Undefined

LIMIT = 3

def f():
    global LIMIT
    LIMIT += 1
    return [LIMIT, np, __name__ == "__main__", Point(1).x, Point.__module__ == __name__]

if __name__ == "__main__":
    raise SystemExit("the main guard")
'''
    assert value(box, program, "f()").value == [4, None, False, 1, True]


def test_each_distinct_call_runs_once(box):
    """Suites share calls: the program must see each of them once, whatever the asserts say about it."""
    program = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)\n"
    tests = [Test("f(0)", "1"), Test("f(1)", "2"), Test("f(0)", "9"), Test("f(0)", "1")]
    assert box.judge([(program, "f", tests)])[0].statuses == [PASS, PASS, FAIL, PASS]


def test_calls_after_a_crash_start_from_the_loaded_state(box):
    """State between calls lasts until a crash; then the module is loaded afresh, and at most 8 times."""
    program = "import os\nn = 0\ndef f(x):\n    global n\n    n += 1\n    return n if x else os._exit(1)\n"
    got = box.values([(program, ["f(1)", "f(1)", "f(0)", "f(1)", "f(1)"])])[0]
    assert [(v.value, v.error) for v in got] == [(1, ""), (2, ""), (None, "crash"), (1, ""), (2, "")]
    statuses = box.check([(program, [f"assert f(0) == {i}" for i in range(2)] + ["assert f(1) == 1"])])[0]
    assert statuses == [ERROR, ERROR, PASS]


def test_a_module_that_loads_only_sometimes(box):
    """When it does not load again after a crash, what is left is not run; it is not run half loaded."""
    program = f"""
import os, time
end = {time.monotonic() + 2.0}
if time.monotonic() > end:
    raise ValueError
def f(x):
    time.sleep(max(0, end - time.monotonic() + 0.1) * x)
    os._exit(0)
"""
    tests = [Test("f(0)", "0"), Test("f(1)", "0"), Test("f(2)", "0")]
    assert box.judge([(program, "f", tests)])[0].statuses == [ERROR, ERROR, NOT_RUN]


def test_given_up_after_eight_resumes(box):
    """What was not run is left out of pass rates and fail rates alike, so it must be told apart from a failure."""
    program = "import os\ndef f(x):\n    os._exit(x)\n"
    tests = [Test(f"f({i})", "0") for i in range(12)]
    assert box.judge([(program, "f", tests)])[0].statuses == [ERROR] * 9 + [NOT_RUN] * 3
    assert box.judge([(program, "f", tests)], resumes=0)[0].statuses == [ERROR] + [NOT_RUN] * 11


# ---- values ----


@pytest.mark.parametrize("source", [
    "None", "True", "0", "-3", "2**63", "-(2**70)", "10**5000", "0.1", "float('inf')", "'x\\n\\ud800'", "b'\\x00\\xff'",
    "1+2j", "[]", "[1, 'a', None]", "(1,)", "()", "{1: [2], (3, 4): {5}}", "set()", "frozenset({1, 2})", "[[[]]]",
    "{'int': 1}", "{None: 0}", "[float('-inf')]", "list(range(100_000))", "'\\u00e9' * 1_000_000", "[1.5] * 100_000",
])  # fmt: skip
def test_plain_values_cross_unchanged(box, source):
    want, got = eval(source), value(box, "", source)
    assert got.ok and got.value == want and repr(type(got.value)) == repr(type(want))
    if len(source) < 30 and not source.startswith("10**"):
        assert repr(got.value) == repr(want)


def test_other_values_travel_as_opaque_marks(box):
    """Not None, equal to nothing: an object that says it equals everything must not say so where verdicts are made."""
    program = "import re, collections\nclass A:\n    pass\n"
    assert value(box, program, "A()").value.type_name == "A"
    assert value(box, program, "re.match('a', 'a')").value.type_name == "Match"
    assert value(box, program, "[1, A()]").value[1].type_name == "A"
    assert value(box, program, "collections.Counter('aab')").value == {"a": 2, "b": 1}
    assert Opaque("A") != Opaque("A") and Opaque("A") is not None


def test_values_within_the_stated_bounds_arrive():
    """A million numbers arrive; beyond 2 million items or 16 MiB, or deeper than 100, a value is an opaque mark."""
    deep = "def f(n):\n    return [f(n - 1)] if n else []\n"
    calls = ["list(range(1_000_000))", "'x' * 10_000_000", "'x' * 20_000_000", "[(0,) * 9999] * 201", "f(90)", "f(900)"]
    with Sandbox(workers=1, timeout=10) as box:
        got = box.values([(deep, calls)])[0]
    assert got[0].value == list(range(1_000_000)) and len(got[1].value) == 10_000_000
    assert [type(v.value).__name__ for v in got] == ["list", "str", "Opaque", "Opaque", "list", "list"]
    inner = got[5].value
    while isinstance(inner, list):
        (inner,) = inner
    assert isinstance(inner, Opaque)


def test_ground_truth_runs_twice_and_names_what_differs(box):
    program = """
import random, time, re
count = 0
def f(kind):
    global count
    count += 1
    return {"fixed": 7, "random": random.random(), "clock": time.perf_counter_ns(), "order": list({"a", "b", "c", "d"}),
            "state": count, "match": re.match("a", "a")}[kind]
"""
    kinds = ["fixed", "random", "clock", "order", "state", "match", "missing"]
    truths = box.ground_truth([(program, "f", [f"f({kind!r})" for kind in kinds])])[0]
    got = [truth.value for truth in truths]
    errors = {kind: v.error for kind, v in zip(kinds, got, strict=True)}
    assert errors == {"fixed": "", "random": "nondeterministic", "clock": "nondeterministic", "match": "",
                      "order": "nondeterministic", "state": "nondeterministic", "missing": "KeyError"}  # fmt: skip
    assert got[0].value == 7 and isinstance(got[5].value, Opaque)


@pytest.mark.parametrize("head, call, bound", [
    ("a, b=2, *, c=3", "f(b=2, a=1, c=3)", "f(1)"),
    ("a, b=2, *, c=3", "f(1, c=4)", "f(1, c=4)"),
    ("a, b=2, c=3", "f(1, c=4)", "f(1, 2, 4)"),
    ("a, b=(), c=''", "f([1], [], {})", "f([1])"),
    ("a, b=0, c=False", "f(1, False, 0.0)", "f(1)"),
    ("a, b=None", "f(1, None)", "f(1)"),
    ("a, b=None", "f(1, 0)", "f(1, 0)"),
    ("a, /, b=1", "f(5, b=1.0)", "f(5)"),
    ("*xs, last=9", "f(1, 2, last=9)", "f(1, 2)"),
    ("a, *xs", "f(1)", "f(1)"),
    ("a, **named", "f(z=1, y=2, a=0)", "f(0, y=2, z=1)"),
    ("a, b=object(), c=3", "f(1, c=4)", "f(1, c=4)"),
    ("a=range(3), b=1", "f(b=7, a=range(0, 9, 3))", "f(range(0, 9, 3), 7)"),
    ("a=[1, 2], b=1", "f((1.0, 2), 1)", "f()"),
])
def test_the_ground_truth_binds_the_arguments_of_a_call(box, head, call, bound):
    """By position where that can be, defaults left out: its own names and defaults once broke right programs."""
    program = f"def f({head}):\n    return sorted(k for k, v in locals().items() if v is not None)\n"
    (truth,) = box.ground_truth([(program, "f", [call])])[0]
    assert truth.call.source == bound and truth.value.ok
    (again,) = box.ground_truth([(program, "f", [bound])])[0]
    assert again.call == truth.call and again.value.value == truth.value.value


def test_what_does_not_bind_or_has_no_signature(box):
    """A call that the ground truth does not take is invalid; a built-in function says nothing of its parameters."""
    calls = ["f()", "f(1, 2, 3)", "f(1, z=2)", "f(1)"]
    got = box.ground_truth([("def f(a, b=1):\n    return a\n", "f", calls)])[0]
    assert [t.value.error for t in got] == ["TypeError"] * 3 + [""] and got[0].call is None
    (largest,) = box.ground_truth([("f = max\n", "f", ["f(3, 5)"])])[0]
    assert (largest.value.value, largest.call.source) == (5, "f(3, 5)")
    wrapped = "import functools\n@functools.lru_cache\ndef f(a, b=1):\n    return a + b\n"
    assert box.ground_truth([(wrapped, "f", ["f(b=1, a=2)"])])[0][0].call.source == "f(2)"


def test_arguments_are_those_before_the_call(box):
    """A function that changes its argument once changed what the test called other programs with."""
    (truth,) = box.ground_truth([("def f(xs):\n    xs.clear()\n    return xs\n", "f", ["f([1, 2])"])])[0]
    assert truth.call.source == "f([1, 2])" and truth.value.value == []


def test_hanging_inputs_do_not_keep_the_ground_truth_from_the_others(box):
    """One suite of hanging inputs once invalidated the tests of every other suite of the question."""
    program = "import os\ndef f(x):\n    return os._exit(1) if x < 20 else x\n"
    got = box.ground_truth([(program, "f", [f"f({x})" for x in range(23)])])[0]
    assert [v.value.error for v in got] == ["crash"] * 20 + [""] * 3


def test_the_same_program_gives_the_same_values_again():
    """Hash seed and random numbers are fixed, so that one seed of the trainer is one run."""
    program = "import random\ndef f():\n    return [random.random(), list({'a', 'b', 'c', 'd', 'e'}), hash('a')]\n"
    seen = []
    for _ in range(2):
        with Sandbox(workers=1) as box:
            seen += [value(box, program, "f()").value for _ in range(2)]
    assert seen[0] == seen[1] == seen[2] == seen[3]


# ---- limits ----


def test_wall_limit_for_what_uses_no_cpu_time(box):
    """A sleeping call costs no CPU time: it has 3 * timeout + 1 seconds."""
    start = time.monotonic()
    assert value(box, "import time\ndef f():\n    time.sleep(60)\n", "f()").error == "timeout"
    assert 2.4 < time.monotonic() - start < 8


def test_limits_are_in_cpu_time_so_that_a_busy_machine_changes_no_verdict():
    """Six programs of 0.3 s under a limit of 3 s pass, although they share the machine with whatever else runs."""
    program = """
import time
def f(x):
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
    return x
"""
    with Sandbox(workers=6, timeout=3.0) as box:
        assert box.check([(program, ["assert f(1) == 1"])] * 6) == [[PASS]] * 6


def test_a_crowd_of_workers_changes_no_verdict():
    """With more workers than cores, honest programs ran out of wall time that others had used: 16 of 16."""
    program = "import time\ndef f(x):\n    end = time.process_time() + 0.45\n" \
              "    while time.process_time() < end: pass\n    return x\n"  # fmt: skip
    with Sandbox(workers=16, timeout=0.6) as box:
        assert box.check([(program, ["assert f(1) == 1"])] * 16) == [[PASS]] * 16


def test_sleeping_has_a_limit_for_the_program(box):
    """Twenty calls that each slept just under the limit held a worker for most of a minute."""
    start = time.monotonic()
    program = "import time\ndef f(x):\n    time.sleep(1.0)\n    return x\n"
    got = box.values([(program, [f"f({i})" for i in range(20)])])[0]
    assert time.monotonic() - start < 12
    assert [v.value for v in got[:2]] == [0, 1] and got[-1].error == "not_run"


def test_a_program_ends_where_the_room_for_its_values_is_used_up():
    """Whatever it returned then would be too large too: references with large values were run to
    their end for it, three times over."""
    program = "import time\ndef f(n):\n    time.sleep(0.2 * (n == 9))\n    return 'a' * 15_000_000\n"
    with Sandbox(workers=1) as box:
        start = time.monotonic()
        got = box.timed_values([(program, [f"f({n})" for n in [*range(6), *[9] * 50]], [9.0] * 56)], 60)[0]
        assert time.monotonic() - start < 6  # not 50 times 0.2 more
    assert [type(one.value) for one in got] == [str] * 4 + [Opaque] * 52


def test_a_reply_of_too_many_items_is_not_decoded():
    """16 MB of nested empty lists took 15 seconds and a gigabyte of the trainer."""
    data = b"[" + b",".join([b"[]"] * 5_000_000) + b"]"
    assert sandbox.value(sandbox.VALUE + data).error == "malformed"
    assert sandbox.value(sandbox.VALUE + b"[" + b",".join([b"1"] * 1_100_000) + b"]").ok


GROUPS = {  # what is in the files of control groups -> cores that may be used of eight
    "none": ({}, 8),
    "no quota": ({"/proc/self/cgroup": ["0::/a/b"], "/sys/fs/cgroup/a/b/cpu.max": ["max 100000"]}, 8),
    "version 2": ({"/proc/self/cgroup": ["0::/a/b"], "/sys/fs/cgroup/a/b/cpu.max": ["250000 100000"]}, 3),
    "a group around it": ({"/proc/self/cgroup": ["0::/a/b"], "/sys/fs/cgroup/a/cpu.max": ["50000 100000"]}, 1),
    "version 1": ({"/proc/self/cgroup": ["4:cpu,cpuacct:/x", "1:name=systemd:/x"],
                   "/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": ["200000"],
                   "/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": ["100000"]}, 2),
    "version 1 without a quota": ({"/proc/self/cgroup": ["4:cpu:/"], "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": ["-1"],
                                   "/sys/fs/cgroup/cpu/cpu.cfs_period_us": ["100000"]}, 8),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_there_are_as_many_workers_as_the_quota_of_the_machine_gives_cores(name, monkeypatch):
    """Eight workers on the two cores that a container had took turns, and honest programs ran out of time."""
    files, cores = GROUPS[name]
    monkeypatch.setattr(sandbox, "read_lines", lambda path: files.get(str(path), []))
    monkeypatch.setattr(sandbox.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert sandbox.usable_cores() == cores


def test_limits_of_a_benchmark_are_wall_limits(box):
    program = "import time\ndef f(x):\n    time.sleep(x)\n    return x\n"
    calls = ["f(0.1)", "f(0.3)", "f(0.4)", "f(0)"]
    (got,) = box.timed_values([(program, calls, [1, 1, 0.2, 1])], total=60)
    assert [v.error for v in got] == ["", "", "timeout", "not_run"]
    (got,) = box.timed_values([(program, calls, [1, 1, 1, 1])], total=0.6)
    assert [v.error for v in got] == ["", "", "timeout", "not_run"]


# ---- faults of ours ----


def workers_of(box):
    return [worker.process.pid for worker in sum(box.idle.values(), [])]


def test_a_worker_that_dies_is_replaced_and_the_job_runs_again():
    with Sandbox(workers=1) as box:
        for pid in workers_of(box):
            os.kill(pid, signal.SIGKILL)
        assert box.check([(INC, ["assert inc(1) == 2"])]) == [[PASS]]


def test_a_job_that_takes_two_workers_down_is_the_programs_fault(monkeypatch):
    """One reply that kills workers must not stop a run: its asserts are errors, and the next program is judged."""
    request = sandbox.Worker.ask

    def fragile(self, job, patience):
        if job and "poison" in str(job):
            os.kill(self.process.pid, signal.SIGKILL)
        return request(self, job, patience)

    monkeypatch.setattr(sandbox.Worker, "ask", fragile)
    with Sandbox(workers=1) as box:
        tests = ["assert inc(1) == 2"]
        assert box.check([(INC + "# poison\n", tests), (INC, tests)]) == [[ERROR], [PASS]]


def test_a_layer_that_cannot_be_put_on_a_program_is_a_fault_of_ours(monkeypatch):
    """No program runs with fewer layers than are reported: the process ends, and an error says why."""
    start = """
import sys
sys.path[0] = sys.argv[1]
import jail
right = jail.seccomp_filter
jail.seccomp_filter = lambda *a, **k: ((22, 2, 0, 0, 0), b"") if "fork" in a[0] else right(*a)
jail.main(sys.argv[2])
"""
    monkeypatch.setattr(sandbox, "START", start)
    with Sandbox(workers=1) as box, pytest.raises(SandboxError, match="could not be prepared"):
        box.check([(INC, ["assert inc(1) == 2"])])


def test_a_sandbox_that_does_not_work_scores_nothing(monkeypatch):
    """When a harmless program fails too the fault is ours, and an error says what happened."""
    request = sandbox.Worker.ask

    def broken(self, job, patience):
        if job:
            os.kill(self.process.pid, signal.SIGKILL)
        return request(self, job, patience)

    with Sandbox(workers=1) as box:
        monkeypatch.setattr(sandbox.Worker, "ask", broken)
        with pytest.raises(SandboxError, match="workers go down.*exit status -9"):
            box.check([(INC, ["assert inc(1) == 2"])])
        monkeypatch.undo()
        assert box.check([(INC, ["assert inc(1) == 2"])]) == [[PASS]]


def test_a_worker_that_does_not_start_says_why(monkeypatch):
    monkeypatch.setattr(sandbox, "START", "raise SystemExit('no such thing today')")
    with pytest.raises(SandboxError, match="does not start.*no such thing today"):
        Sandbox(workers=1)


def test_isolation_can_be_required():
    if sys.platform == "linux":
        with pytest.raises(SandboxError, match="landlock: left out"):
            Sandbox(workers=1, require_isolation=True, _without=["landlock"])


def test_windows_is_refused():
    """There is no module `resource` there, and the error must say what to do, not which module is missing."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['resource'] = None; import sandbox"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "on Windows use WSL" in done.stderr and done.returncode == 1


# ---- threads, processes, submit ----

JOBS = [(INC, PASS), ("def inc(x):\n    return x\n", FAIL), ("def inc(x):\n    while True: pass\n", TIMEOUT)] * 4
ITEMS = [(program, ["assert inc(1) == 2"]) for program, _ in JOBS]
WANT = [[status] for _, status in JOBS]


def judged_in_a_process(_):
    with Sandbox(workers=1, timeout=0.2) as own:
        return own.check(ITEMS[:3])


def judged_by_an_inherited_box(_):
    return INHERITED[0].check(ITEMS[:3])


INHERITED: list = []


def test_same_verdicts_from_threads_and_with_any_number_of_workers():
    """Limits that work in the main thread only once turned into silent zeros in the trainer's threads."""
    for workers in (1, 8):
        with Sandbox(workers=workers, timeout=0.2) as box, ThreadPoolExecutor(8) as pool:
            assert box.check(ITEMS) == WANT
            assert list(pool.map(lambda item, box=box: box.check([item])[0], ITEMS)) == WANT


@pytest.mark.parametrize("method, function", [("spawn", judged_in_a_process), ("fork", judged_by_an_inherited_box)])
def test_same_verdicts_from_a_process_pool(method, function):
    """A forked copy of the trainer must not talk to the workers of the original."""
    with Sandbox(workers=1, timeout=0.2) as box:
        INHERITED[:] = [box]
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            assert list(pool.map(function, range(2))) == [WANT[:3]] * 2
        assert box.check(ITEMS[:3]) == WANT[:3]


def test_submit_streams(box):
    futures = [box.submit(program, tests) for program, tests in ITEMS]
    assert [future.result() for future in futures] == WANT


def test_closed_and_used_again():
    with Sandbox(workers=1) as box:
        pass
    assert box.check([(INC, ["assert inc(1) == 2"])]) == [[PASS]]
    box.close()


# ---- nothing stays behind ----


def processes_with(mark):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def gone(mark, seconds):
    end = time.monotonic() + seconds
    while processes_with(mark) and time.monotonic() < end:
        time.sleep(0.05)
    return not processes_with(mark)


MARKS = itertools.count(333_000 + os.getpid() % 1000 * 100)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("without", [[], ["pid namespace", "mount namespace"]])
def test_nothing_outlives_a_trainer_that_is_killed(without):
    """SIGKILL in the middle of execution: no process after 5 seconds, whatever the programs do to stay."""
    memory_mb = next(MARKS)
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from sandbox import Sandbox
hang = '''
import os, signal, threading, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
open("left", "w").write("x")
threading.Thread(target=lambda: [time.sleep(1) for _ in range(1000)]).start()
def f():
    while True: pass
'''
box = Sandbox(workers=3, timeout=60, memory_mb={memory_mb}, _without={without!r})
jobs = [box.submit(hang, ["assert f() == 1"]) for _ in range(3)]
box.report()
time.sleep(1.5)
print("running", flush=True)
time.sleep(100)
"""
    mark, before = f'"memory_mb": {memory_mb}'.encode(), set(Path("/tmp").glob("codea1-*"))
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout.readline() == "running\n"
    assert len(processes_with(mark)) > 9
    trainer.kill()
    trainer.wait()
    assert gone(mark, 5)
    assert set(Path("/tmp").glob("codea1-*")) <= before


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_outlives_a_supervisor_that_is_killed(monkeypatch):
    memory_mb = next(MARKS)
    mark = f'"memory_mb": {memory_mb}'.encode()
    box = Sandbox(workers=1, timeout=60, memory_mb=memory_mb)
    box.submit("def f():\n    while True: pass\n", ["assert f() == 1"])
    time.sleep(0.5)
    supervisor = min(processes_with(mark))
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    monkeypatch.setattr(box, "start", lambda seed: 1 / 0)  # no new worker for the job
    os.kill(supervisor, signal.SIGKILL)
    end = time.monotonic() + 5
    while any(Path(f"/proc/{child}/exe").exists() for child in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}/exe").exists() for child in children)


def test_no_descriptor_process_or_file_is_left_by_a_long_batch(box):
    """Two hundred programs later the worker holds what it held before."""
    def held():
        pids = workers_of(box)
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids] + [len(os.listdir("/proc/self/fd"))]

    box.check([(INC, ["assert inc(1) == 2"])] * 20)
    before = sorted(held())
    box.check([(INC + "open('left', 'w').write('x')\n", ["assert inc(1) == 2"])] * 200)
    assert all(now <= then for now, then in zip(sorted(held()), before, strict=True))
    assert value(box, "import os\ndef f():\n    return os.listdir('.')\n", "f()").value == []


def test_a_program_has_one_descriptor_beside_the_standard_ones():
    """A trainer with many files open once gave its own socket to programs, for its number was above those closed."""
    files = [open(os.devnull) for _ in range(300)]
    program = """
import os
def is_open(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False
def f():
    return [fd for fd in range(2000) if is_open(fd)]
"""
    with Sandbox(workers=1) as box:
        assert value(box, program, "f()").value == [0, 1, 2, 3]
        assert value(box, "import numpy\n" + program, "f()").value == [0, 1, 2, 3]
    for file in files:
        file.close()


def test_the_worker_of_a_sandbox_is_no_copy_of_the_trainer(box):
    """It is started afresh: no torch, no tasks, no environment of the trainer in it."""
    modules = value(box, "import sys\n", "[m for m in ('torch', 'tasks', 'subprocess') if m in sys.modules]").value
    names = value(box, "import os\n", "list(os.environ)").value
    known = "PATH LANG LC_CTYPE PYTHONHASHSEED OMP_NUM_THREADS OPENBLAS_NUM_THREADS MALLOC_ARENA_MAX HOME TMPDIR"
    assert modules == [] and set(names) <= set(known.split())


def test_standard_input_is_at_its_end_and_the_trainers_is_untouched():
    """`input()` once blocked a run, and took the lines that were typed for the trainer."""
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from sandbox import Sandbox
with Sandbox(workers=1) as box:
    start = time.monotonic()
    print(box.values([("def f():\\n    return input()\\n", ["f()"])])[0][0].error)
    print(repr(box.values([("import sys\\ntext = sys.stdin.read()\\n", ["text"])])[0][0].value))
    print(time.monotonic() - start < 2, sys.stdin.readline())
"""
    done = subprocess.run([sys.executable, "-c", code], input="for the trainer\n", capture_output=True, text=True)
    assert done.stdout.split("\n")[:3] == ["EOFError", "''", "True for the trainer"], done.stderr


def test_the_table_of_layers_names_each_with_its_state_and_its_meaning():
    done = subprocess.run([sys.executable, str(ROOT / "sandbox.py")], capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(sandbox.MEANING) == 10
    for line, layer in zip(sorted(lines), sorted(sandbox.MEANING), strict=True):
        assert line.startswith(layer) and line.endswith(sandbox.MEANING[layer])
        assert " active " in line or " missing: " in line


def test_settings_travel_as_json(box):
    assert json.loads(json.dumps(box.settings)) == box.settings
