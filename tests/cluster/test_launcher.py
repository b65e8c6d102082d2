"""`ray up`, `ray submit` and `ray down` of cluster/local.yaml against this machine, over ssh.

All of it happens in process and network namespaces of its own: `ray down` runs `ray stop`, which ends every Ray it
can see, and the ssh server of the test can be reached by the test alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest
import yaml
from conftest import REPOSITORY

pytestmark = pytest.mark.root
HEAD = "10.99.0.1"
SMALL = ["--set", "n_teachers=10", "--set", "budget.asked=40", "--set", "mechanism.sigma=5", "--set", "nonprivate=null"]
SMALL += ["--set", "teachers=[{name: sklearn.naive_bayes.GaussianNB}]", "--set", "ray.workers=1"]
SMALL += ["--set", "student={name: supervised, params: {estimator: sklearn.svm.SVC}}"]

SSHD = """Port 22
ListenAddress {head}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
PidFile none
SetEnv HOME={folder}/home PYTHONPATH={folder}/home/pate
"""

SCRIPT = """
set -euo pipefail
mount -t tmpfs tmpfs /run && mkdir /run/sshd
ip link set lo up
ip link add lan0 type veth peer name lan1
ip address add {head}/24 dev lan0
ip link set lan0 up && ip link set lan1 up
ip route add default dev lan0
/usr/sbin/sshd -f {folder}/sshd_config -E {folder}/sshd.log
step() {{ echo "== $1 after $SECONDS s"; }}
ray up -y --no-config-cache {folder}/local.yaml; step up
ray exec {folder}/local.yaml 'ray status && pate doctor --address auto' >{folder}/doctor.log 2>&1 || true; step doctor
ray submit {folder}/local.yaml cluster/run.py configs/digits.yaml "$@"; step submit
ray down -y {folder}/local.yaml; step down
ps -e -o args >{folder}/left
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root: an ssh server and namespaces")
    for tool in ("/usr/sbin/sshd", "ssh", "rsync", "ip", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (Debian: openssh-server, rsync, iproute2, util-linux)")
    folder = Path(tempfile.mkdtemp(prefix="pate-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_up_submit_down(folder: Path) -> None:
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "sshd_config").write_text(SSHD.format(head=HEAD, folder=folder))
    (folder / "local.yaml").write_text(yaml.safe_dump(config(folder)))
    (folder / "home" / "pate-venv").mkdir(parents=True)
    (folder / "home" / "pate-venv" / "bin").symlink_to(Path(sys.executable).parent)
    subprocess.run([str(REPOSITORY / "cluster" / "secrets.sh"), str(folder / "client" / ".ray")], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(folder / "client"), "RAY_TMPDIR": str(folder / "client"), "TMPDIR": str(folder)}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{environment['PATH']}", "OMP_NUM_THREADS": "1"}
    own = ["unshare", "--pid", "--net", "--mount-proc", "--fork", "--kill-child"]
    command = [
        *own,
        "bash",
        "-c",
        SCRIPT.format(head=HEAD, folder=folder),
        "bash",
        *map(quote, SMALL),
    ]  # ray submit joins the words again
    shown = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=REPOSITORY, env=environment)
    print("\n".join(line for line in shown.stdout.splitlines() if line.startswith("== ")))
    assert shown.returncode == 0, shown.stdout[-5000:] + shown.stderr[-3000:]
    reports = list((folder / "home" / "pate-runs").glob("digits-*/report.json"))
    assert len(reports) == 1
    assert json.loads(reports[0].read_text())["queries"]["asked"] == 40
    doctor = (folder / "doctor.log").read_text()
    for line in ("ok    token: wanted", "ok    TLS: between all nodes", "ok    dashboard: on 127.0.0.1:8265 only"):
        assert line in doctor, doctor
    assert "FAIL" not in doctor
    assert "raylet" not in (folder / "left").read_text()


def config(folder: Path) -> dict[str, object]:
    """cluster/local.yaml for this machine: other addresses, and what is installed here instead of a download."""
    content: dict[str, object] = yaml.safe_load((REPOSITORY / "cluster" / "local.yaml").read_text())
    setup = content["setup_commands"]
    assert isinstance(setup, list)
    return content | {
        "provider": {"type": "local", "head_ip": HEAD, "worker_ips": []},
        "auth": {"ssh_user": "root", "ssh_private_key": str(folder / "user_key")},
        "min_workers": 0,
        "max_workers": 0,
        "setup_commands": [command for command in setup if "/uv " not in command],
    }
