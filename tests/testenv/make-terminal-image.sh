#!/usr/bin/env bash
# make-terminal-image.sh [NAME]: imports an image with the full-screen programs of this machine (bash, vim, less), the libraries
# that they need, the descriptions of terminals and a UTF-8 locale. Nothing is downloaded, so a program shows the same on both sides.
set -euo pipefail

name=${1:-lab/terminal:1}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/{bin,etc,root,tmp,dev,proc,sys,usr/bin,usr/lib/locale,usr/share,lib}
chmod 755 "$tree"
chmod 1777 "$tree/tmp"
chmod 700 "$tree/root"

# add PROGRAM...: with the libraries that it is linked to, at the places where its loader looks for them.
add() {
	local program file lib
	for program in "$@"; do
		file=$(type -P "$program") || { echo "make-terminal-image.sh: $program is not installed" >&2; exit 1; }
		cp -L "$file" "$tree/bin/$program"
		{ ldd "$file" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r lib; do
			mkdir -p "$tree$(dirname "$lib")"
			cp -Lu "$lib" "$tree$lib"
		done
	done
}
add bash cat clear cp date dircolors env false grep head less ls mkdir mktemp mv od printf rm sed seq sha256sum sleep sort stty tail tput \
	touch tr true tty vim wc yes
ln -s bash "$tree/bin/sh"
cp -rL /usr/share/vim "$tree/usr/share/"
for dir in /lib/terminfo /usr/share/terminfo /usr/lib/terminfo; do
	[ ! -d "$dir" ] || { mkdir -p "$tree$dir"; cp -rL "$dir/." "$tree$dir/"; }
done
cp -rL /usr/lib/locale/C.* "$tree/usr/lib/locale/"
printf 'root:x:0:0:root:/root:/bin/bash\n' >"$tree/etc/passwd"
printf 'root:x:0:\n' >"$tree/etc/group"

tar -C "$tree" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -c . |
	docker import - "$name"
