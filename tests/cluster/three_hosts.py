"""A head and two workers as hosts of their own, with token and TLS; the link to one goes down while it trains.

Run by test_hosts_cut_off.py inside namespaces that end with it: python three_hosts.py FOLDER REPOSITORY
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

FOLDER, REPOSITORY = map(Path, sys.argv[1:3] if __name__ == "__main__" else ("", ""))
HOSTS = {"head": "10.98.0.1", "one": "10.98.0.2", "two": "10.98.0.3", "client": "10.98.0.4"}
GCS = f"{HOSTS['head']}:6379"
TEACHERS = 45

SLOW = """
import time
from sklearn.naive_bayes import GaussianNB

class Slow(GaussianNB):
    def fit(self, X, y):
        time.sleep(0.2)
        return super().fit(X, y)
"""

CONFIG = f"""
name: cut
n_teachers: {TEACHERS}
data: {{source: digits}}
teachers: [{{name: slow.Slow}}]
mechanism: {{name: gnmax, sigma: 20}}
budget: {{max_queries: 40}}
student: {{name: supervised, params: {{estimator: sklearn.svm.SVC}}}}
"""


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def make_hosts() -> None:
    subprocess.run("mount -t tmpfs tmpfs /run && mkdir /run/netns", shell=True, check=True)
    ip("link set lo up")
    ip("link add switch type bridge")
    ip("link set switch up")
    for name, address in HOSTS.items():
        ip(f"netns add {name}")
        ip(f"link add to-{name} type veth peer name lan netns {name}")
        ip(f"link set to-{name} master switch up")
        ip(f"-n {name} address add {address}/24 dev lan")
        ip(f"-n {name} link set lan up")
        ip(f"-n {name} link set lo up")
        ip(f"-n {name} route add default dev lan")


def on(host: str, command: str, **environment: str) -> subprocess.Popen[str]:
    """A command on a host, with the settings of cluster/env.sh and what this host has been given."""
    home = FOLDER / host
    whole = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    whole |= {"HOME": str(home), "PATE_RAY_HOME": str(home)}
    settings = " ".join(f"{name}={value}" for name, value in environment.items())
    script = f". {REPOSITORY}/cluster/env.sh && {settings} exec {command}"
    with (home / "log").open("a") as log:
        words = ["ip", "netns", "exec", host, "bash", "-c", script]
        return subprocess.Popen(words, env=whole, stdout=log, stderr=log, text=True, cwd=FOLDER)


def equip(host: str) -> None:
    """Token and certificate."""
    shutil.copytree(FOLDER / "secrets", FOLDER / host)
    tls = [str(REPOSITORY / "cluster" / "tls.sh"), "node", str(FOLDER / host / "tls"), HOSTS[host]]
    subprocess.run(tls, check=True)


def wait_until(what: str, happened: object, seconds: float) -> float:
    assert callable(happened)
    began = time.monotonic()
    while not happened():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - began


def trained(run: Path) -> int:
    return sum(1 for path in (run / "private").rglob("*") if path.is_file() and path.parent.name == "teachers")


def start(host: str, cpus: int, options: str) -> subprocess.Popen[str]:
    """A node, once it runs; on a busy machine Ray may give up on itself, and is started again."""
    log = FOLDER / host / "log"
    command = f"ray start --block --node-ip-address={HOSTS[host]} --num-cpus={cpus} --temp-dir=$HOME/ray {options}"
    for _ in range(3):
        node = on(host, command)
        while node.poll() is None:
            if "Ray runtime started" in log.read_text():
                return node
            time.sleep(0.1)
    raise RuntimeError(f"{host} did not start")


def ask(**environment: str) -> subprocess.Popen[str]:
    """Another host in the network asks the head for its status."""
    return on("client", f"ray status --address {GCS}", **environment)


def main() -> None:
    result: dict[str, object] = {}
    began = time.monotonic()
    make_hosts()
    subprocess.run([str(REPOSITORY / "cluster" / "secrets.sh"), str(FOLDER / "secrets")], check=True)
    for host in HOSTS:
        equip(host)
    (FOLDER / "slow.py").write_text(SLOW)
    (FOLDER / "cut.yaml").write_text(CONFIG)
    nodes = {"head": start("head", 0, "--head --port=6379 --dashboard-host=127.0.0.1")}
    nodes |= {host: start(host, 1, f"--address={GCS}") for host in ("one", "two")}
    result["doctor"] = json.loads(_output("pate doctor --json --address " + GCS))["findings"]
    result["start"] = time.monotonic() - began

    run = FOLDER / "run"
    without_tls = ask(RAY_USE_TLS="0")  # it tries for half a minute
    at_work = on("head", f"pate run cut.yaml --out {run} --address {GCS}")
    log = FOLDER / "head" / "log"
    wait_until("training", lambda: trained(run) >= TEACHERS // 3, 240)
    result["trained_before"] = trained(run)
    ip("link set to-two down")
    print(f"cut at {time.monotonic() - began:.1f} s", flush=True)
    result["seconds_to_go_on"] = wait_until("votes", lambda: "counting votes" in log.read_text(), 120)
    result["status"] = at_work.wait(timeout=120)
    result["alive"] = nodes["one"].poll() is None
    (FOLDER / "wrong").write_text("0123456789abcdef" * 4)
    clients = {
        "right": ask(),
        "no token": ask(RAY_AUTH_MODE="disabled"),
        "wrong token": ask(RAY_AUTH_TOKEN_PATH=str(FOLDER / "wrong")),
        "no TLS": without_tls,
    }
    result["clients"] = {kind: client.wait(timeout=100) for kind, client in clients.items()}
    result["whole"] = time.monotonic() - began
    (FOLDER / "result.json").write_text(json.dumps(result))


def _output(command: str) -> str:
    """What a command on the head prints."""
    home = FOLDER / "head"
    script = f". {REPOSITORY}/cluster/env.sh && exec {command}"
    environment = os.environ | {"HOME": str(home), "PATE_RAY_HOME": str(home)}
    words = ["ip", "netns", "exec", "head", "bash", "-c", script]
    return subprocess.run(words, env=environment, capture_output=True, text=True, cwd=FOLDER).stdout or "{}"


if __name__ == "__main__":
    main()
