"""The Mistake Book: per question, the tests that programs failed, replayed in later steps (T_hist).

The paper's rule: a failure adds one to a test's count, a pass of the replayed test takes one away,
at zero it is gone. Ours: a capacity per question, eviction, a file that is written atomically and
checked when it is read.

    book = MistakeBook()
    book.update("q1", failed=[test], passed=[])
    book.replay("q1", k=8)
"""

import json
import os
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path

from asserts import Test


class MistakeBook:
    """Counts of failures by question id and test; the older tests of a question come first."""

    def __init__(self, capacity: int = 64):
        if type(capacity) is not int or capacity < 1:
            raise ValueError(f"capacity, of tests per question, is at least 1, not {capacity!r}")
        self.capacity = capacity
        self.counts: dict[str, dict[Test, int]] = {}

    def __len__(self) -> int:
        """The tests of all questions."""
        return sum(len(tests) for tests in self.counts.values())

    def replay(self, question_id: str, k: int) -> list[Test]:
        """At most k tests of the question, highest count first; of equal counts the older first."""
        tests = self.counts.get(question_id, {})
        return sorted(tests, key=lambda test: -tests[test])[: max(k, 0)]

    def update(
        self, question_id: str, failed: Iterable[Test], passed: Iterable[Test]
    ) -> tuple[int, int]:
        """Take one count per item of `passed`, then add one per item of `failed`; over the capacity
        the lowest count goes, the oldest first: a full book learns. Returns how many tests are new,
        and how many are gone."""
        tests = self.counts.setdefault(question_id, {})
        before = set(tests)
        for test in passed:
            if tests.get(test) == 1:
                del tests[test]
            elif test in tests:
                tests[test] -= 1
        for test in failed:
            tests[test] = tests.get(test, 0) + 1
        excess = max(len(tests) - self.capacity, 0)
        for test in sorted(tests, key=lambda test: tests[test])[:excess]:  # stable: oldest first
            del tests[test]
        return len(tests.keys() - before), len(before - tests.keys())

    def evict(self, question_id: str, tests: Iterable[Test]) -> int:
        """Drop tests of a question, whatever their count. Returns how many were there."""
        stored = self.counts.get(question_id, {})
        return sum(stored.pop(test, None) is not None for test in tests)

    def save(self, path: str | Path) -> None:
        """Write the book as JSON; a crash at any moment leaves the old file or the new, whole."""
        questions = {}
        for name, tests in sorted(self.counts.items()):
            if tests:
                questions[name] = [[*astuple(test), count] for test, count in tests.items()]
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump({"capacity": self.capacity, "questions": questions}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)

    @classmethod
    def load(cls, path: str | Path) -> "MistakeBook":
        """The book that `save` wrote; ValueError names the file and what is wrong with it."""
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
            book = cls(stored["capacity"])
            for name, rows in stored["questions"].items():
                book.counts[name] = dict(_row(row) for row in rows)
                if not 0 < len(book.counts[name]) == len(rows) <= book.capacity:
                    raise ValueError(f"question {name!r} has no test, one twice or too many")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"{path} is not a Mistake Book: {error!r}") from error
        return book


def _row(row: list) -> tuple[Test, int]:
    call, expected, via, tolerance, count = row
    texts = type(via) is list and all(type(text) is str for text in (call, expected, *via))
    numbers = type(count) is int and count > 0 and type(tolerance) in (float, int, type(None))
    if not texts or not numbers:
        raise ValueError(f"a test is [call, expected, via, tolerance, count], not {row!r}")
    return Test(call, expected, tuple(via), None if tolerance is None else float(tolerance)), count
