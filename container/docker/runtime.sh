#!/bin/sh
# The runtime "weir" of a Docker engine, written by Weir: runc, but a container of Weir's gets the configuration that Weir wrote for it in place of
# the engine's, and does not start before Weir says so. Any other container is passed on as it is.
for id; do :; done # the last argument, where it matters here
for dir in /run/weir/*/docker/engine/"$id"; do break; done
[ -d "$dir" ] || exec runc "$@"

refuse() {
	printf '{"level":"error","msg":"%s"}\n' "$1" >>"$log"
	echo "$1" >&2
	exit 1
}

# The verb, and what is before and behind it. --systemd-cgroup goes: the configuration names cgroups by their paths.
verb= root= log=/dev/null bundle= pid= last= n=$#
while [ "$n" -gt 0 ]; do
	arg=$1
	shift
	n=$((n - 1))
	case $last in
	--root) root=$arg ;;
	--log) log=$arg ;;
	--bundle) bundle=$arg ;;
	--pid-file) pid=$arg ;;
	--log-format | --process | --console-socket) ;;
	*) case $arg in
		--systemd-cgroup) continue ;;
		-*) ;;
		*) verb=${verb:-$arg} ;;
		esac ;;
	esac
	last=$arg
	set -- "$@" "$arg"
done

case $verb in
create)
	[ -e "$dir/made" ] && refuse "this container belongs to Weir, which starts it itself"
	printf '%s\n%s\n%s\n' "$root" "$id" "$bundle" >"$dir/made" || refuse "$dir/made cannot be written"
	cp "$dir/config.json" "$bundle/config.json" || refuse "$dir/config.json cannot be copied to $bundle"
	set -- runc "$@"
	if [ -e "$dir/limits" ]; then # to be inherited: see container/oci/limits.go
		limits=$(cat "$dir/limits") || refuse "$dir/limits cannot be read"
		set -- prlimit $limits "$@"
	fi
	env --block-signal=XFSZ "$@" </dev/null >>"$dir/log" 2>&1 || exit
	cp "$pid" "$dir/pid.new" && mv "$dir/pid.new" "$dir/pid" || refuse "$dir/pid cannot be written"
	;;
start) ;; # Weir does
delete)
	if [ -e "$dir/oom" ]; then # the cgroup goes
		cp "$dir/oom" "$dir/ended.new"
		[ -e "$dir/failcnt" ] && echo "failcnt $(cat "$dir/failcnt")" >>"$dir/ended.new" # of version 1
		mv "$dir/ended.new" "$dir/ended"
	fi
	exec runc "$@"
	;;
*) exec runc "$@" ;;
esac
