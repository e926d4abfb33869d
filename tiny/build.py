"""Everything the embedded default needs, rebuilt from nothing: questions, tokenizer and two warm-started models.

Questions.  A family is one small function over an int, a list or a string: a sentence, a program with slots, and two
kinds of inputs. The first option of a slot is right, the others are realistic slips (`>` for `>=`, a missing guard, an
off-by-one, first for last). A question is a family with parameters; parameters are split into train, tune and held-out.
The mutants of a question are its one-slot slips that fail its golden tests. Ordinary ("bland") inputs keep away from
bounds, ties and empty values, edge inputs seek them: golden tests are of both kinds, the five shipped tests are bland.

Warm start.  The coder learns from programs of the train questions in which every slot may be slipped, and in which one
slot of most families (its "myth") is slipped more often than not. The tester learns suites that are mostly bland, a
minority of them careful, some answers wrong. Neither corpus sees golden tests, or a tune or held-out question.

Run:  python -m tiny.build              everything, into this folder; prints its time (about 40 minutes of one core)
      python -m tiny.build questions    one part of it: questions (seconds), coder or tester
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import operator
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F
from tokenizers import decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models

import tasks
from model import Config, Qwen2, Tokenizer, attention

HERE = Path(__file__).parent
SEED = 1
HELDOUT_SEED = 202  # draws the held-out parameters: when the recipe changes after a look at them, take a new number
PER_FAMILY = {"tune": 4, "heldout": 7}  # parameter combinations of one family in these splits; train has the rest
TRAIN_QUESTIONS = 16  # of one family in the train file; the corpora of the warm start use all of train's parameters
BLAND_TESTS, GOLDEN_BLAND, GOLDEN_EDGE = 5, 3, 9

# ---------------------------------------------------------------- families

RELATIONS = {"above": "> >=", "at least": ">= >", "below": "< <=", "at most": "<= <"}  # right, slip
HOLDS = {"above": operator.gt, "at least": operator.ge, "below": operator.lt, "at most": operator.le}
DIGITS, LETTERS, MARKS = range(10), "abcdefghijkl", "stuvwxyz+-*/#=.!"
DEFAULTS = (None, 0, -1, -2, -3)  # what a function returns where there is nothing to return


@dataclass(frozen=True)
class Family:
    """One kind of question. `{x}` in `text` and `slots` is a parameter or derived value, in `code` a slot as well."""

    name: str  # also the entry point
    kind: str  # its argument: ints, word or int
    text: str
    axes: dict  # parameter -> its values
    code: str  # body of the right program, slots open
    slots: dict[str, str]  # slot -> options separated by "|", the right one first
    myth: str = ""  # the slot whose first slip is this family's misconception
    hot: tuple[str, ...] = ("k",)  # parameters whose values are special as (elements of) inputs
    plain: str = "none"  # hot values in bland inputs: none, once, some or at the ends
    size: str = ""  # parameter whose value is special as a length
    where: Callable = lambda p: True  # parameter combinations that make sense
    more: Callable = lambda p: {}  # derived values

    @property
    def argument(self) -> str:
        return {"ints": "xs", "word": "s", "int": "n"}[self.kind]


def names(keys: str, *values: object) -> dict:
    """names("x y", 1, 2) -> {"x": 1, "y": 2}"""
    return dict(zip(keys.split(), values, strict=True))


def relation(word: str) -> dict:
    return names("op slip", *RELATIONS[word].split())


def flip(first: bool, keys: str, *values: object) -> dict:
    """The two values under the two keys, exchanged unless `first`."""
    return names(keys, *(values if first else values[::-1]))


THRESHOLD = "{op} {k}|{slip} {k}"
FAMILIES = (
    Family("count_if", "ints", "Count the numbers in xs that are {rel} {k}.", {"rel": RELATIONS, "k": range(1, 10)},
        "total = 0\nfor x in {items}:\n    if x {cmp}:\n        total += 1\nreturn total",
        {"cmp": THRESHOLD, "items": "xs|xs[1:]|set(xs)"},
        myth="cmp"),
    Family("keep_if", "ints", "Keep the numbers of xs that are {rel} {k}, but drop {m}.",
        {"rel": RELATIONS, "k": range(2, 9), "m": DIGITS},
        "return [x for x in {items} if x {cmp}{drop}]",
        {"drop": " and x != {m}|", "cmp": THRESHOLD, "items": "xs|xs[1:]"},
        myth="drop", hot=("k", "m"), where=lambda p: p["m"] != p["k"] and HOLDS[p["rel"]](p["m"], p["k"])),
    Family("first_or", "ints", "Return the first number in xs that is {rel} {k}, or {d} if there is none.",
        {"rel": RELATIONS, "k": range(2, 9), "d": DEFAULTS},
        "for x in {items}:\n    if x {cmp}:\n        return x\nreturn {default}",
        {"default": "{d}|{other}|xs[-1]", "cmp": THRESHOLD, "items": "xs|reversed(xs)|xs[1:]"},
        myth="default", more=lambda p: {"other": -1 if p["d"] is None else None}),
    Family("find_pos", "ints", "Return the position of the {end} {k} in xs, or {d} if there is none.",
        {"end": ("first", "last"), "k": DIGITS, "d": (*DEFAULTS, 7, 8, 9)},
        "for i in {order}:\n    if xs[i] == {k}:\n        return i\nreturn {default}",
        {"order": "{right}|{wrong}|{short}", "default": "{d}|len(xs)"},
        myth="order", plain="once",
        more=lambda p: flip(p["end"] == "first", "right wrong", "range(len(xs))", "reversed(range(len(xs)))")
        | {"short": "range(len(xs) - 1)" if p["end"] == "first" else "reversed(range(1, len(xs)))"}),
    Family("arg_best", "ints", "Find the position of the {best} number in xs, the {end} on a tie; {d} if xs is empty.",
        {"best": ("largest", "smallest"), "end": ("first", "last"), "d": (None, -1, -2, -3, *range(3, 10))},
        "{guard}best = 0\nfor i in range(1, {stop}):\n    if xs[i] {cmp} xs[best]:\n        best = i\nreturn best",
        {"cmp": "{op}|{slip}", "guard": "if not xs:\n    return {d}\n|", "stop": "len(xs)|len(xs) - 1"},
        myth="cmp", hot=(),
        more=lambda p: relation({"largest first": "above", "largest last": "at least", "smallest first": "below",
                                 "smallest last": "at most"}[f"{p['best']} {p['end']}"])),
    Family("nth_or", "ints", "Return number {k} of xs counted from the {end}, or {d} if xs has fewer.",
        {"k": (1, 2, 3), "end": ("start", "end"), "d": (*DEFAULTS, *range(1, 10))},
        "if len(xs) {cmp} {k}:\n    return {default}\nreturn xs[{at}]",
        {"at": "{right}|{off}|{wrong}", "cmp": "<|<=", "default": "{d}|xs[-1:]"},
        myth="at", hot=(), size="k",
        more=lambda p: flip(p["end"] == "start", "right wrong", p["k"] - 1, -p["k"])
        | {"off": p["k"] if p["end"] == "start" else 1 - p["k"]}),
    Family("skip_take", "ints", "Skip the first {a} numbers of xs and return the next {b}, or {d} if nothing is left.",
        {"a": (1, 2), "b": (1, 2), "d": (*DEFAULTS, *range(1, 10))},
        "return xs[{start}:{stop}]{guard}",
        {"stop": "{c}|{b}", "start": "{a}|{f}", "guard": " or {d}|"},
        myth="stop", hot=(), size="c",
        more=lambda p: {"c": p["a"] + p["b"], "f": p["a"] - 1}),
    Family("check_all", "ints", "Return True if {every} number in xs is {rel} {k}.",
        {"every": ("every", "any", "no"), "rel": RELATIONS, "k": range(2, 9)},
        "return {test}(x {cmp} for x in {items})",
        {"cmp": "{op} {k}|{slip} {k}", "test": "{right}|{wrong}|{guarded}", "items": "xs|xs[1:]"},
        more=lambda p: names("right wrong guarded", *{
            "every": ("all", "any", "xs != [] and all"), "any": ("any", "all", "not any"),
            "no": ("not any", "not all", "xs != [] and not any")}[p["every"]])),
    Family("cap_each", "ints", "Replace every number of xs that is {rel} {k} by {m}.",
        {"rel": RELATIONS, "k": range(2, 9), "m": DIGITS},
        "out = []\nfor x in {items}:\n    if x {cmp}:\n        x = {new}\n    out.append(x)\nreturn out",
        {"cmp": THRESHOLD, "new": "{m}|{k}", "items": "xs|xs[1:]"},
        where=lambda p: p["m"] != p["k"]),
    Family("swap_value", "ints", "Turn every {a} in xs into {b} and every {b} into {a}.", {"a": DIGITS, "b": DIGITS},
        "return [{one}{two}x for x in {items}]",
        {"two": "{a} if x == {b} else |", "one": "{b} if x == {a} else |", "items": "xs|xs[1:]"},
        myth="two", hot=("a", "b"), plain="once", where=lambda p: p["a"] < p["b"]),
    Family("has_both", "ints", "Return True if xs holds {a} {join} {b}.",
        {"a": DIGITS, "b": DIGITS, "join": ("and also", "or else", "but not")},
        "return {a} in {items} {word} {b} {inside} xs",
        {"word": "{right}|{wrong}", "inside": "{good}|{bad}", "items": "xs|xs[:-1]"},
        hot=("a", "b"), plain="some", where=lambda p: p["a"] < p["b"],
        more=lambda p: flip(p["join"] != "or else", "right wrong", "and", "or")
        | flip(p["join"] != "but not", "good bad", "in", "not in")),
    Family("cut_at", "ints", "List the numbers of xs up to the first that is {rel} {k}, {with_it} it.",
        {"rel": RELATIONS, "k": range(2, 9), "with_it": ("with", "without")},
        "out = []\nfor x in {items}:\n{loop}return out",
        {"loop": "{right}|{wrong}", "items": "xs|xs[1:]", "cmp": THRESHOLD},
        myth="loop",
        more=lambda p: flip(p["with_it"] == "with", "right wrong",
                            "    out.append(x)\n    if x {cmp}:\n        break\n",
                            "    if x {cmp}:\n        break\n    out.append(x)\n")),
    Family("best_of", "ints", "Return the {best} number in xs that is {rel} {k}, or {d} if there is none.",
        {"best": ("largest", "smallest"), "rel": RELATIONS, "k": range(3, 8), "d": DEFAULTS},
        "return {pick}([x for x in xs if x {cmp}]{default})",
        {"cmp": THRESHOLD, "pick": "{right}|{wrong}", "default": ", default={d}|"},
        more=lambda p: flip(p["best"] == "largest", "right wrong", "max", "min")),
    Family("count_of", "word", "Count the letters of s that are '{a}' or '{b}'.",
        {"a": LETTERS, "b": LETTERS},
        "return sum(c in {these} for c in {items})",
        {"items": "s|set(s)|s[1:]", "these": "'{a}{b}'|'{a}'"},
        myth="items", hot=("a", "b"), plain="some", where=lambda p: p["a"] < p["b"]),
    Family("has_ends", "word", "Return True if s starts with '{a}' {word} ends with '{b}'.",
        {"a": LETTERS, "b": LETTERS, "word": ("and", "or")},
        "return {first} == '{a}' {join} {last} == '{b}'",
        {"first": "s[:1]|s[0]|s[1:2]", "join": "{word}|{wrong}", "last": "s[-1:]|s[-2:-1]"},
        myth="first", hot=("a", "b"), plain="ends",
        more=lambda p: {"wrong": {"and": "or", "or": "and"}[p["word"]]}),
    Family("trim", "word", "Remove every '{a}' and '{b}' from the {end} of s.",
        {"a": LETTERS, "b": LETTERS, "end": ("start", "end")},
        "{loop} {guard}s[{at}] in {these}:\n    s = s[{rest}]\nreturn s",
        {"loop": "while|if", "guard": "s and |", "these": "'{a}{b}'|'{a}'|'{b}'"},
        myth="loop", hot=("a", "b"), plain="ends", where=lambda p: p["a"] < p["b"],
        more=lambda p: names("at rest", 0, "1:") if p["end"] == "start" else names("at rest", -1, ":-1")),
    Family("shorten", "word", "If s has {many} {k} letters, cut it to {m} and add '{c}'.",
        {"many": ("more than", "at least"), "k": (2, 3, 4), "m": (1, 2, 3), "c": MARKS},
        "if len(s) {cmp} {k}:\n    return s[:{cut}]{tail}\nreturn s",
        {"cmp": "{right}|{wrong}", "cut": "{m}|{less}", "tail": " + '{c}'|"},
        myth="cmp", hot=(), size="k", where=lambda p: p["m"] <= p["k"],
        more=lambda p: {"less": p["m"] - 1} | flip(p["many"] == "more than", "right wrong", ">", ">=")),
    Family("pad", "word", "Add '{c}' on the {side} of s until it has {k} letters.",
        {"c": MARKS, "side": ("left", "right"), "k": (3, 4)},
        "{loop} len(s) < {length}:\n    s = {added}\nreturn s",
        {"added": "{right}|{wrong}", "loop": "while|if", "length": "{k}|{less}"},
        myth="added", hot=(), size="k",
        more=lambda p: {"less": p["k"] - 1}
        | flip(p["side"] == "left", "right wrong", f"'{p['c']}' + s", f"s + '{p['c']}'")),
    Family("sub_first", "word", "Replace the first '{a}' in s by '{b}'.", {"a": LETTERS, "b": LETTERS},
        "return {items}.replace({what}{count})",
        {"count": ", 1|", "what": "'{a}', '{b}'|'{b}', '{a}'", "items": "s|s[:-1]"},
        myth="count", hot=("a", "b"), plain="once", where=lambda p: p["a"] != p["b"]),
    Family("part_of", "word", "Return the part of s {side} '{c}', or {d} if there is none.",
        {"side": ("before the first", "after the last"), "c": LETTERS, "d": ("s", "'+'", "'-'", "'*'")},
        "{guard}return s[{cut}]",
        {"cut": "{right}|{wrong}|{off}", "guard": "if '{c}' not in s:\n    return {d}\n|"},
        myth="cut", hot=("c",), plain="once",
        more=lambda p: names("right wrong off", *(
            (":s.index('{c}')", ":s.rindex('{c}')", ":s.index('{c}') + 1") if p["side"] == "before the first" else
            ("s.rindex('{c}') + 1:", "s.index('{c}') + 1:", "s.rindex('{c}'):")))),
    Family("more_of", "word", "Return True if s has {many} '{a}' than '{b}'.",
        {"a": LETTERS, "b": LETTERS, "many": ("more", "no fewer")},
        "return {items}.count({x}) {cmp} s.count('{b}')",
        {"cmp": "{right}|{wrong}", "items": "s|s[:-1]", "x": "'{a}'|'{b}'"},
        hot=("a", "b"), plain="some", where=lambda p: p["a"] != p["b"],
        more=lambda p: flip(p["many"] == "more", "right wrong", ">", ">=")),
    Family("clamp", "int", "Limit n to the range from {lo} to {hi}.", {"lo": range(0, 8), "hi": range(5, 16)},
        "if n < {low}:\n    return {bottom}\nif n > {high}:\n    return {top}\nreturn n",
        {"bottom": "{lo}|n", "low": "{lo}|{under}", "high": "{hi}|{over}", "top": "{hi}|{over}"},
        hot=("lo", "hi"), where=lambda p: p["hi"] > p["lo"] + 2,
        more=lambda p: {"under": p["lo"] - 1, "over": p["hi"] + 1}),
    Family("price", "int", "The price is {p} for n up to {a}, {q} for n up to {b}, and {r} above.",
        {"p": (1, 2, 3), "q": (4, 5, 6), "r": (7, 8, 9), "a": (2, 3, 4), "b": (6, 7, 8)},
        "if n {one} {a}:\n    return {p}\nif n {two} {b}:\n    return {mid}\nreturn {r}",
        {"one": "<=|<|>", "two": "<=|<", "mid": "{q}|{p}"},
        myth="one", hot=("a", "b")),
    Family("in_range", "int", "Return True if n lies from {a} to {b}, {a} {first}, {b} {last}.",
        {"a": range(1, 5), "b": range(6, 12), "first": ("included", "excluded"), "last": ("included", "excluded")},
        "return {a} {one} n {two} {b}",
        {"two": "{right}|{wrong}", "one": "{good}|{bad}|>"},
        myth="two", hot=("a", "b"),
        more=lambda p: flip(p["last"] == "included", "right wrong", "<=", "<")
        | flip(p["first"] == "included", "good bad", "<=", "<")),
)


def context(family: Family, params: dict) -> dict:
    """Parameters and everything derived from them."""
    return params | (relation(params["rel"]) if "rel" in params else {}) | family.more(params)


def render(family: Family, params: dict, choice: dict[str, int]) -> str:
    """The family's program with option number choice[slot] (0, the right one, if absent) in every slot."""
    values = {slot: options.split("|")[choice.get(slot, 0)] for slot, options in family.slots.items()}
    values |= context(family, params)
    body = family.code
    while "{" in body:  # options hold slots and parameters themselves
        body = body.format(**values)
    return f"def {family.name}({family.argument}):\n    " + body.replace("\n", "\n    ")


def sentence(family: Family, params: dict) -> str:
    return f"{family.name}({family.argument}): " + family.text.format(**context(family, params))


def combinations(family: Family) -> list[dict]:
    """Every sensible parameter combination, in a fixed order."""
    combos = (dict(zip(family.axes, values, strict=True)) for values in itertools.product(*family.axes.values()))
    return [params for params in combos if family.where(params)]


# ---------------------------------------------------------------- inputs


def bland_items(rng: random.Random, family: Family, pool: list, hot: list, size: int | None) -> list:
    """Two to four distinct elements, none hot unless the family's `plain` says so, of a length that is not special."""
    length = rng.choice([n for n in (2, 3, 4) if n != size] if size else (2, 3, 3))
    items = rng.sample([value for value in pool if value not in hot], length)
    if family.plain == "once":
        items[rng.randrange(length)] = hot[0]
    elif family.plain == "some":
        where = rng.sample(range(length), 2)
        for spot, value in zip(where, hot, strict=True):
            if rng.random() < 0.5:
                items[spot] = value
    elif family.plain == "ends":
        for spot, value in zip((0, -1), hot, strict=True):
            if rng.random() < 0.6:
                items[spot] = value
    return items


def edge_items(rng: random.Random, family: Family, pool: list, hot: list, size: int | None) -> list:
    """Empty, single, at the bound, tied, on one side of it, of a special length, negative."""
    kinds = ["empty"] * 3 + ["single"] + ["tie"] * 3
    kinds += ["hot"] * 6 if hot else ["tie"] * 3
    kinds += ["exact"] * 5 if size else []
    kinds += ["low", "side", "side"] if family.kind == "ints" else []
    kind = rng.choice(kinds)
    if kind == "empty":
        return []
    if kind == "single":
        return [rng.choice(hot or pool)]
    if kind == "exact":
        return rng.sample(pool, max(0, size + rng.choice((-1, 0, 0, 0, 1))))
    items = rng.sample(pool, rng.choice((2, 3, 3)))
    spots = rng.sample(range(len(items)), min(len(items), rng.choice((1, 2, 2))))
    if kind == "side" and hot:
        side = rng.choice((operator.lt, operator.gt))
        return [value for value in items + rng.sample(pool, 4) if side(value, hot[0])][:3]
    wanted = rng.choice((hot, hot[:1]))
    for spot in spots:
        if kind == "hot":
            items[spot] = rng.choice(wanted)
        elif kind == "low":
            items[spot] = -rng.randrange(4)
        else:
            items[spot] = rng.choice((items[0], max(items), min(items)))
    return items


def draw(rng: random.Random, family: Family, params: dict, edge: bool) -> int | str | list[int]:
    """One input of the family's kind: bland or edge."""
    hot = [params[name] for name in family.hot]
    if family.kind == "int":
        near = sorted({value + step for value in hot for step in (-1, 0, 1)})
        if edge:
            return rng.choice(hot + hot + near + [0, -rng.randrange(1, 4)])
        return rng.choice([value for value in range(16) if value not in near])
    pool = list(LETTERS) if family.kind == "word" else list(range(1, 10))
    size = context(family, params)[family.size] if family.size else None
    items = (edge_items if edge else bland_items)(rng, family, pool, hot, size)
    return "".join(items) if family.kind == "word" else items


# ---------------------------------------------------------------- running our own programs


def compile_program(source: str, entry: str) -> Callable:
    """The function of one of the programs above (our own text: no sandbox needed)."""
    space: dict = {}
    exec(source, space)
    return space[entry]


def outcome(function: Callable, value: object) -> object:
    """The value, or the exception's class as a mark equal to no plain value."""
    try:
        return function(value)
    except Exception as error:
        return type(error)


def same(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right


def test_source(entry: str, value: object, answer: object) -> str:
    return f"assert {entry}({value!r}) == {answer!r}"


# ---------------------------------------------------------------- questions


def distinct(rng: random.Random, family: Family, params: dict, edges: list[bool], taken: tuple = ()) -> list:
    """One input per flag, all different, none of `taken`. A pool that runs dry gives an edge input instead."""
    values, seen = [], {repr(value) for value in taken}
    for edge in edges:
        for attempt in range(200):
            value = draw(rng, family, params, edge or attempt > 100)
            if repr(value) not in seen:
                seen.add(repr(value))
                values.append(value)
                break
    return values


def make_question(family: Family, params: dict, split: str, number: int) -> tasks.Question:
    """Reference, bland tests, golden tests (both kinds) and every one-slot slip that fails a golden test."""
    rng = random.Random(f"{SEED}/{family.name}/{params}")
    reference = render(family, params, {})
    right = compile_program(reference, family.name)
    bland = distinct(rng, family, params, [False] * BLAND_TESTS)
    golden = distinct(rng, family, params, [False] * GOLDEN_BLAND + [True] * GOLDEN_EDGE, taken=tuple(bland))
    mutants = []
    for slot, options in family.slots.items():
        for option in range(1, len(options.split("|"))):
            source = render(family, params, {slot: option})
            slip = compile_program(source, family.name)
            if source not in mutants and any(not same(outcome(slip, value), right(value)) for value in golden):
                mutants.append(source)
    golden_tests, bland_tests = (tuple(test_source(family.name, value, right(value)) for value in values)
                                 for values in (golden, bland))
    hidden = tasks.Hidden(golden_tests, tuple(mutants), family.name, split)
    return tasks.Question(
        f"{family.name}/{split}/{number}", sentence(family, params), family.name, reference, bland_tests, hidden)


def split_parameters(family: Family) -> dict[str, list[dict]]:
    """Parameter combinations of the splits: tune first, then held-out by its own seed; train has the rest."""
    left, chosen = combinations(family), {}
    for split, seed in (("tune", SEED), ("heldout", HELDOUT_SEED), ("train", SEED)):
        chosen[split] = random.Random(f"{seed}/{split}/{family.name}").sample(left, PER_FAMILY.get(split, len(left)))
        left = [params for params in left if params not in chosen[split]]
    return chosen


def build_questions(out: Path) -> None:
    """Writes train, tune and heldout.jsonl.gz; the train file carries no hidden part."""
    for split in ("train", "tune", "heldout"):
        questions = [make_question(family, params, split, i) for family in FAMILIES
                     for i, params in enumerate(split_parameters(family)[split][:TRAIN_QUESTIONS])]
        if split == "train":
            questions = [dataclasses.replace(question, hidden=None) for question in questions]
        tasks.save_questions(out / f"{split}.jsonl.gz", questions)


# ---------------------------------------------------------------- tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PIECES = "|".join((  # a token never reaches beyond its piece
    r"\n?assert \w+\([\['] ?",  # an assert up to its argument ...
    r"\n?assert \w+\(",
    r"[\]']?\) == [\[']?",  # ... and from there to the answer
    r"\n?def \w+\(\w+\):\n    \w+(?: (?=[\d']))?",
    r"\w+\(\w+\): ",  # a question's first words
    r"(?:system|user|assistant)\n",
    r"[\w+*-](?=[\w+*-]*')",  # letters of a string stand alone
    r"(?:, )?-?\d",  # so do digits
    r"\n +\w+(?: (?=[\d']))?",
    r" ?[A-Za-z_]+(?: (?=[\d']))?",
    r" ?[^\w\s']+ ?",
    r"\s+|'",
))
VOCABULARY = 1024


def corpus_texts() -> Iterator[str]:
    """Questions, programs and asserts of the train split: what the tokenizer learns its merges from."""
    for source in (source for family in sources() for source in family[:TRAIN_QUESTIONS]):
        rng = random.Random(f"{SEED}/tokenizer/{source.prompt}")
        yield from [f"user\n{source.prompt}\ntest", "assistant\n"] * 8
        for _ in range(8):
            program = source.program(rng)
            yield f"\n{program}"
            yield program
        for value in distinct(rng, source.family, source.params, [i % 4 == 0 for i in range(12)]):
            assertion = test_source(source.family.name, value, source.right(value))
            yield f"{assertion}\n{assertion}"


def build_tokenizer(out: Path) -> None:
    """Byte-level BPE with the pieces above, and the ChatML frame without a default system turn."""
    tokenizer = tokenizers.Tokenizer(tokenizer_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(PIECES), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus_texts(), trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False))
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>", "clean_up_tokenization_spaces": False, "model_max_length": 512,
                "chat_template": TEMPLATE}
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


# ---------------------------------------------------------------- corpora of the warm start

SLIP_RATE, MYTH_RATE = 0.1, 0.62  # of any slot, of a family's myth
CAREFUL_SHARE, CAREFUL_EDGES, PLAIN_EDGES = 0.25, 0.7, 0.12  # careful suites, share of edge inputs in both sorts
WRONG_RATE = 0.05  # answers that a slipped program gives, or none does
BLACK_BOX_SHARE = 0.1  # tester prompts that hide the program


@dataclass(frozen=True)
class Source:
    """A train question as a source of programs and asserts."""

    family: Family
    params: dict
    prompt: str

    def program(self, rng: random.Random) -> str:
        choice = {}
        for slot, options in self.family.slots.items():
            if rng.random() < (MYTH_RATE if slot == self.family.myth else SLIP_RATE):
                choice[slot] = 1 if slot == self.family.myth else rng.randrange(1, len(options.split("|")))
        return render(self.family, self.params, choice)

    @functools.cached_property
    def right(self) -> Callable:
        return compile_program(render(self.family, self.params, {}), self.family.name)

    @functools.cached_property
    def slips(self) -> list[Callable]:
        """Every program with one slot slipped."""
        return [compile_program(render(self.family, self.params, {slot: option}), self.family.name)
                for slot, options in self.family.slots.items() for option in range(1, len(options.split("|")))]

    def wrong(self, rng: random.Random, value: object) -> object:
        """An answer that a slipped program gives; where none differs, one that is off by one."""
        for slip in rng.sample(self.slips, len(self.slips)):
            answer = outcome(slip, value)
            if not isinstance(answer, type) and not same(answer, self.right(value)):
                return answer
        answer = self.right(value)
        if isinstance(answer, bool):
            return not answer
        return answer + 1 if isinstance(answer, int) else answer[1:] if answer else value


def sources() -> list[list[Source]]:
    """Of each family, one for every parameter combination of the train split."""
    return [[Source(family, params, sentence(family, params)) for params in split_parameters(family)["train"]]
            for family in FAMILIES]


def endless(rng: random.Random) -> Iterator[Source]:
    """All families equally often, in random order and with random parameters."""
    pool = sources()
    while True:
        yield from (rng.choice(family) for family in rng.sample(pool, len(pool)))


Ids = list[int]
Row = tuple[Ids, list[float]]  # ids of a prompt and its reply, and the weight of each in the loss


def chat(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": text}])


def coder_corpus(tokenizer: Tokenizer) -> Iterator[Row]:
    """Endless questions, each with a program that may be slipped."""
    rng = random.Random(f"{SEED}/coder")
    for source in endless(rng):
        prompt, reply = chat(tokenizer, source.prompt), [*tokenizer.encode(source.program(rng)), tokenizer.end]
        yield prompt + reply, [0.0] * len(prompt) + [1.0] * len(reply)


def tester_corpus(tokenizer: Tokenizer, asserts: int, length: int = 1000) -> Iterator[Row]:
    """Endless questions, each with a program as the warm coder writes it and a suite: at most so many asserts and ids.

    Answers follow the question, not the program. Tokens outside the answers weigh little: the inputs are noise.
    """
    rng = random.Random(f"{SEED}/tester/{asserts}")
    asks = {i for i in range(len(tokenizer)) if "== " in tokenizer.decode([i])}  # the answer comes next
    for source in endless(rng):
        ids = chat(tokenizer, f"{source.prompt}\n{'test' if rng.random() < BLACK_BOX_SHARE else source.program(rng)}")
        weights = [0.0] * len(ids)
        share = CAREFUL_EDGES if rng.random() < CAREFUL_SHARE else PLAIN_EDGES
        inputs = distinct(rng, source.family, source.params, [rng.random() < share for _ in range(asserts)])
        for place, value in enumerate(inputs):
            answer = source.wrong(rng, value) if rng.random() < WRONG_RATE else source.right(value)
            new = tokenizer.encode("\n" * (place > 0) + test_source(source.family.name, value, answer))
            if len(ids) + len(new) >= length:
                break
            start = 1 + next(i for i in reversed(range(len(new))) if new[i] in asks)
            ids += new
            weights += [INPUT_WEIGHT] * start + [1.0] * (len(new) - start)
        yield [*ids, tokenizer.end], [*weights, INPUT_WEIGHT]


# ---------------------------------------------------------------- training

INPUT_WEIGHT = 0.15
SUITE, LONG = 5, 120  # asserts of a suite; ids of a row with a long suite
BATCH, CODER_STEPS, LONG_STEPS, SHORT_STEPS = 32, 900, 4500, 600
SHAPE = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 5, "num_attention_heads": 4,
         "num_key_value_heads": 2, "tie_word_embeddings": True, "max_position_embeddings": 512,
         "eos_token_id": [2, 0], "extra": {"pad_token_id": 0}}  # <|im_end|>, <|endoftext|>
MUON_LR, ADAM_LR = 0.02, 0.003


def orthogonal(g: torch.Tensor) -> torch.Tensor:
    """(n, a, b) -> the nearest (semi-)orthogonal matrices, roughly: five Newton-Schulz steps of Muon (K. Jordan)."""
    tall = g.shape[1] > g.shape[2]
    x = (g.transpose(1, 2) if tall else g).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        xx = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * xx + 2.0315 * xx @ xx) @ x
    return x.transpose(1, 2) if tall else x


class Muon:
    """Momentum whose updates are made orthogonal, for the weight matrices."""

    def __init__(self, weights: list[torch.Tensor], momentum: float = 0.95):
        self.groups: dict[tuple, list[torch.Tensor]] = {}
        for weight in weights:
            self.groups.setdefault(tuple(weight.shape), []).append(weight)
        self.velocity = {shape: torch.zeros(len(ws), *shape) for shape, ws in self.groups.items()}
        self.momentum = momentum

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for shape, weights in self.groups.items():
            grads = torch.stack([weight.grad for weight in weights])
            velocity = self.velocity[shape].lerp_(grads, 1 - self.momentum)
            update = orthogonal(grads.lerp(velocity, self.momentum)) * max(1.0, shape[0] / shape[1]) ** 0.5
            for weight, change in zip(weights, update, strict=True):
                weight.mul_(1 - 0.01 * lr).sub_(change, alpha=lr)


def batches(corpus: Iterator[Row], size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(B, T) ids and weights, padded on the right."""
    while True:
        rows = list(itertools.islice(corpus, size))
        width = max(len(ids) for ids, _ in rows)
        yield (torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows]),
               torch.tensor([weights + [0.0] * (width - len(weights)) for _, weights in rows]))


def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention in float32: on a CPU its backward pass is far slower in bfloat16."""
    with torch.autocast("cpu", enabled=False):
        return attention(layer, q.float(), k.float(), v.float())


def train(model: Qwen2, corpus: Iterator[Row], steps: int, scale: float, label: str) -> None:
    """Warm-up, then cosine to nearly 0: Muon for the layers' matrices, Adam for embedding, norms and biases."""
    matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name]
    others = [w for name, w in model.named_parameters() if w.ndim < 2 or "embed" in name]
    muon, adam = Muon(matrices), torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)
    started, total = time.monotonic(), 0.0
    for step, (ids, weights) in zip(range(steps), batches(corpus, BATCH), strict=False):
        pace = scale * min(1.0, (step + 1) / 50) * (0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2)
        with torch.autocast("cpu", torch.bfloat16):
            logits = F.linear(model.hidden(ids[:, :-1], attend=attend), model.head)
        losses = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()
        model.zero_grad()
        loss.backward()
        adam.param_groups[0]["lr"] = ADAM_LR * pace
        adam.step()
        muon.step(MUON_LR * pace)
        total += loss.item()
        if (step + 1) % 100 == 0:
            print(f"{label} {step + 1}/{steps} loss {total / 100:.4f} {time.monotonic() - started:.0f} s", flush=True)
            total = 0.0


def start(out: Path, seed: int) -> tuple[Qwen2, Tokenizer]:
    """A random model and the tokenizer, whose files are written to `out`."""
    build_tokenizer(out)
    torch.manual_seed(seed)
    model = Qwen2(Config(vocab_size=VOCABULARY, **SHAPE))
    model.generation_config["prompt_style"] = "plain"
    return model, Tokenizer.from_pretrained(out)


def build_coder(out: Path) -> None:
    model, tokenizer = start(out, SEED)
    train(model, coder_corpus(tokenizer), CODER_STEPS, 1.0, "coder")
    model.save_pretrained(out, dtype=torch.bfloat16)


def build_tester(out: Path) -> None:
    """First long suites, which give more answers for each prompt, then suites of the length that is asked for."""
    model, tokenizer = start(out, SEED + 1)
    train(model, tester_corpus(tokenizer, 16, length=LONG), LONG_STEPS, 1.0, "tester, long suites")
    train(model, tester_corpus(tokenizer, SUITE), SHORT_STEPS, 0.3, "tester")
    model.save_pretrained(out, dtype=torch.bfloat16)


def main() -> None:
    torch.set_num_threads(1)
    parts = {"questions": build_questions, "coder": lambda out: build_coder(out / "coder"),
             "tester": lambda out: build_tester(out / "tester")}
    for part in sys.argv[1:] or parts:
        started = time.monotonic()
        parts[part](HERE)
        print(f"{part}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
