#!/usr/bin/env bash
# make-image.sh [NAME]: imports a small image into the engine: a static busybox with all its links, /tmp, /root and
# two users (root, nobody). Nothing is downloaded. The archive is the same each time, so the image's layer is too.
set -euo pipefail

name=${1:-lab/busybox:1}
busybox=$(command -v busybox) || { echo "make-image.sh: busybox is not installed (Debian: busybox-static)" >&2; exit 1; }
if ldd "$busybox" >/dev/null 2>&1; then
	echo "make-image.sh: $busybox is not a static binary; install busybox-static" >&2
	exit 1
fi

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/{bin,etc,root,tmp,dev,proc,sys}
chmod 755 "$tree"
chmod 1777 "$tree/tmp"
chmod 700 "$tree/root"
cp "$busybox" "$tree/bin/busybox"
chmod 755 "$tree/bin/busybox"
"$busybox" --list | while read -r applet; do
	[ "$applet" = busybox ] || ln -s busybox "$tree/bin/$applet"
done
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >"$tree/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$tree/etc/group"

tar -C "$tree" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -c . |
	docker import - "$name"
