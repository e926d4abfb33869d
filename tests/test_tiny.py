"""The embedded default: its questions are sound and kept apart, its files small, its build repeatable.

Our own programs and asserts are run here as they are: they come from tiny/build.py, not from a model.
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

import tasks
from model import Qwen2, Tokenizer
from tasks import extract_tests, load_questions

TINY = Path(__file__).resolve().parents[1] / "tiny"
SPLITS = ("train", "tune", "heldout")
build = pytest.importorskip("tiny.build")


@pytest.fixture(scope="module")
def questions():
    return {split: load_questions(TINY / f"{split}.jsonl.gz") for split in SPLITS}


@pytest.fixture(scope="module")
def hidden(questions):
    return questions["tune"] + questions["heldout"]


def failures(program: str, asserts) -> int:
    """How many of the asserts the program does not survive."""
    space: dict = {}
    exec(program, space)
    count = 0
    for source in asserts:
        try:
            exec(source, space)
        except Exception:
            count += 1
    return count


def test_no_question_is_asked_twice(questions):
    """A question of two splits, or under two names, would make the held-out figures a memory test."""
    everything = [question for split in SPLITS for question in questions[split]]
    assert len(everything) >= 600
    assert len(questions["heldout"]) >= 128 and len(questions["tune"]) >= 36
    assert len({question.prompt for question in everything}) == len(everything)
    assert len({question.id for question in everything}) == len(everything)


def test_splits_share_no_parameters():
    for family in build.FAMILIES:
        splits = build.split_parameters(family)
        drawn = [json.dumps(params) for split in SPLITS for params in splits[split]]
        assert len(set(drawn)) == len(drawn), family.name
        assert all(len(splits[split]) == many for split, many in build.PER_FAMILY.items()), family.name
        assert len(splits["train"]) > build.TRAIN_QUESTIONS, family.name


def test_the_corpora_use_parameters_of_the_train_split_only(hidden):
    """A warm start that had met a held-out question would turn its figures into memory."""
    met = {source.prompt for family in build.sources() for source in family}
    assert len(met) > 1000 and not met & {question.prompt for question in hidden}


def test_families_share_no_template(questions):
    """Twenty and more kinds of problem: no two families have a sentence, a program or a name in common."""
    assert len(build.FAMILIES) >= 20
    for part in ("name", "text", "code"):
        assert len({getattr(family, part) for family in build.FAMILIES}) == len(build.FAMILIES), part
    everything = [question for split in SPLITS for question in questions[split]]
    shapes: dict[str, set[str]] = {}
    for question in everything:  # numbers and letters are parameters, the rest of a program is its template
        body = question.reference.replace(question.entry_point, "f")
        shapes.setdefault("".join(c for c in body if not c.isdigit()), set()).add(question.entry_point)
    assert all(len(names) == 1 for names in shapes.values())


def test_every_family_has_two_to_five_slots():
    for family in build.FAMILIES:
        assert 2 <= len(family.slots) <= 5, family.name
        assert all(len(options.split("|")) >= 2 for options in family.slots.values())
        assert not family.myth or family.myth in family.slots


def test_the_training_file_hides_golden_tests_and_mutants():
    with gzip.open(TINY / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert rows and all(row["hidden"] is None for row in rows)
    assert not any("mutants" in row or "golden" in row for row in rows)


def test_references_pass_their_tests(questions):
    for split in SPLITS:
        for question in questions[split]:
            asserts = question.tests + (question.hidden.golden if question.hidden else ())
            assert failures(question.reference, asserts) == 0, question.id
            assert len(question.tests) == 5


def test_golden_tests_hold_edges_and_kill_every_mutant(hidden):
    for question in hidden:
        assert len(set(question.hidden.golden)) >= 10, question.id
        assert question.hidden.mutants, question.id
        for mutant in question.hidden.mutants:
            assert failures(mutant, question.hidden.golden) > 0, (question.id, mutant)


def test_bland_tests_kill_some_mutants_but_not_most_of_what_golden_tests_kill(hidden):
    """The five shipped tests are a fair reward (35 % of the mutants and more) that leaves room for better tests."""
    killed = [failures(mutant, question.tests) > 0 for question in hidden for mutant in question.hidden.mutants]
    assert 0.35 <= sum(killed) / len(killed) <= 0.65


def test_every_assert_is_one_that_replies_may_use(hidden):
    for question in hidden:
        for source in question.tests + question.hidden.golden:
            (test,) = extract_tests(source, question.entry_point, 1)
            assert test is not None, source


def test_all_files_together_are_small():
    files = [path for path in TINY.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= 12 * 2**20


def test_questions_and_tokenizer_are_rebuilt_byte_for_byte(tmp_path):
    build.build_questions(tmp_path)
    build.build_tokenizer(tmp_path)
    for name in ("train.jsonl.gz", "tune.jsonl.gz", "heldout.jsonl.gz"):
        assert (tmp_path / name).read_bytes() == (TINY / name).read_bytes(), name
    for role in ("coder", "tester"):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (tmp_path / name).read_bytes() == (TINY / role / name).read_bytes(), f"{role}/{name}"


@pytest.mark.parametrize("role", ["coder", "tester"])
def test_checkpoints_load_and_know_their_own_corpus(role):
    """Each model finds its corpus far likelier than chance: the saved weights are the trained ones."""
    import torch
    from torch.nn.functional import cross_entropy

    model, tokenizer = Qwen2.from_pretrained(TINY / role), Tokenizer.from_pretrained(TINY / role)
    assert len(tokenizer) <= model.config.vocab_size and tokenizer.end in tokenizer.eos_ids
    corpus = build.coder_corpus(tokenizer) if role == "coder" else build.tester_corpus(tokenizer, 5)
    losses = []
    for _ in range(8):
        ids, weights = next(corpus)
        reply = torch.tensor(weights[1:]) > 0
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0, :-1]
        losses.append(cross_entropy(logits[reply], torch.tensor(ids[1:])[reply]).item())
    assert sum(losses) / len(losses) < 1.5


def test_a_warm_start_of_two_steps_writes_checkpoints_of_the_same_shape(tmp_path, monkeypatch):
    """The build is run so rarely that it would break unseen."""
    for name in ("CODER_STEPS", "LONG_STEPS", "SHORT_STEPS"):
        monkeypatch.setattr(build, name, 2)
    build.build_coder(tmp_path / "coder")
    build.build_tester(tmp_path / "tester")
    for role in ("coder", "tester"):
        made, shipped = Qwen2.from_pretrained(tmp_path / role), Qwen2.from_pretrained(TINY / role)
        assert replace(made.config, extra={}) == replace(shipped.config, extra={})
        assert {n: p.shape for n, p in made.named_parameters()} == {n: p.shape for n, p in shipped.named_parameters()}


def test_the_tokenizer_keeps_text_and_single_digits(hidden):
    """What goes in comes out, a suite of five is short, and no token holds two digits or two letters of a string."""
    tokenizer = Tokenizer.from_pretrained(TINY / "tester")
    lengths = []
    for question in hidden:
        suite = "\n".join(question.tests)
        ids = tokenizer.encode(suite)
        lengths.append(len(ids))
        assert tokenizer.decode(ids) == suite
        assert tokenizer.decode(tokenizer.encode(question.reference)) == question.reference
        assert max(sum(c.isdigit() for c in tokenizer.decode([i])) for i in ids) <= 1
    assert sum(lengths) / len(lengths) <= 45


def test_the_corpora_use_the_prompts_of_training(questions):
    """The warm start and the trainer must frame a question alike, or the first step meets strangers."""
    tokenizer = Tokenizer.from_pretrained(TINY / "coder")
    question = questions["train"][0]
    program = "def f(x):\n    return x"
    assert build.chat(tokenizer, question.prompt) == tokenizer.encode_chat(tasks.coder_messages(question, "plain"))
    shown = tokenizer.encode_chat(tasks.tester_messages(question, program, 5, "plain"))
    assert build.chat(tokenizer, f"{question.prompt}\n{program}") == shown
    unseen = tokenizer.encode_chat(tasks.tester_messages(question, None, 5, "plain"))
    assert build.chat(tokenizer, f"{question.prompt}\ntest") == unseen
