#!/usr/bin/env bash
# Sets itself up, then: style, types, tests. Arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev
ruff check .
ruff format --check .
mypy
# Tests start many processes, which would compile the package's modules over and over.
unset PYTHONDONTWRITEBYTECODE
# Threads of numpy that wait for work would take the other worker's processor.
export OPENBLAS_NUM_THREADS=1
# Two workers take whole modules, in the order that tests/conftest.py gives them.
exec pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
