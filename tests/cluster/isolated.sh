#!/usr/bin/env bash
# isolated.sh FOLDER COMMAND…    as root: runs COMMAND where it can change nothing of this machine but FOLDER.
#
# It gets process, network and mount namespaces of its own, which end with it. There every file system is read-only, homes
# included, but for FOLDER and what is memory: /tmp, /run, /dev/shm and /etc (a copy). Folders are covered, never single
# files: the kernel undoes a mount over a file when somebody replaces that file in another namespace.
# The folders that KEEP names, separated by colons, can be read even where they lie below what is memory.
set -euo pipefail
if [ "${1:-}" != --inside ]; then
    exec unshare --pid --net --mount --propagation private --mount-proc --fork --kill-child "$0" --inside "$@"
fi
folder=$(realpath "$2")
shift 2

mapfile -t mounted < <(awk '$5 !~ "^/(proc|dev)(/|$)" {print $5}' /proc/self/mountinfo)
for place in "${mounted[@]}"; do
    [ ! -e "$place" ] || mount -o remount,bind,ro "$place" # what another mount covers is not there
done
mount --bind -o ro /proc/sys /proc/sys

mount -t tmpfs tmpfs /mnt
mkdir /mnt/folder /mnt/etc
mount --bind "$folder" /mnt/folder # /tmp, where it may lie, is covered below
mount -o remount,bind,rw /mnt/folder
IFS=: read -ra kept <<<"${KEEP:-}"
for n in "${!kept[@]}"; do mkdir "/mnt/$n" && mount --bind "${kept[n]}" "/mnt/$n"; done
cp -a /etc/. /mnt/etc
mount --bind /mnt/etc /etc
for place in /tmp /run /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$place"; done
mkdir -p "$folder"
mount --bind /mnt/folder "$folder"
umount /mnt/folder
for n in "${!kept[@]}"; do
    mkdir -p "${kept[n]}" 2>/dev/null || true # it is there, on what is read-only
    mount --bind "/mnt/$n" "${kept[n]}" && mount -o remount,bind,ro "${kept[n]}" && umount "/mnt/$n"
done
umount /mnt
exec "$@"
