#!/usr/bin/env bash
# Once, before `ray up cluster/gcp.yaml`, with Google's command line:
#   cluster/gcp/setup.sh PROJECT REGION ADDRESS     ADDRESS, e.g. 203.0.113.7/32, may ssh to the nodes
# A network "pate" that lets in ssh from there and what its own nodes say, nothing else: a project's "default" network, which Ray
# would take, lets in ssh from everywhere.
set -euo pipefail
[ $# = 3 ] || { sed -n 2,5p "$0" >&2; exit 2; }
project=$1 region=$2 address=$3
case $address in
*/0) echo "$address: is everybody; give your own address, e.g. 203.0.113.7/32" >&2; exit 2 ;;
*/*) ;;
*) echo "$address: is no range of addresses; one address ends in /32" >&2; exit 2 ;;
esac
gcloud compute networks create pate --project "$project" --subnet-mode custom
gcloud compute networks subnets create pate --project "$project" --network pate --region "$region" --range 10.77.0.0/20 \
    --enable-private-ip-google-access
gcloud compute firewall-rules create pate-ssh --project "$project" --network pate --allow tcp:22 --source-ranges "$address"
gcloud compute firewall-rules create pate-within --project "$project" --network pate --allow tcp,udp,icmp --source-ranges 10.77.0.0/20
