"""The Mistake Book: counts, order of replay, capacity, eviction, and a file that survives everything."""

import json
import os

import pytest

from mistake_book import MistakeBook
from tasks import Test

A, B, C, D = (Test(f"f({i})", str(i)) for i in range(4))


def test_replay_is_by_count_and_the_older_comes_first_where_counts_are_equal():
    book = MistakeBook()
    book.update("q", [A, B, C, C], [])
    book.update("q", [D, D], [])
    assert book.replay("q", 9) == [C, D, A, B]
    assert book.replay("q", 3) == [C, D, A] and book.replay("q", 0) == []
    assert book.replay("elsewhere", 3) == []


def test_a_pass_takes_one_count_and_the_last_one_takes_the_test():
    book = MistakeBook()
    book.update("q", [A, A, A, B], [])
    assert book.update("q", [], [A, B, C]) == (0, 1)  # C was never in the book
    assert book.replay("q", 9) == [A]
    book.update("q", [], [A, A, A, A])  # more passes than failures
    assert book.replay("q", 9) == [] and len(book) == 0
    book.update("q", [A], [A])
    assert book.replay("q", 9) == [A]


def test_removals_come_before_additions():
    """The other order would let a pass in the same step take away a failure that has just been found."""
    book = MistakeBook()
    book.update("q", [A], [])
    book.update("q", [A], [A, A])  # gone at zero, then found again
    assert book.replay("q", 9) == [A]
    book.update("q", [], [A])
    assert book.replay("q", 9) == []


def test_a_test_that_comes_back_is_the_youngest():
    book = MistakeBook()
    book.update("q", [A, B], [])
    book.update("q", [A], [A])
    assert book.replay("q", 9) == [B, A]


def test_counts_of_new_and_gone_tests_are_net():
    book = MistakeBook(capacity=2)
    assert book.update("q", [A, B, B], []) == (2, 0)
    assert book.update("q", [C], [A]) == (1, 1)
    assert book.update("q", [B], [B, B]) == (0, 0)  # gone and back in one step
    assert book.update("q", [D], []) == (1, 1)  # in the place of the oldest of the lowest count
    assert len(book) == 2


def test_over_the_capacity_the_lowest_count_goes_and_the_oldest_of_these_first():
    book = MistakeBook(capacity=2)
    book.update("q", [A, B, C], [])
    assert book.replay("q", 9) == [B, C]
    book.update("q", [C, C], [])
    assert book.replay("q", 9) == [C, B]
    book.update("r", [A, B, C], [])  # the bound is per question
    assert len(book) == 4


def test_a_full_book_learns_new_mistakes():
    """The newest of the lowest count went: of a second wave of mistakes nothing stayed, however often they were met."""
    first, second = [[Test(f"f({i})", "0") for i in range(start, start + 64)] for start in (0, 64)]
    book = MistakeBook(capacity=64)
    book.update("q", [*first, *first[:10]], [])  # ten of them were met twice
    book.update("q", second, [])
    kept = set(book.replay("q", 64))
    assert kept == {*first[:10], *second[10:]}


def test_the_form_of_an_assert_is_part_of_its_identity():
    book = MistakeBook()
    forms = [A, Test(A.call, A.expected, ("sorted",)), Test(A.call, A.expected, (), 0.1), Test(A.call, "9")]
    book.update("q", forms, [])
    book.update("q", [], [forms[1]])
    assert book.replay("q", 9) == [forms[0], forms[2], forms[3]]


def test_evicted_tests_are_gone_whatever_their_count():
    book = MistakeBook()
    book.update("q", [A, A, B], [])
    assert book.evict("q", [A, C]) == 1 and book.replay("q", 9) == [B]
    assert book.evict("q", [B]) == 1 and book.evict("q", [B]) == 0 and book.evict("elsewhere", [A]) == 0
    assert len(book) == 0


HARD = [
    Test("f('it\\'s \"quoted\"\\n', '\\\\')", "'\\''", ("{}['\\n']", "str")),
    Test("f('''a\nb''')", '"\\\\"', (), 1e-9),
    Test("f('é\ud800\u2028\0')", "float('nan')"),
    Test("", ""),
]


def test_hard_texts_counts_and_ages_survive_the_file_and_can_be_removed_after_it(tmp_path):
    book = MistakeBook(capacity=7)
    book.update('q"\\\n/é', [*HARD, HARD[2]], [])
    book.update("r", [A], [])
    book.save(tmp_path / "book.json")
    again = MistakeBook.load(str(tmp_path / "book.json"))
    assert again.capacity == 7 and len(again) == 5
    assert again.replay('q"\\\n/é', 9) == [HARD[2], HARD[0], HARD[1], HARD[3]]
    assert again.update('q"\\\n/é', [], [*HARD, HARD[2]]) == (0, 4)
    again.save(tmp_path / "book.json")
    assert len(MistakeBook.load(tmp_path / "book.json")) == 1
    assert os.listdir(tmp_path) == ["book.json"]


def test_a_tolerance_given_as_an_integer_is_read_back_as_a_float(tmp_path):
    book = MistakeBook()
    book.update("q", [Test("f(0)", "0", (), 1)], [])
    book.save(tmp_path / "book.json")
    (test,) = MistakeBook.load(tmp_path / "book.json").replay("q", 1)
    assert test == Test("f(0)", "0", (), 1.0) and type(test.tolerance) is float


def test_the_same_updates_write_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        book = MistakeBook()
        for question in "xy":
            book.update(question, [A, B, B], [])
            book.update(question, [C], [A])
        book.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert str(tmp_path) not in (tmp_path / "a").read_text()


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_save_that_breaks_off_leaves_the_old_file_whole(tmp_path, monkeypatch, broken):
    book, path = MistakeBook(), tmp_path / "book.json"
    book.update("q", [A], [])
    book.save(path)

    def crash(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, broken, crash)
    book.update("q", [B, C], [])
    with pytest.raises(OSError, match="no space"):
        book.save(path)
    assert MistakeBook.load(path).replay("q", 9) == [A]


ROW = ["f(0)", "0", [], None, 1]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", "{}"]
    + [
        json.dumps({"capacity": 2, "questions": questions})
        for questions in (
            None,
            [],
            {"q": []},
            {"q": [ROW, ROW]},
            {"q": [ROW, ["f(1)", *ROW[1:]], ["f(2)", *ROW[1:]]]},
            {"q": [ROW[:4]]},
            {"q": [[*ROW[:4], 0]]},
            {"q": [[*ROW[:4], True]]},
            {"q": [[*ROW[:4], 1.5]]},
            {"q": [[0, *ROW[1:]]]},
            {"q": [["f(0)", None, *ROW[2:]]]},
            {"q": [["f(0)", "0", "abs", None, 1]]},
            {"q": [["f(0)", "0", [1], None, 1]]},
            {"q": [["f(0)", "0", [], "x", 1]]},
            {"q": [["f(0)", "0", [], True, 1]]},
            {"q": [["f(0)", "0", [], 10**400, 1]]},
        )
    ]
    + [json.dumps({"capacity": capacity, "questions": {}}) for capacity in (0, "2", None, True)],
)
def test_a_file_that_is_no_book_is_refused_by_name(tmp_path, text):
    path = tmp_path / "book.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="book.json is not a Mistake Book"):
        MistakeBook.load(path)


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "3", True])
def test_a_capacity_below_one_is_refused(capacity):
    with pytest.raises(ValueError, match="capacity"):
        MistakeBook(capacity)
