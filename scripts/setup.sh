# Sourced by the other scripts: a virtual environment in .venv with autofuse and what `$1` names (an extra) installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra="${1:-bench}"
python="${PYTHON:-python3}"
"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 10):
    sys.exit(f"autofuse needs Python 3.10 or newer, this is {sys.version.split()[0]}: set PYTHON to another one")
PY
[ -x .venv/bin/python ] || "$python" -m venv .venv
stamp=".venv/.autofuse-$extra-$(cksum < pyproject.toml | tr -d ' ')"
if [ ! -e "$stamp" ]; then
    echo "installing autofuse[$extra] into .venv ..." >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$extra]"
    touch "$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
