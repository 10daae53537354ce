#!/usr/bin/env bash
# One place that knows how this project is built and tested. `./build.sh help` lists the verbs.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
cd "$root"
PATH=$PATH:/usr/local/go/bin
# Go asks git for a version stamp otherwise, which fails in an unpacked source archive inside somebody else's repository.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-buildvcs=false"

lib_out=${NGS_LIB_OUT:-python/nemo_gym_sandbox/_core/libngs.so}
venv=$root/.venv
staticcheck_version=v0.8.2
test_image=lab/busybox:1
execd_image=lab/execd:1

# Two lines on stderr: what is wrong, and what to do about it.
die() { printf 'build.sh: %s\n          %s\n' "$1" "$2" >&2; exit 1; }

now() { date +%H:%M:%S; }

# step NAME COMMAND...: runs it between two time stamps, so that a slow step can be found in a log.
step() {
	local name=$1 start=$SECONDS
	shift
	printf '%s == %s\n' "$(now)" "$name"
	"$@"
	printf '%s    %s: %d s\n' "$(now)" "$name" $((SECONDS - start))
}

# ---- what has to be on the machine ------------------------------------------------------------------------------------

need_go() {
	local want have
	want=$(awk '$1 == "go" { print $2; exit }' go.mod)
	command -v go >/dev/null || die "Go is not installed; the core of this package is written in it." \
		"Install Go $want or newer and put it on PATH, or install a prebuilt wheel."
	have=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null | sed 's/^go//; s/[ -].*//')
	[ "$(printf '%s\n' "$want" "$have" | sort -V | head -n 1)" = "$want" ] ||
		die "Go $have is too old: go.mod asks for $want." "Install Go $want or newer, or install a prebuilt wheel."
}

need_cc() {
	local cc
	cc=${CC:-$(go env CC)}
	command -v "${cc%% *}" >/dev/null || die "No C compiler: \"$cc\" is not on PATH; the library is linked with one." \
		"Install gcc (Debian: apt-get install gcc libc6-dev), or set CC."
}

# The first Python of at least 3.11, or $PYTHON.
python() {
	local p
	for p in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
		if "$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
			echo "$p"
			return
		fi
	done
	die "No Python 3.11 or newer found." "Install one, or name it: PYTHON=/path/to/python3 ./build.sh ..."
}

# apt_missing COMMAND=PACKAGE...: installs the packages whose command is absent.
apt_missing() {
	local pair missing=()
	for pair in "$@"; do
		command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
	done
	[ ${#missing[@]} -eq 0 ] && return
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		die "Missing on this machine: ${missing[*]} (Debian's names)." "Install them; this script does it only as root on a Debian."
	fi
	echo "installing ${missing[*]}"
	DEBIAN_FRONTEND=noninteractive apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

setup_tools() {
	apt_missing bwrap=bubblewrap gcc=gcc gzip=gzip
	# gcc alone brings no headers where recommended packages are left out.
	[ -e /usr/include/stdlib.h ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null ||
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libc6-dev >/dev/null
	need_go
	need_cc
	python >/dev/null
}

setup_docker() {
	apt_missing dockerd=docker.io busybox=busybox-static tmux=tmux vim=vim less=less
	apt_missing docker=docker-cli
}

# The development environment. Done again only when pyproject.toml or the interpreter changed.
setup_venv() {
	local py want
	py=$(python)
	want="$("$py" -VV | tr '\n' ' ') $root $(sha256sum pyproject.toml hatch_build.py | tr '\n' ' ')"
	if [ "$(cat "$venv/.made-from" 2>/dev/null)" != "$want" ]; then
		"$py" -c 'import ensurepip' 2>/dev/null || apt_missing "no-such-command=python3-venv"
		rm -rf "$venv"
		"$py" -m venv "$venv"
		# The library is a step of its own, with its own messages: the editable install leaves it alone.
		NGS_SKIP_LIB=1 "$venv/bin/python" -m pip install -q --disable-pip-version-check -e '.[dev]'
		printf '%s' "$want" >"$venv/.made-from"
	fi
	if [ ! -x "$venv/bin/staticcheck" ]; then
		GOBIN=$venv/bin go install "honnef.co/go/tools/cmd/staticcheck@$staticcheck_version"
	fi
}

# ---- what is built ------------------------------------------------------------------------------------------------------

# The static binary that runs inside sandboxes, for each architecture that a sandbox may have.
build_agent() {
	local arch gz new
	need_go
	mkdir -p build/agent agent/dist
	for arch in amd64 arm64; do
		CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -ldflags "-s -w" \
			-o "build/agent/ngs-agent-linux-$arch" ./agent/cmd/ngs-agent
		gz=agent/dist/ngs-agent-linux-$arch.gz
		# A name of its own for each run: two may be under way in one clone.
		new=$(mktemp "build/agent/new-$arch.XXXXXX")
		gzip -9n <"build/agent/ngs-agent-linux-$arch" >"$new"
		# Left alone when nothing changed, so that the library, which embeds it, is not linked again.
		cmp -s "$new" "$gz" || mv "$new" "$gz"
		rm -f "$new"
	done
}

# The shared library that Python loads. Only the functions in capi/exports.map are visible in it.
build_lib() {
	local map=$root/capi/exports.map
	need_go
	need_cc
	build_agent
	# The linker cuts its flags at blanks, whatever the quotes.
	if [[ $map = *[[:space:]]* ]]; then
		map=$(mktemp)
		cp capi/exports.map "$map"
	fi
	mkdir -p "$(dirname "$lib_out")"
	CGO_ENABLED=1 go build -buildmode=c-shared -trimpath \
		-ldflags "-s -w -extldflags=-Wl,--version-script=$map" -o "$lib_out" ./capi
	# cgo writes a header of its own; the one that counts is capi/ngs.h.
	rm -f "${lib_out%.so}.h"
	[ "$map" = "$root/capi/exports.map" ] || rm -f "$map"
}

# zig_cc ARCH: makes build/zig/cc-ARCH, a C compiler for that architecture and glibc 2.17. zig comes as a Python package.
zig_cc() {
	local cc=build/zig/cc-$1
	mkdir -p build/zig
	"$venv/bin/python" -c 'import ziglang' 2>/dev/null || "$venv/bin/python" -m pip install -q 'ziglang==0.17.1'
	printf '#!/bin/sh\nexec "%s" -m ziglang cc -target %s-linux-gnu.2.17 "$@"\n' "$venv/bin/python" "$1" >"$cc"
	chmod +x "$cc"
}

# A wheel in dist/. With NGS_ZIG=1 it is linked against glibc 2.17 and tagged manylinux_2_17, for each of NGS_ZIG_ARCHS.
build_wheel() {
	local arch goarch so
	setup_tools
	setup_venv
	mkdir -p dist
	if [ "${NGS_ZIG:-}" != 1 ]; then
		"$venv/bin/python" -m pip wheel -q --no-deps -w dist .
		return
	fi
	for arch in ${NGS_ZIG_ARCHS:-$(uname -m)}; do
		case $arch in
		x86_64) goarch=amd64 ;;
		aarch64) goarch=arm64 ;;
		*) die "No wheel is made for the architecture $arch." "NGS_ZIG_ARCHS takes x86_64 and aarch64." ;;
		esac
		so=$root/build/zig/$arch/libngs.so
		zig_cc "$arch"
		(
			export PATH=$root/build/zig:$PATH CC=cc-$arch GOOS=linux GOARCH=$goarch
			lib_out=$so
			build_lib
		)
		NGS_PREBUILT_SO=$so NGS_PLAT=manylinux_2_17_$arch "$venv/bin/python" -m pip wheel -q --no-deps -w dist .
	done
}

# ---- the engine for tests ------------------------------------------------------------------------------------------------

dockerd_pid=

engine_up() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

stop_dockerd() {
	[ -n "$dockerd_pid" ] || return 0
	kill "$dockerd_pid" 2>/dev/null || true
	wait "$dockerd_pid" 2>/dev/null || true
	dockerd_pid=
}

# Uses the engine that is there; else, as root, starts one for as long as this script runs.
start_dockerd() {
	local log=$root/build/dockerd.log deadline=$((SECONDS + 90))
	engine_up && return
	[ -z "${DOCKER_HOST:-}" ] || die "No engine answers at DOCKER_HOST=$DOCKER_HOST." "Start it, or unset DOCKER_HOST to have one started here."
	[ "$(id -u)" = 0 ] || die "No container engine is reachable, and only root can start one." "Start Docker, or run this as root."
	mkdir -p build
	grep -q '^[^ ]* /sys/fs/cgroup' /proc/self/mounts || mount -t cgroup2 cgroup2 /sys/fs/cgroup
	# A pid file that a killed engine left behind keeps the next one from starting when the number is in use again.
	if [ -e /var/run/docker.pid ] && [ "$(cat "/proc/$(cat /var/run/docker.pid)/comm" 2>/dev/null)" != dockerd ]; then
		rm -f /var/run/docker.pid
	fi
	setsid dockerd >"$log" 2>&1 </dev/null &
	dockerd_pid=$!
	trap stop_dockerd EXIT
	until engine_up; do
		if ! kill -0 "$dockerd_pid" 2>/dev/null || [ $SECONDS -ge $deadline ]; then
			tail -n 20 "$log" >&2
			die "dockerd did not come up within 90 s." "Its log: $log"
		fi
		sleep 0.2
	done
}

build_image() {
	docker image inspect "$test_image" >/dev/null 2>&1 || tests/testenv/make-image.sh "$test_image"
}

# Made each time: it holds the agent as it is now.
build_execd_image() { tests/testenv/execd-image.sh "$execd_image"; }

# ---- what is checked ------------------------------------------------------------------------------------------------------

go_format() {
	local bad
	bad=$(git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -l)
	[ -z "$bad" ] || die "Not formatted: $(echo "$bad" | tr '\n' ' ')" "Run: gofmt -w FILE..."
}

go_lint() {
	go build ./...
	go vet ./...
	"$venv/bin/staticcheck" ./...
}

# Shells start what runs in the background with interrupts ignored, and all below inherits it; the tests send some.
interruptible() { env --default-signal=INT,QUIT "$@"; }

go_tests() { interruptible go test -race -timeout 30m ./...; }

go_arch() { go test ./tests/go -run TestArchitecture; }

py_lint() {
	"$venv/bin/ruff" format --check -q .
	"$venv/bin/ruff" check -q .
}

py_types() { "$venv/bin/pyright" --pythonpath "$venv/bin/python"; }

py_tests() { interruptible "$venv/bin/python" -m pytest tests/py "$@"; }

# Programs in C that use the library as a stranger would: with capi/ngs.h and nothing else.
c_tests() {
	local src bin
	mkdir -p build/c
	for src in tests/c/*.c; do
		bin=build/c/$(basename "$src" .c)
		gcc -std=c11 -Wall -Wextra -Werror -Icapi -o "$bin" "$src" "$root/$lib_out" -Wl,-rpath,"$root/$(dirname "$lib_out")" -lpthread
		"$bin"
	done
}

# ---- verbs ----------------------------------------------------------------------------------------------------------------

verb_help() {
	cat <<'TEXT'
usage: ./build.sh VERB

  quickstart   build the library and run examples/quickstart.py (needs Go, a C compiler, Python 3.11+; no Docker)
  setup        install what development needs: Debian packages (as root), .venv with the tools
  agent        build the binaries that run inside sandboxes: agent/dist/ngs-agent-linux-<arch>.gz
  lib          agent, then the shared library: python/nemo_gym_sandbox/_core/libngs.so
  check        the quick look: format, lint, types, who imports whom
  test         everything: setup, an engine if none runs, check, Go tests with the race detector, C and Python tests
  wheel        dist/*.whl; NGS_ZIG=1 links it against glibc 2.17 (NGS_ZIG_ARCHS="x86_64 aarch64")
  image        make the test image lab/busybox:1 when the engine doesn't have it
  execd-image  agent, then the image lab/execd:1, from which an OpenSandbox server takes it for its sandboxes

PYTHON names the interpreter to use, CC the C compiler, NGS_LIB_OUT another place for the library.
TEXT
}

verb_setup() {
	step "tools" setup_tools
	step "engine's packages" setup_docker
	step "python environment" setup_venv
}

verb_agent() { build_agent; }

verb_lib() { build_lib; }

verb_image() {
	setup_docker
	start_dockerd
	build_image
}

verb_execd-image() {
	setup_docker
	start_dockerd
	build_agent
	build_execd_image
}

verb_wheel() { build_wheel; }

verb_quickstart() {
	step "tools" setup_tools
	step "library" build_lib
	step "examples/quickstart.py" env PYTHONPATH=python "$(python)" examples/quickstart.py
}

verb_check() {
	setup_tools
	setup_venv
	build_agent
	step "go format" go_format
	step "go build, vet, staticcheck" go_lint
	step "who imports whom" go_arch
	step "python format and lint" py_lint
	step "python types" py_types
}

verb_test() {
	verb_setup
	step "engine" start_dockerd
	step "test image" build_image
	step "agent" build_agent
	step "go format" go_format
	step "go build, vet, staticcheck" go_lint
	step "library" build_lib
	step "python format and lint" py_lint
	step "python types" py_types
	step "go tests" go_tests
	if compgen -G 'tests/c/*.c' >/dev/null; then step "c tests" c_tests; fi
	step "python tests" py_tests
	printf '%s all of it passed in %d s\n' "$(now)" "$SECONDS"
}

verb=${1:-help}
[ $# -eq 0 ] || shift
case $verb in
help | -h | --help) verb_help ;;
setup | agent | lib | quickstart | test | wheel | check | image | execd-image) "verb_$verb" "$@" ;;
*)
	verb_help >&2
	die "There is no verb \"$verb\"." "See the list above."
	;;
esac
