"""What a kernel's assembly text says of its inner loops: takes LLVM's output for x86-64 or AArch64, gives `Loop`s."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^([.\w$]+):")
_X86 = {
    "vector": re.compile(r"\bv?(?:add|sub|mul|div|max|min|sqrt|fn?m(?:add|sub)\d*)ps\b"),
    "scalar": re.compile(r"\bv?(?:add|sub|mul|div|max|min|sqrt|fn?m(?:add|sub)\d*)s[sd]\b"),
    "multiply": re.compile(r"\bv?(?:mul|fn?m(?:add|sub)\d*)ps\b"),
    "scalar_multiply": re.compile(r"\bv?(?:mul|fn?m(?:add|sub)\d*)ss\b"),
    "stack": re.compile(r"\bv?mov[au]ps\b.*\(%r[sb]p\).*%[xyz]mm|\bv?mov[au]ps\b.*%[xyz]mm.*\(%r[sb]p\)"),
    "branch": re.compile(r"\bj\w+\s+([.\w$]+)"),
    "call": re.compile(r"\bcallq?\s+(\S+)"),
}
_ARM = {
    "vector": re.compile(r"\bf(?:add|sub|mul|div|mla|mls|max|min|maxnm|minnm|sqrt)\s+v"),
    "scalar": re.compile(r"\bf(?:add|sub|mul|div|madd|msub|nmadd|nmsub|nmul|max|min|maxnm|minnm|sqrt)\s+[sd]\d"),
    "multiply": re.compile(r"\bf(?:mul|mla|mls)\s+v"),
    "scalar_multiply": re.compile(r"\bf(?:mul|madd|msub|nmadd|nmsub|nmul)\s+s"),
    "stack": re.compile(r"\b(?:ldr|str|ldur|stur|ldp|stp)\s+q.*\[(?:sp|x29)"),
    "branch": re.compile(r"\b(?:b(?:\.\w+)?|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#\d+,)\s+([.\w$]+)"),
    "call": re.compile(r"\bblr?\s+(\S+)"),
}


@dataclass(frozen=True)
class Loop:
    """An innermost loop, with counts of its instructions: vector and scalar float arithmetic, the multiplications and
    multiply-adds of either kind, vector loads and stores of the stack; and the functions that it calls."""

    function: str
    lines: tuple[str, ...]
    vector: int
    scalar: int
    multiply: int
    scalar_multiply: int
    stack: int
    calls: tuple[str, ...]


def functions(text: str) -> dict[str, list[str]]:
    """Function → its lines, without directives and comments."""
    found: dict[str, list[str]] = {}
    declared = set(re.findall(r"^\s*\.type\s+([\w.$]+),\s*[@%]function", text, re.M))
    current: list[str] = []
    for line in text.splitlines():
        line = re.split(r"\s#\s|//|\s##", line)[0].rstrip()
        label = _LABEL.match(line)
        if label and label[1] in declared:
            current = found.setdefault(label[1], [])
        elif label or (line.strip() and not line.strip().startswith(".")):
            current.append(line)
    return found


def _patterns(text: str) -> dict[str, re.Pattern[str]]:
    return _X86 if "%rsp" in text or "%xmm" in text else _ARM


def loops(text: str) -> list[Loop]:
    """The innermost loops of all functions."""
    rules = _patterns(text)
    found = []
    for name, lines in functions(text).items():
        place = {m[1]: i for i, line in enumerate(lines) if (m := _LABEL.match(line))}
        spans = []
        for i, line in enumerate(lines):
            branch = rules["branch"].search(line)
            if branch and place.get(branch[1], i) < i:
                spans.append((place[branch[1]], i))
        inner = [s for s in set(spans) if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in set(spans))]
        for first, last in sorted(inner):
            body = tuple(line.strip() for line in lines[first : last + 1] if not _LABEL.match(line))
            counts = {
                key: sum(1 for line in body if rules[key].search(line))
                for key in ("vector", "scalar", "multiply", "scalar_multiply", "stack")
            }
            calls = tuple(m[1] for line in body if (m := rules["call"].search(line)))
            found.append(Loop(name, body, calls=calls, **counts))
    return found


def calls(text: str) -> set[str]:
    """Every function that is called anywhere."""
    rules = _patterns(text)
    return {m[1] for lines in functions(text).values() for line in lines if (m := rules["call"].search(line))}


def main_loop(text: str) -> Loop:
    """The innermost loop with the most vector multiplications."""
    return max(loops(text), key=lambda loop: (loop.multiply, loop.vector))
