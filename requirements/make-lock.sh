#!/bin/sh
# Remake lock.txt: resolve what can be resolved, add what cannot, freeze, leave torch and its CUDA parts out.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
"${PYTHON:-python3.11}" -m venv "$work/venv"
pip="$work/venv/bin/python -m pip --quiet --disable-pip-version-check"
$pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r requirements/torch.txt
$pip install --no-deps -r requirements/unresolved.in
$pip install -r requirements/runtime.in -r requirements/torch.txt setuptools -e '.[book,dev]'
{
  echo "# Every package but torch, for Python 3.11. Install with --no-deps after torch.txt. Made by: make lock"
  $pip freeze --all --exclude-editable --exclude torch --exclude pip --exclude eagle3lab | grep -v -i '^\(nvidia\|cuda\)-'
} > "$work/lock.txt"
mv "$work/lock.txt" requirements/lock.txt
echo "requirements/lock.txt: $(grep -c == requirements/lock.txt) packages"
