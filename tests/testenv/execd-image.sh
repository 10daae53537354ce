#!/usr/bin/env bash
# execd-image.sh [NAME]: imports the image from which an OpenSandbox server takes the daemon that it puts into
# sandboxes: /execd, which is this project's agent, and /bootstrap.sh. Nothing is downloaded. NGS_AGENT names another
# binary than the one that ./build.sh agent has made. The server runs tail in it while it copies.
set -euo pipefail

name=${1:-lab/execd:1}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
case $(uname -m) in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
*) echo "execd-image.sh: there is no agent for $(uname -m)" >&2; exit 1 ;;
esac
agent=${NGS_AGENT:-$here/../../build/agent/ngs-agent-linux-$arch}
if [ ! -f "$agent" ]; then
	echo "execd-image.sh: $agent is missing; run ./build.sh agent" >&2
	exit 1
fi

busybox=$(command -v busybox) || { echo "execd-image.sh: busybox is not installed (Debian: busybox-static)" >&2; exit 1; }

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
install -m 755 "$agent" "$tree/execd"
install -m 755 "$here/execd/bootstrap.sh" "$tree/bootstrap.sh"
install -D -m 755 "$busybox" "$tree/bin/tail"

tar -C "$tree" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -c . |
	docker import - "$name"
