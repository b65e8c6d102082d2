#!/usr/bin/env bash
# Once, before `ray up cluster/aws.yaml`, with AWS's command line and the rights to do it:
#   cluster/aws/setup.sh BUCKET ADDRESS     BUCKET holds data and runs; ADDRESS, e.g. 203.0.113.7/32, may ssh to the nodes
# A security group "pate" and instance profiles "pate-head" and "pate-worker", which may do what head.json and worker.json say. Left
# to itself Ray would open ssh to the world, and give the head all of EC2 and S3.
set -euo pipefail
[ $# = 2 ] || { sed -n 2,6p "$0" >&2; exit 2; }
bucket=$1 address=$2 here=$(cd "$(dirname "$0")" && pwd)
case $address in
*/0) echo "$address: is everybody; give your own address, e.g. 203.0.113.7/32" >&2; exit 2 ;;
*/*) ;;
*) echo "$address: is no range of addresses; one address ends in /32" >&2; exit 2 ;;
esac
region=$(aws configure get region) account=$(aws sts get-caller-identity --query Account --output text)

group=$(aws ec2 create-security-group --group-name pate --description "pate: ssh from one address, all within" \
    --query GroupId --output text)
aws ec2 authorize-security-group-ingress --group-id "$group" --protocol tcp --port 22 --cidr "$address" >/dev/null
aws ec2 authorize-security-group-ingress --group-id "$group" --protocol all --source-group "$group" >/dev/null

instances='{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}'
for role in head worker; do
    policy=$(sed "s|REGION|$region|g; s|ACCOUNT|$account|g; s|GROUP|$group|g; s|BUCKET|$bucket|g" "$here/$role.json")
    aws iam create-role --role-name "pate-$role" --assume-role-policy-document "$instances" >/dev/null
    aws iam put-role-policy --role-name "pate-$role" --policy-name "pate-$role" --policy-document "$policy"
    aws iam create-instance-profile --instance-profile-name "pate-$role" >/dev/null
    aws iam add-role-to-instance-profile --instance-profile-name "pate-$role" --role-name "pate-$role"
done
echo "write into cluster/aws.yaml:    SecurityGroupIds: [$group]"
