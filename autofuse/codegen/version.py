"""The version of the code generation: what makes machine code of scheduled kernels."""

from __future__ import annotations

#: Goes up whenever equal scheduled code becomes other machine code: other expansions of exp and its like
#: (`intrinsics.py`), passes (`stack.py`), pass configuration (`build.py`), or options of LLVM (`target/`). Records of
#: another version are not used. tests/golden_code.json holds digests of what reaches LLVM, and a test fails when they
#: change under an unchanged version (`scripts/golden_tir.py --code` writes new ones).
CODEGEN_VERSION = 1
