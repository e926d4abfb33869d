from dataclasses import dataclass
from typing import Any
from collections.abc import Hashable
class Opaque:
    def __init__(self, type_name): self.type_name = type_name
    def __repr__(self): return f"Opaque({self.type_name!r})"
@dataclass(frozen=True)
class Items:
    kind: str
    items: Any
    __eq__ = object.__eq__
    __hash__ = object.__hash__
@dataclass(frozen=True)
class BoundCall:
    source: str
    key: Hashable
from tasks import *
from tasks import Test, equal, holds, parse_assert, to_source
def same_argument(a, b):
    return type(a) is type(b) and a == b
def bound_call(entry, args, kwargs):
    parts = [repr(a) if type(a) is range else to_source(a) for a in args] + [f"{k}={to_source(v)}" for k, v in sorted(kwargs.items())]
    s = f"{entry}({', '.join(parts)})"
    return BoundCall(s, s)
