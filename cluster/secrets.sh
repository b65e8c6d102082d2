#!/usr/bin/env bash
# Once, on your machine: the cluster's token and certificate authority, for you only. What is there already stays.
#   cluster/secrets.sh [DIR]     DIR defaults to ~/.ray, where Ray's own commands and cluster/*.yaml look for them
set -euo pipefail
umask 077
folder=${1:-$HOME/.ray}
mkdir -p "$folder"
[ -e "$folder/auth_token" ] || openssl rand -hex 32 >"$folder/auth_token"
chmod 600 "$folder/auth_token"
"$(dirname "$0")/tls.sh" ca "$folder/tls"
