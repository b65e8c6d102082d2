#!/usr/bin/env bash
# cluster/install.sh VENV     pate and exactly the packages of cluster/requirements.lock, each checked by its hash, in VENV
# Wants Python 3.11 or newer (PYTHON names it; default python3); where its venv module is missing, Debian's package is installed.
set -euo pipefail
venv=$1 here=$(cd "$(dirname "$0")" && pwd) python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$python is no Python 3.11 or newer: set PYTHON, or take a newer image" >&2
    exit 2
}
"$python" -c 'import ensurepip' 2>/dev/null || {
    sudo apt-get -o DPkg::Lock::Timeout=300 update -q
    sudo apt-get -o DPkg::Lock::Timeout=300 install -y -q python3-venv
}
[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
"$venv/bin/pip" install -q --require-hashes --only-binary=:all: -r "$here/requirements.lock"
"$venv/bin/pip" install -q --no-deps --no-build-isolation --no-index -e "$here/.."
