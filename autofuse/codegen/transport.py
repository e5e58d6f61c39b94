"""Scheduled code on its way to another process: takes a PrimFunc, gives a line of text, and the other way round.

TVM's own JSON ends with a crash on every node that has a type of data, and reading TVMScript takes three times as long
as compiling what it says. So a function's nodes are written down one after another, each behind those that it refers
to: what they are called and their fields, as TVM's reflection gives them. Where in a source a node came from is left
out. Only the same version of TVM reads it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm.tirx.layout import Axis

_DEEP = 50_000
_DATA_TYPE = "ir.PrimType"
_OPERATOR = "ir.Op"
_AXIS = "tirx.Axis"
#: What is itself, and not equal to another with the same fields.
_VARIABLE = "ir.Var"
#: A field of every expression, and of nothing else: its type.
_TYPED = "ty"
#: Where in a source a node came from.
_FORGOTTEN = "span"

Field = tuple[str, Callable[[Any], Any]]


def to_text(func: Any) -> str:
    """The function as one line. ValueError for a node that cannot be written down."""
    return _Writer().text(func)


def from_text(text: str) -> Any:
    """The function that `to_text` wrote."""
    make = tvm_ffi._ffi_api.MakeObjectFromPackedArgs
    written = json.loads(text)
    names = [(key, fields) for key, fields in written["types"]]
    made: list[Any] = []

    def value(entry: Any) -> Any:
        if entry is None:
            return None
        if isinstance(entry, int):
            return made[entry]
        kind, content = entry
        if kind == "array":
            return [value(e) for e in content]
        if kind == "map":
            return {value(k): value(v) for k, v in content}
        return float.fromhex(content) if kind == "float" else content

    for number, *entries in written["nodes"]:
        key, fields = names[number]
        if key == _DATA_TYPE:
            made.append(tvm.ir.PrimType(entries[0]))
        elif key == _OPERATOR:
            made.append(tvm.ir.Op.get(entries[0]))
        elif key == _AXIS:
            made.append(Axis.get(entries[0]))
        else:
            arguments = [part for name, e in zip(fields, entries, strict=True) for part in (name, value(e))]
            made.append(make(key, *arguments))
    return made[-1]


class _Writer:
    """Writes one function: nodes in the order in which they are finished, equal expressions once."""

    def __init__(self) -> None:
        self.types: dict[str, int] = {}
        self.fields: dict[str, list[Field]] = {}
        self.values: set[str] = set()  # types whose nodes are equal where their fields are
        self.nodes: list[str] = []
        self.places: dict[int, int] = {}
        self.equal: dict[str, int] = {}
        self.kept: list[Any] = []  # an address is taken again when its node is gone

    def text(self, func: Any) -> str:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, _DEEP))
        try:
            self.place(func)
        finally:
            sys.setrecursionlimit(before)
        types = json.dumps([(key, [name for name, _ in self.fields[key]]) for key in self.types])
        return f'{{"types":{types},"nodes":[{",".join(self.nodes)}]}}'

    def place(self, node: Any) -> int:
        """Where a node stands; it is written first if it is not there yet."""
        address = node.__chandle__()
        if address in self.places:
            return self.places[address]
        key = type(node).__tvm_ffi_type_info__.type_key
        if key not in self.types:
            self.fields[key] = _fields(type(node))
            self.types[key] = len(self.types)
            if key == _DATA_TYPE or (key != _VARIABLE and any(name == _TYPED for name, _ in self.fields[key])):
                self.values.add(key)
        if key == _DATA_TYPE:
            parts = [json.dumps(str(node.dtype))]
        elif key in (_OPERATOR, _AXIS):
            parts = [json.dumps(node.name)]
        else:
            parts = [self.value(read(node)) for _, read in self.fields[key]]
        line = f"[{','.join([str(self.types[key]), *parts])}]"
        place = self.equal.get(line) if key in self.values else None
        if place is None:
            place = len(self.nodes)
            self.nodes.append(line)
            if key in self.values:
                self.equal[line] = place
        self.places[address] = place
        self.kept.append(node)
        return place

    def value(self, value: Any) -> str:
        """A field's value: the place of a node, or what it is and how it is written."""
        if value is None:
            return "null"
        if isinstance(value, bool):
            return f'["bool",{json.dumps(value)}]'
        if isinstance(value, int):
            return f'["int",{int(value)}]'
        if isinstance(value, float):
            return f'["float","{value.hex()}"]'
        if isinstance(value, str):
            return f'["text",{json.dumps(str(value))}]'
        if isinstance(value, tvm_ffi.Array):
            return f'["array",[{",".join(self.value(v) for v in value)}]]'
        if isinstance(value, tvm_ffi.Map):
            return f'["map",[{",".join(f"[{self.value(k)},{self.value(v)}]" for k, v in value.items())}]]'
        if isinstance(value, tvm_ffi.Object):
            return str(self.place(value))
        raise ValueError(f"a node has a field of {type(value).__name__}, which cannot be written down")


def _fields(kind: Any) -> list[Field]:
    """Names and readers of a type's fields, its parents' first."""
    chain = []
    info = kind.__tvm_ffi_type_info__
    while info is not None:
        chain.append(info)
        info = info.parent_type_info
    fields = [field for info in reversed(chain) for field in info.fields]
    return [(f.name, _nothing if f.name == _FORGOTTEN else f.getter) for f in fields]


def _nothing(_: Any) -> None:
    return None
