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
from support import REPOSITORY

pytestmark = pytest.mark.root
HEAD, WORKER = "10.99.0.1", "10.99.0.2"
SMALL = ["--set", "n_teachers=10", "--set", "budget.asked=40", "--set", "mechanism.sigma=5", "--set", "nonprivate=null"]
SMALL += ["--set", "teachers=[{name: sklearn.naive_bayes.GaussianNB}]", "--set", "ray.workers=2"]
SMALL += ["--set", "ray.cpus_per_worker=1.5", "--set", "ray.wait_for_workers=180"]  # more than the head has
SMALL += ["--set", "student={name: supervised, params: {estimator: sklearn.svm.SVC}}"]

SSHD = """Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
PidFile none
SetEnv PYTHONPATH={folder}/{host}/pate
"""

SCRIPT = """
set -euo pipefail
mount -t tmpfs tmpfs /run && mkdir /run/sshd
ip netns add worker
ip link set lo up
ip link add lan type veth peer name lan netns worker
ip address add {head}/24 dev lan && ip -n worker address add {worker}/24 dev lan
ip link set lan up && ip -n worker link set lan up && ip -n worker link set lo up
ip route add default dev lan && ip -n worker route add default dev lan
serve() {{  # an ssh server at whose host root's home is another
    sed "s|^root:\\(.*\\):/root:|root:\\1:{folder}/$1:|" /etc/passwd >{folder}/$1_passwd
    mount --bind {folder}/$1_passwd /etc/passwd
    /usr/sbin/sshd -D -f {folder}/$1_sshd -E {folder}/sshd.log
}}
export -f serve
ip netns exec worker unshare --pid --mount-proc --fork bash -c "serve worker" &
unshare --mount bash -c "serve head" &
step() {{ echo "== $1 after $SECONDS s"; }}
ray up -y --no-config-cache {folder}/local.yaml; step up
ray submit {folder}/local.yaml cluster/run.py configs/digits.yaml "$@"; step submit
ray exec {folder}/local.yaml 'pate doctor --address auto' >{folder}/doctor.log 2>&1; step doctor
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
    for host, address in (("head", HEAD), ("worker", WORKER)):
        (folder / f"{host}_sshd").write_text(SSHD.format(address=address, folder=folder, host=host))
        (folder / host / "pate-venv").mkdir(parents=True)
        (folder / host / "pate-venv" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / "local.yaml").write_text(yaml.safe_dump(config(folder)))
    subprocess.run([str(REPOSITORY / "cluster" / "secrets.sh"), str(folder / "client" / ".ray")], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(folder / "client"), "RAY_TMPDIR": str(folder / "client"), "TMPDIR": str(folder)}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{environment['PATH']}", "OMP_NUM_THREADS": "1"}
    own = ["unshare", "--pid", "--net", "--mount-proc", "--fork", "--kill-child"]
    command = [
        *own,
        "bash",
        "-c",
        SCRIPT.format(head=HEAD, worker=WORKER, folder=folder),
        "bash",
        *map(quote, SMALL),
    ]  # ray submit joins the words again
    shown = subprocess.run(command, capture_output=True, text=True, timeout=560, cwd=REPOSITORY, env=environment)
    print("\n".join(line for line in shown.stdout.splitlines() if line.startswith("== ")))
    assert shown.returncode == 0, shown.stdout[-5000:] + shown.stderr[-3000:]
    reports = list((folder / "head" / "pate-runs").glob("digits-*/report.json"))
    assert len(reports) == 1
    assert json.loads(reports[0].read_text())["queries"]["asked"] == 40
    doctor = (folder / "doctor.log").read_text()
    for line in (
        "nodes: 2 answer",
        "ok    token: wanted",
        "ok    TLS: between all nodes",
        "ok    dashboard: on 127.0.0.1:8265 only",
    ):
        assert line in doctor, doctor
    assert "FAIL" not in doctor
    left = (folder / "left").read_text()
    assert "gcs_server" not in left
    assert f"--node_ip_address={HEAD}" not in left


def config(folder: Path) -> dict[str, object]:
    """cluster/local.yaml for this machine: other addresses, and what is installed here instead of a download."""
    content: dict[str, object] = yaml.safe_load((REPOSITORY / "cluster" / "local.yaml").read_text())
    setup, start = content["setup_commands"], content["worker_start_ray_commands"]
    assert isinstance(setup, list)
    assert isinstance(start, list)
    again = (
        f"for _ in 1 2 3; do {start[-1]} && break; ray stop --force; done"  # a busy machine starts too slowly for Ray
    )
    return content | {
        "provider": {"type": "local", "head_ip": HEAD, "worker_ips": [WORKER]},
        "auth": {"ssh_user": "root", "ssh_private_key": str(folder / "user_key")},
        "min_workers": 1,
        "max_workers": 1,
        "worker_start_ray_commands": [*start[:-1], again],
        "setup_commands": [command for command in setup if "/uv " not in command],
    }
