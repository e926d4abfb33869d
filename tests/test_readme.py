"""What the README says that can be run or counted."""

import re
import sys
import types
from pathlib import Path

import pytest

from run import memory_bytes
from tasks import load_questions

ROOT = Path(__file__).parents[1]
README, MEASURED, DATA = ((ROOT / name).read_text() for name in ("README.md", "docs/measurements.md", "docs/data.md"))
SIZES = {"0.5B": 494_032_768, "1.5B": 1_543_714_304, "3B": 3_085_938_688, "7B": 7_615_616_512}


def test_the_kodcode_block_writes_questions_that_load(tmp_path, monkeypatch):
    row = {"question_id": "K1", "question": "Add one to x.", "solution": "def inc(x):\n    return x + 1\n",
           "test": "from solution import inc\n\ndef test_one():\n    assert inc(1) == 2\n    assert inc(2) > 2\n",
           "test_info": [{"function_name": "inc"}]}
    two = {**row, "question_id": "K2", "test_info": [{"function_name": "inc"}, {"function_name": "dec"}]}
    none, empty = {**row, "question_id": "K3", "test_info": None}, {**row, "question_id": "K4", "test_info": []}
    stub = types.ModuleType("datasets")
    stub.load_dataset = lambda name, split: [row, two, none, empty]
    monkeypatch.setitem(sys.modules, "datasets", stub)
    monkeypatch.chdir(tmp_path)
    block = next(b for b in re.findall(r"```python\n(.*?)```", DATA, re.S) if "KodCode" in b)
    exec(block, {})
    (question,) = load_questions("kodcode.jsonl")
    assert (question.id, question.entry_point, question.tests) == ("K1", "inc", ("assert inc(1) == 2",))
    assert question.reference == row["solution"] and "inc" in question.prompt


@pytest.mark.parametrize("size", SIZES)
def test_the_memory_table_is_the_formula(size):
    cells = next(line for line in MEASURED.splitlines() if line.startswith(f"| {size} |")).split("|")[3:6]
    n = SIZES[size]
    want = [memory_bytes(n, n, 2, False, 1), memory_bytes(n, n, 2, True, 1), 2 * n * (2 + 4 + 8)]
    assert [float(cell.split()[0]) for cell in cells] == pytest.approx([w / 2**30 for w in want], abs=0.06)


def test_the_reading_order_names_every_module():
    modules = {path.name for path in ROOT.glob("*.py")}
    assert modules == set(re.findall(r"^\| `(\w+\.py)` \|", README, re.M))


def test_links_between_the_pages_lead_somewhere():
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            name, _, anchor = target.partition("#")
            if not target.startswith("http"):
                text = (page.parent / name).read_text() if name else page.read_text()
                heads = [head.strip("# ").lower().replace(" ", "-") for head in re.findall(r"^#+ .*", text, re.M)]
                assert not anchor or anchor in heads
