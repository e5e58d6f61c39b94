#!/usr/bin/env bash
# Sets itself up, then: style, types, tests. Arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev
ruff check .
ruff format --check .
mypy
exec pytest -n 2 --dist loadfile "$@"
