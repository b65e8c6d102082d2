"""Ray and a run where a pod of cluster/kubernetes would be: no privileges, no file to write but in its volumes.

What Kubernetes makes of a manifest's securityContext is made here by hand: user 1000, no capability and none to be had,
every file system read-only but /tmp (which holds the home and the runs as well), the head without processors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import REPOSITORY
from support.processes import folder_for_root

pytestmark = pytest.mark.root
ISOLATED = Path(__file__).parent / "isolated.sh"

MACHINE = """
set -euo pipefail
mkdir -p /run/python /tmp/home /tmp/runs
mount --bind {base} /run/python  # Python may lie in a home that user 1000 cannot enter
chown 1000:1000 /tmp/home /tmp/runs
ip link set lo up
status=0
nobody=(--reuid 1000 --regid 1000 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs)
setpriv "${{nobody[@]}}" bash {folder}/pod || status=$?
cp -r /tmp/runs {folder} && cp -r /tmp/ray/session_latest/logs {folder} 2>/dev/null || true
exit $status
"""

POD = """
set -euo pipefail
export LD_LIBRARY_PATH=/run/python/lib PATH=/run/python/bin:/usr/bin:/bin PYTHONPATH={paths} OMP_NUM_THREADS=1
set -a; . <(grep -v '^#' {repository}/cluster/kubernetes/base/ray.env); set +a
export HOME=/tmp/home PATE_RUNS=/tmp/runs RAY_AUTH_MODE=token RAY_AUTH_TOKEN={token} PYTHONDONTWRITEBYTECODE=1
cd /tmp
grep -E '^(CapBnd|NoNewPrivs)' /proc/self/status
touch {repository}/here 2>&1 || true
ray() {{ python{version} -c 'from ray.scripts.scripts import main; main()' "$@"; }}
again() {{ for _ in 1 2 3; do "$@" && return; ray stop --force; done; return 1; }}  # where it is too slow for Ray
again ray start --head --num-cpus=0 --port=6379 --node-ip-address=127.0.0.1 --dashboard-host=127.0.0.1
ray start --address=127.0.0.1:6379 --num-cpus=2 --node-ip-address=127.0.0.2
ray health-check --address 127.0.0.1:6379  # KubeRay's init container asks so
python{version} -m pate.cli run {repository}/configs/digits.yaml --address 127.0.0.1:6379 --out /tmp/runs/digits \
    --set n_teachers=10 --set budget.max_queries=40 --set mechanism.sigma=5 --set nonprivate=null \
    --set 'teachers=[{{name: sklearn.naive_bayes.GaussianNB}}]' \
    --set 'student={{name: supervised, params: {{estimator: sklearn.svm.SVC}}}}'
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_for_root("unshare", "setpriv", "ip") as folder:
        yield folder


def test_a_run_without_privileges_on_a_read_only_machine(folder: Path) -> None:
    paths = ":".join([str(REPOSITORY), *(path for path in sys.path if path.endswith("site-packages"))])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    pod = POD.format(paths=paths, repository=REPOSITORY, version=version, token="0123456789abcdef" * 4)
    (folder / "pod").write_text(pod)
    machine = MACHINE.format(base=sys.base_prefix, folder=folder)
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "KEEP": f"{sys.prefix}:{REPOSITORY}"}
    words = [str(ISOLATED), str(folder), "bash", "-c", machine]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=560, env=environment)
    assert shown.returncode == 0, shown.stdout[-4000:] + shown.stderr[-4000:]
    assert "CapBnd:\t0000000000000000" in shown.stdout
    assert "NoNewPrivs:\t1" in shown.stdout
    assert "Read-only file system" in shown.stdout
    report = json.loads((folder / "runs" / "digits" / "report.json").read_text())
    assert report["queries"]["asked"] == 40
