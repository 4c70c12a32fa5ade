# Sourced by setup.sh and peers.sh: apt-get that ends. A mirror that does not answer, or a package whose script waits for somebody, would hold up
# `make setup` for ever, and continuous integration until its limit.
export DEBIAN_FRONTEND=noninteractive
APT_LIMIT=${APT_LIMIT:-900} # seconds for one try; the first installation takes about a minute

# bounded COMMAND...: apt-get or apt-get download, twice if it fails, with what it prints in the file $log.
bounded() {
	local try code=0
	for try in 1 2; do
		code=0
		timeout --kill-after 30 "$APT_LIMIT" "$@" -o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 -o DPkg::Lock::Timeout=300 \
			</dev/null >"$log" 2>&1 || code=$?
		[ "$code" = 0 ] && return 0
		[ "$try" = 1 ] || break
		[ "$code" = 124 ] || [ "$code" = 137 ] && say "$1 $2 did not end within $APT_LIMIT s" || say "$1 $2 failed (exit code $code)"
		say "trying once more"
		# What was interrupted while it was being configured stops every later installation.
		timeout --kill-after 30 "$APT_LIMIT" dpkg --configure -a </dev/null >>"$log" 2>&1 || true
	done
	[ "$code" = 124 ] || [ "$code" = 137 ] && printf '%s %s did not end within %s s: is the mirror of packages reached, and does no other installation run?\n' "$1" "$2" "$APT_LIMIT" >>"$log"
	return "$code"
}
