#!/bin/sh
# bootstrap.sh ARGV...: process 1 of a sandbox. Starts the daemon that lies beside it in the background, runs ARGV and
# ends with its exit code.
here=${0%/*}
: "${EXECD_ENVS:=$here/.env}"
export EXECD_ENVS
"$here/execd" &

[ $# -gt 0 ] || set -- tail -f /dev/null
# What a shell starts in the background ignores interrupts, unless it says otherwise.
(
	trap - INT QUIT
	exec "$@"
) &
main=$!
trap 'kill -TERM "$main"' TERM INT
# A trap ends the wait, not what was waited for.
while :; do
	wait "$main"
	code=$?
	kill -0 "$main" 2>/dev/null || exit "$code"
done
