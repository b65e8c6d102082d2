#!/usr/bin/env bash
# Certificates for one cluster.
#   cluster/tls.sh ca DIR            once, on your machine: a certificate authority for this cluster alone
#   cluster/tls.sh node DIR [NAME…]  on each node: a certificate for its addresses, and for further addresses or names
# DIR/ca.key makes members of the cluster: keep it as you keep the token.
set -euo pipefail
umask 077
[ $# -ge 2 ] || { sed -n 2,5p "$0" >&2; exit 2; }
what=$1 folder=$2
shift 2
mkdir -p "$folder"
cd "$folder"
case $what in
ca)
    [ ! -e ca.key ] || exit 0
    openssl req -x509 -newkey rsa:3072 -sha256 -nodes -days 365 -subj "/CN=pate cluster" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca.key -out ca.crt 2>/dev/null
    ;;
node)
    names="DNS:localhost,DNS:$(hostname)"
    for name in 127.0.0.1 $(hostname -I) "$@"; do
        case $name in
        *:* | [0-9]*.*[0-9]) names="$names,IP:$name" ;;
        *) names="$names,DNS:$name" ;;
        esac
    done
    openssl req -new -newkey rsa:3072 -sha256 -nodes -subj "/CN=pate node" -keyout node.key -out node.csr 2>/dev/null
    openssl x509 -req -sha256 -days 365 -in node.csr -CA ca.crt -CAkey ca.key -set_serial "0x$(openssl rand -hex 16)" \
        -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$names") \
        -out node.crt 2>/dev/null
    rm node.csr
    ;;
*)
    echo "$what: is neither ca nor node" >&2
    exit 2
    ;;
esac
