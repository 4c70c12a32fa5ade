# Sourced by setup.sh and peers.sh: apt-get that ends. A mirror that does not answer, or a package whose script waits for somebody, would hold up
# `make setup` for ever, and continuous integration until its limit.
export DEBIAN_FRONTEND=noninteractive
APT_LIMIT=${APT_LIMIT:-900} # seconds for one try; the first installation takes about a minute

# limited SECONDS COMMAND...: ends it after that time, and when this script is interrupted.
limited() {
	local pid code=0
	timeout --kill-after 30 "$@" </dev/null >>"$log" 2>&1 &
	pid=$!
	trap 'kill -TERM $pid 2>/dev/null; exit 130' INT TERM
	wait $pid || code=$?
	trap - INT TERM
	return $code
}

# bounded apt-get ...: tried twice, with what it prints in the file $log.
bounded() {
	local try code=0
	for try in 1 2; do
		code=0
		limited "$APT_LIMIT" "$@" -o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 -o DPkg::Lock::Timeout=300 \
			-o APT::Update::Error-Mode=any || code=$?
		case $code in
		0) return 0 ;;
		124 | 137) printf '%s %s did not end within %s s: end other installations, and check the mirrors in /etc/apt\n' "$1" "$2" "$APT_LIMIT" >>"$log" ;;
		esac
		[ "$try" = 2 ] && return $code
		say "$1 $2 failed (exit code $code): $(tail -n 1 "$log")"
		say "trying once more"
		# What was interrupted while it was being configured stops every later installation.
		limited 120 dpkg --configure -a || true
	done
}
