"""`ray up`, `ray submit` and `ray down` of cluster/local.yaml against this machine, over ssh.

All of it happens in isolated.sh: `ray down` runs `ray stop`, which ends every Ray it can see; setting a node up writes
into its home; and the ssh server of the test can be reached by the test alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest
import yaml
from support import REPOSITORY
from support.command_line import TINY
from support.processes import folder_for_root

pytestmark = pytest.mark.root
ISOLATED = Path(__file__).parent / "isolated.sh"
HEAD, WORKER = "10.99.0.1", "10.99.0.2"

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

BOTH = """
import time
import ray
ray.init(address="auto", logging_level=40)
end = time.monotonic() + 240
while sum(node["Alive"] for node in ray.nodes()) < 2:
    assert time.monotonic() < end, "the worker did not join"
    time.sleep(1)
"""

SCRIPT = """
set -euo pipefail
mkdir /run/sshd
ip netns add worker
ip link set lo up
ip link add lan type veth peer name lan netns worker
ip address add {head}/24 dev lan && ip -n worker address add {worker}/24 dev lan
ip link set lan up && ip -n worker link set lan up && ip -n worker link set lo up
ip route add default dev lan && ip -n worker route add default dev lan
sed -i "s|^\\(root:.*\\):/srv:|\\1:{folder}/client:|" /etc/passwd  # ssh looks there, whatever HOME says
serve() {{  # an ssh server at whose host root's home is another
    cp -a /etc /run/$1_etc
    sed -i "s|{folder}/client|{folder}/$1|" /run/$1_etc/passwd
    mount --bind /run/$1_etc /etc
    /usr/sbin/sshd -D -f {folder}/$1_sshd -E {folder}/sshd.log
}}
export -f serve
ip netns exec worker unshare --pid --mount-proc --fork bash -c "serve worker" &
unshare --mount bash -c "serve head" &
step() {{ echo "== $1 after $SECONDS s"; }}
ray up -y --no-config-cache {folder}/local.yaml; step up
ray exec {folder}/local.yaml '{python} {folder}/both.py'; step both
ray submit {folder}/local.yaml cluster/run.py configs/digits.yaml "$@"; step submit
ray exec {folder}/local.yaml 'pate doctor --address auto' >{folder}/doctor.log 2>&1; step doctor
ray down -y {folder}/local.yaml; step down
ps -e -o args >{folder}/left
"""


LOOKED_AT = """
set -euo pipefail
mount -t tmpfs -o mode=0700 tmpfs /srv  # this machine's home of root
sed -i 's|^\\(root:.*\\):/root:|\\1:/srv:|' /etc/passwd
echo mine >/srv/.bashrc; mkdir /srv/.ray /srv/.ssh
look() {{ find /srv /etc -printf '%p %m %s %l\\n' -type f -exec sha256sum {{}} + | sort >{folder}/$1; }}
look before
(   n=0
    while sleep 0.2; do
        cp -p /etc/passwd /etc/passwd.new && mv /etc/passwd.new /etc/passwd
        n=$((n + 1)) && echo $n >{folder}/replaced
    done
) &
replacing=$!
status=0
"$@" || status=$?
kill $replacing && wait $replacing || rm -f /etc/passwd.new
look after
exit $status
"""

READ_ONLY = (
    "~root/here ~root/.bashrc ~root/.ray/here /root/here /home/here /here /usr/here /opt/here /var/lib/here /srv/here"
)
TOUCH = f"""
sleep 1
echo taken:x:77:77::/:/bin/sh >>/etc/passwd
sleep 1
getent passwd taken && [ ~root = /srv ] || exit 1
for place in {READ_ONLY}; do touch $place || true; done
touch /tmp/here /run/here && echo written >{{folder}}/allowed
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_for_root("/usr/sbin/sshd", "ssh", "rsync", "ip", "unshare") as folder:
        yield folder


def machine_to_look_at(folder: Path, words: list[str]) -> list[str]:
    """The words on a machine whose passwd is replaced all along, its /etc and root's home listed before and after.

    That machine is itself isolated, so that not even a failure reaches the real one.
    """
    return [str(ISOLATED), str(folder), "bash", "-c", LOOKED_AT.format(folder=folder), "bash", *words]


def assert_untouched(folder: Path) -> None:
    assert int((folder / "replaced").read_text()) > 0
    assert (folder / "before").read_text() == (folder / "after").read_text()


def test_nothing_of_the_machine_can_be_touched(folder: Path) -> None:
    (folder / "script").write_text(TOUCH.format(folder=folder))
    words = machine_to_look_at(folder, [str(ISOLATED), str(folder), "bash", str(folder / "script")])
    environment = os.environ | {"KEEP": str(REPOSITORY)}
    shown = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert_untouched(folder)
    assert (folder / "allowed").read_text() == "written\n"
    refused = shown.stderr.count("Read-only file system")
    assert refused == len(READ_ONLY.split()), shown.stderr


def test_up_submit_down(folder: Path) -> None:
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    for host, address in (("head", HEAD), ("worker", WORKER)):
        (folder / f"{host}_sshd").write_text(SSHD.format(address=address, folder=folder, host=host))
        (folder / host / "pate-venv").mkdir(parents=True)
        (folder / host / "pate-venv" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / "both.py").write_text(BOTH)
    (folder / "local.yaml").write_text(yaml.safe_dump(config(folder)))
    subprocess.run([str(REPOSITORY / "cluster" / "secrets.sh"), str(folder / "client" / ".ray")], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(folder / "client"), "RAY_TMPDIR": str(folder / "client"), "TMPDIR": str(folder)}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{environment['PATH']}", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "KEEP": f"{sys.prefix}:{REPOSITORY}"}
    (folder / "script").write_text(SCRIPT.format(head=HEAD, worker=WORKER, folder=folder, python=sys.executable))
    words = [
        str(ISOLATED),
        str(folder),
        "bash",
        str(folder / "script"),
        *map(quote, TINY),
    ]  # ray submit joins them again
    command = machine_to_look_at(folder, words)
    shown = subprocess.run(command, capture_output=True, text=True, timeout=560, cwd=REPOSITORY, env=environment)
    print("\n".join(line for line in shown.stdout.splitlines() if line.startswith("== ")))
    assert shown.returncode == 0, shown.stdout[-5000:] + shown.stderr[-3000:]
    reports = list((folder / "head" / "pate-runs").glob("digits-*/report.json"))
    assert len(reports) == 1
    assert_untouched(folder)
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
    setup = content["setup_commands"]
    assert isinstance(setup, list)
    for which in ("head_start_ray_commands", "worker_start_ray_commands"):
        commands = content[which]
        assert isinstance(commands, list)  # a busy machine starts too slowly for Ray
        commands[-1] = f"for _ in 1 2 3; do {commands[-1]} && break; ray stop --force; done"
    return content | {
        "provider": {"type": "local", "head_ip": HEAD, "worker_ips": [WORKER]},
        "auth": {"ssh_user": "root", "ssh_private_key": str(folder / "user_key")},
        "min_workers": 1,
        "max_workers": 1,
        "setup_commands": [command for command in setup if "install.sh" not in command],
    }
