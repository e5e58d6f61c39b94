"""Canonical text of tensor programs and of Relax calls: the same on every platform, whatever things are called.

Takes a `Program`, a PrimFunc that is none, or a Relax call; gives the text that an operator's `form` falls back to
when lowering did not attach one.
"""

from __future__ import annotations

import re
from typing import Any

from autofuse.graph.expression import Expr
from autofuse.graph.tir import Program


def expression_text(expr: Expr) -> str:
    """Prefix notation: `add(v0,mul(v1,2))`, loads as `b3[v0,v1]`."""
    tag = expr[0]
    if tag == "c":
        value, dtype = expr[1], expr[2]
        return f"{value!r}:{dtype}" if dtype not in ("int64", "float32") or isinstance(value, bool) else repr(value)
    if tag == "v":
        return f"v{expr[1]}"
    if tag == "ld":
        return f"b{expr[1]}[{','.join(expression_text(i) for i in expr[2])}]"
    if tag == "cast":
        return f"{expr[1]}({expression_text(expr[2])})"
    return f"{tag}({','.join(expression_text(e) for e in expr[1:])})"


def program_text(program: Program) -> str:
    """The parameters' types, then each block; all in one line."""
    lines = [";".join(f"{b.dtype}{list(b.shape)}" for b in program.buffers[: program.parameters])]
    for block in program.blocks:
        axes = ",".join(f"v{a.var}<{a.extent}{'+' if a.reduction else ''}" for a in block.axes)
        place = ",".join(expression_text(w) for w in block.write)
        start = "" if block.init is None else f" from {expression_text(block.init)}"
        # Whether a target is a parameter is told by its number; its type by the parameter or here.
        kind = "" if block.target < program.parameters else f":{program.buffers[block.target].dtype}"
        lines.append(f"[{axes}] b{block.target}{kind}[{place}]={expression_text(block.value)}{start}")
    return "tir " + " | ".join(lines)


_NAME = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*")
_ATTRIBUTES = re.compile(r"^\s*(T\.func_attr|T\.reads|T\.writes|#|from |import |@).*$", re.MULTILINE)


def script_text(func: Any) -> str:
    """Text of a PrimFunc that is no `Program`: TVM's script with every name replaced by its order of appearance."""
    names: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        word = match.group()
        # Members of the script's namespaces keep their names, the lookbehind leaves them alone.
        return word if word in ("T", "I", "R") else names.setdefault(word, f"n{len(names)}")

    script = _ATTRIBUTES.sub("", func.script(show_meta=False))
    script = re.sub(r'T\.sblock\("[^"]*"\)', "T.sblock()", script)
    lines = (line.rstrip() for line in _NAME.sub(renamed, script).splitlines())
    return "script " + " | ".join(line for line in lines if line)


def attributes_text(attrs: Any) -> str:
    """Attributes of a Relax call, sorted by name; lists, numbers and strings as Python writes them."""
    if attrs is None:
        return ""
    try:
        items = [(str(key), attrs[key]) for key in attrs.keys()]  # noqa: SIM118 - not a mapping, only looks like one
    except (AttributeError, TypeError):
        names = [f.name for f in getattr(type(attrs), "__tvm_ffi_type_info__").fields]  # noqa: B009
        items = [(name, getattr(attrs, name)) for name in names if name != "span"]
    return ",".join(f"{name}={_plain(value)}" for name, value in sorted(items, key=lambda item: item[0]))


def _plain(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if hasattr(value, "value") and isinstance(value.value, bool | int | float | str):
        return repr(value.value)
    if hasattr(value, "__iter__"):
        return f"[{','.join(_plain(item) for item in value)}]"
    return str(value)


def call_text(name: str, attrs: Any, arguments: list[str], result: str) -> str:
    """Text of a call that stays outside tensor programs: operator, attributes, types of arguments and result."""
    return f"call {name}({attributes_text(attrs)}) {';'.join(arguments)} -> {result}"
