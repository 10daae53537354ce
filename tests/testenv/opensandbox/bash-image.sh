#!/usr/bin/env bash
# bash-image.sh NAME [BASE]: builds an image with bash and the programs of this machine that terminal sessions of the
# OpenSandbox daemon use, on top of the small test image. Nothing is downloaded.
set -euo pipefail

name=${1:?usage: bash-image.sh NAME [BASE]}
base=${2:-lab/busybox:1}
programs=(bash env stty)

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/root/usr/local/bin"
for program in "${programs[@]}"; do
	path=$(command -v "$program")
	cp -L "$path" "$tree/root/usr/local/bin/$program"
	# The loader and the libraries keep their places.
	ldd "$path" | grep -o '/[^ ]*' | while read -r library; do
		mkdir -p "$tree/root$(dirname "$library")"
		cp -L "$library" "$tree/root$library"
	done
done
# Programs ask for bash where most systems have it.
mkdir -p "$tree/root/bin"
cp "$tree/root/usr/local/bin/bash" "$tree/root/bin/bash"
rm "$tree/root/usr/local/bin/bash"
tar -C "$tree/root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$tree/root.tar" .
printf 'FROM %s\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nADD root.tar /\n' "$base" >"$tree/Dockerfile"
# The engine's own builder is enough, and speaks of its age on every run.
if ! said=$(DOCKER_BUILDKIT=0 docker build -q -t "$name" "$tree" 2>&1); then
	echo "bash-image.sh: $said" >&2
	exit 1
fi
