#!/usr/bin/env bash
# A "cluster" on this machine: a head and a worker as processes of their own, with a token, on loopback.
#   cluster/one_machine.sh [DIR]     DIR holds token, certificates and sessions; default: a new one below /tmp
# PATE_TLS=1 encrypts as well; CPUS=N gives each of the two nodes N CPUs (default 1). Ctrl-C ends it.
set -euo pipefail
set -m  # each node is a process group of its own, to be ended as a whole
host=127.0.0.2  # loopback; Ray would turn 127.0.0.1 into an address that others can reach
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$(mktemp -d /tmp/pate-XXXXXX)}  # a short path: Ray's sockets take at most 107 characters
mkdir -p "$folder"
export PATE_RAY_HOME="$folder" PATE_TLS="${PATE_TLS:-0}"
umask 077
"$here/secrets.sh" "$folder"
if [ "$PATE_TLS" = 1 ]; then "$here/tls.sh" node "$folder/tls" "$host"; fi
# shellcheck source=cluster/env.sh
. "$here/env.sh"

read -r gcs dashboard client agent1 agent2 < <(python - <<'PYTHON'
import socket
sockets = [socket.socket() for _ in range(5)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))
PYTHON
)
cpus=${CPUS:-1} nodes=()
stop() {
    trap - EXIT INT TERM
    for node in "${nodes[@]}"; do kill -- "-$node" 2>/dev/null || true; done
    for _ in {1..30}; do
        [ -n "$(jobs -r)" ] || break
        sleep 0.1
    done
    for node in "${nodes[@]}"; do kill -KILL -- "-$node" 2>/dev/null || true; done
}
trap stop EXIT INT TERM

ray start --head --block --node-ip-address="$host" --port="$gcs" --temp-dir="$folder/head" --num-cpus="$cpus" \
    --dashboard-host=127.0.0.1 --dashboard-port="$dashboard" --ray-client-server-port="$client" \
    --dashboard-agent-listen-port="$agent1" >"$folder/head.log" 2>&1 &
nodes+=($!)
ready() { (exec 3<>"/dev/tcp/${2:-127.0.0.1}/$1") 2>/dev/null; }
until ready "$dashboard" && ready "$agent1" "$host"; do
    kill -0 "${nodes[0]}" 2>/dev/null || { tail -n 20 "$folder/head.log" >&2; exit 1; }
    sleep 0.2
done
ray start --block --address="$host:$gcs" --node-ip-address="$host" --temp-dir="$folder/worker" \
    --num-cpus="$cpus" --dashboard-agent-listen-port="$agent2" >"$folder/worker.log" 2>&1 &
nodes+=($!)

cat <<READY
the cluster runs; Ctrl-C here ends it. In another terminal:
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/auth_token
  pate submit configs/digits.yaml --address http://127.0.0.1:$dashboard
  ray job submit --address http://127.0.0.1:$dashboard --working-dir . -- pate run configs/digits.yaml
  pate doctor --address http://127.0.0.1:$dashboard
  pate run configs/digits.yaml --address $host:$gcs
READY
wait -n
tail -n 20 "$folder/head.log" "$folder/worker.log" >&2
exit 1
