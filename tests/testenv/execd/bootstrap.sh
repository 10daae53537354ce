#!/bin/sh
# bootstrap.sh ARGV...: process 1 of a sandbox. Starts the daemon that lies beside it in the background, runs ARGV and
# ends with its exit code. It obeys these variables:
#   EXECD_BOOTSTRAP_PRE_SCRIPT  a script that this shell reads first: what it exports reaches the daemon and ARGV
#   BOOTSTRAP_CMD               a command of a shell, which runs in ARGV's place
#   BOOTSTRAP_SHELL             that shell; bash where there is one, else sh
here=${0%/*}
: "${EXECD_ENVS:=$here/.env}"
export EXECD_ENVS

if [ -n "${EXECD_BOOTSTRAP_PRE_SCRIPT:-}" ]; then
	case $EXECD_BOOTSTRAP_PRE_SCRIPT in
	*/*) ;;
	*) EXECD_BOOTSTRAP_PRE_SCRIPT=./$EXECD_BOOTSTRAP_PRE_SCRIPT ;; # else it would be looked for in PATH
	esac
	if [ ! -f "$EXECD_BOOTSTRAP_PRE_SCRIPT" ] || [ ! -r "$EXECD_BOOTSTRAP_PRE_SCRIPT" ]; then
		echo "bootstrap.sh: EXECD_BOOTSTRAP_PRE_SCRIPT names $EXECD_BOOTSTRAP_PRE_SCRIPT, which is no file that can be read" >&2
		exit 127
	fi
	. "$EXECD_BOOTSTRAP_PRE_SCRIPT"
	set +eu # of the script alone
fi
if [ -n "${BOOTSTRAP_CMD:-}" ]; then
	set -- "${BOOTSTRAP_SHELL:-$(command -v bash || echo sh)}" -c "$BOOTSTRAP_CMD"
fi

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
