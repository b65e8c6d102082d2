# Settings that every Ray process of a cluster needs: source this on each node before `ray start`, and before `pate run`.
# Everything it names lies below PATE_RAY_HOME (default ~/.ray), which only its owner can read: the token, the
# certificates, and Ray's session directory (Ray makes its own directories open to everybody, so their parent is not).
export PATE_RAY_HOME="${PATE_RAY_HOME:-$HOME/.ray}"
mkdir -p "$PATE_RAY_HOME" && chmod 700 "$PATE_RAY_HOME"
export RAY_TMPDIR="$PATE_RAY_HOME" RAY_USAGE_STATS_ENABLED=0
if [ -d "$HOME/pate-venv/bin" ]; then export PATH="$HOME/pate-venv/bin:$PATH"; fi

# Ray would start workers at niceness 15, where they starve beside anything else that is busy.
export RAY_worker_niceness="${RAY_worker_niceness:-0}"

# Who may talk to the cluster: a client or node without this token is refused.
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH="$PATE_RAY_HOME/auth_token"
if [ -e "$RAY_AUTH_TOKEN_PATH" ]; then chmod 600 "$RAY_AUTH_TOKEN_PATH"; fi

# Encryption between nodes (gRPC). PATE_TLS=0 turns it off: for one machine only.
if [ "${PATE_TLS:-1}" = 1 ]; then
    export RAY_USE_TLS=1
    export RAY_TLS_CA_CERT="$PATE_RAY_HOME/tls/ca.crt"
    export RAY_TLS_SERVER_CERT="$PATE_RAY_HOME/tls/node.crt"
    export RAY_TLS_SERVER_KEY="$PATE_RAY_HOME/tls/node.key"
fi

# A node that falls silent is given up after 4 checks that wait 2 s each, 1 s apart: 12 s at most.
export RAY_health_check_initial_delay_ms=5000
export RAY_health_check_period_ms=1000
export RAY_health_check_timeout_ms=2000
export RAY_health_check_failure_threshold=4
# Calls that were under way on a dead connection fail after 2 + 3 s instead of hanging for minutes.
export RAY_grpc_client_keepalive_time_ms=2000
export RAY_grpc_client_keepalive_timeout_ms=3000
