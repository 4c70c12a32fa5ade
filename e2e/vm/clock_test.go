package vm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/image"
)

// clockTime bounds the run: a whole Weir in an emulated processor.
const clockTime = 8 * time.Minute

// clockModules are those of a Weir with the eBPF switch.
var clockModules = []string{"veth", "bridge", "overlay", "sch_ingress", "cls_bpf", "act_bpf", "nf_tables", "nf_conntrack_bridge", "nft_ct", "nft_limit", "nft_log", "nft_reject_bridge", "nft_meta_bridge"}

// clockScript runs a Weir with a firewall that closes when it fails, and steps the machine's clock by an hour, forward and back. What it prints is looked at
// outside. pass and closed are attempts of frames that the firewall allows and does not.
const clockScript = `#!/busybox sh
/busybox mkdir -p /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/ HOME=/root TMPDIR=/tmp NO_COLOR=1 WEIR_IMAGES=/images
mkdir -p /proc /sys /tmp /run /dev /root
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mount -t cgroup2 c /sys/fs/cgroup; mount -t bpf b /sys/fs/bpf
ip link set lo up
ip() { /usr/sbin/ip "$@"; } # not the shell's own
step() { echo "STEP $* at $(date -u +%FT%T)"; }
die() { echo "VM-FAIL $*"; date; weir get hosts; weir status; weir events; tail -n 40 /var/lib/weir/0/weir.log; poweroff -f; sleep 60; }
until_ok() { # SECONDS COMMAND...: uptime is the clock that nobody sets
	end=$(($(cut -d. -f1 /proc/uptime) + $1)); shift
	until "$@" >/tmp/last 2>&1; do [ $(cut -d. -f1 /proc/uptime) -lt $end ] || { cat /tmp/last; return 1; }; sleep 0.5; done
}
pass() { ip netns exec alice /busybox ping -q -c 2 -W 2 10.9.0.2; }
closed() { ! ip netns exec alice /busybox nc -w 2 10.9.0.2 81 </dev/null 2>&1 | grep -q refused; }
well() { weir status | grep -q "all well"; }
pids() { weir get functions -o json | grep -o '"pid": *[0-9]*'; }
look() { # NAME: for 15 s nothing is lost, moved, died or open
	end=$(($(cut -d. -f1 /proc/uptime) + 15))
	while [ $(cut -d. -f1 /proc/uptime) -lt $end ]; do
		closed || die "$1: port 81 is open"
		pass || die "$1: no ping"
		sleep 1
	done
	well || die "$1: not all well"
	[ "$(pids)" = "$before" ] || die "$1: other processes: $(pids), were $before"
	weir get functions; weir get hosts
}
for n in alice bob; do ip netns add $n; done
weir up --detach --listen none --allow-vulnerable-runtime --timeout 3m || die up
weir token create ci --role operator --ttl 24h >/tmp/token || die token
printf 'endpoints:\n  alice: {netns: alice, interface: eth0, address: 10.9.0.1/24}\n  bob: {netns: bob, interface: eth0, address: 10.9.0.2/24}\nfunctions:\n  fw: {image: firewall, on_fail: drop, allow: [CAP_NET_ADMIN], config: {allow: [icmp]}}\n  w1: {image: wire}\nchains:\n  web: fw | w1\npolicies:\n  guests: {from: alice, to: bob, match: [tcp, icmp], chain: web}\n' >/chain.yaml
weir apply -f /chain.yaml --timeout 3m || die apply
until_ok 60 well || die "not well at first"
until_ok 30 pass || die "no ping at first"
closed || die "port 81 is open at first"
before=$(pids)
for by in -3600 3600 3600 -3600; do
	step $by
	date -s @$(($(date +%s) + by)) >/dev/null
	look $by
	sed -i 's/  w1: {image: wire.*}/  w1: {image: wire, memory: '$((64 + RANDOM % 64))'M}/' /chain.yaml
	weir apply -f /chain.yaml --timeout 2m || die "$by: apply"
	until_ok 60 well || die "$by: not well after an apply"
	before=$(pids)
	weir token list | grep -q ci || die "$by: the token is gone"
done
step killed
kill -9 $(cat /run/weir/0/lock)
date -s @$(($(date +%s) - 3600)) >/dev/null
weir up --detach --listen none --allow-vulnerable-runtime --timeout 3m || die "up after the clock was set back"
look "started again"
step crash
date -s @$(($(date +%s) + 3600)) >/dev/null
kill -9 $(pids | head -n 1 | tr -dc 0-9)
closed || die "port 81 is open while the firewall is down"
until_ok 60 pass || die "the firewall does not come back"
until_ok 60 well || die "not well after the firewall came back"
weir events
echo VM-PASS
poweroff -f
sleep 60
`

// TestStepsOfTheClockByAnHour runs a Weir in a machine of its own, since the clock is the whole machine's.
func TestStepsOfTheClockByAnHour(t *testing.T) {
	root := "../../build/vm/kern"
	kernels, _ := filepath.Glob(root + "/boot/vmlinuz-*-cloud-amd64")
	if len(kernels) == 0 {
		t.Fatalf("no kernel in %s: make peers unpacks one", root)
	}
	dir := t.TempDir()
	machine := filepath.Join(dir, "machine")
	install(t, machine, "../../bin/weir", "/weir")
	if out, err := exec.Command("cp", "-a", "../../bin/images", filepath.Join(machine, "images")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s: build them with make build", err, out)
	}
	for _, name := range []string{"runc", "ip", "unshare", "cat"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		install(t, machine, path, "/usr/sbin/"+name)
	}
	tools := "sh cut date sleep grep sed tr head tail cat mkdir mount nc printf poweroff"
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	install(t, machine, busybox, "/busybox")
	if err := os.MkdirAll(filepath.Join(machine, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tool := range strings.Fields(tools) {
		if err := os.Symlink("/busybox", filepath.Join(machine, "bin", tool)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(machine, "init"), []byte(clockScript), 0o755); err != nil {
		t.Fatal(err)
	}
	tar := filepath.Join(dir, "machine.tar")
	if out, err := exec.Command("tar", "-C", machine, "-cf", tar, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files := map[string]string{"machine.tar": tar}
	// The root of an initramfs cannot be left by pivot_root, which runc does: everything moves to a file system of its own.
	script := "#!/busybox sh\n/busybox mkdir -p /new\n"
	script += load(t, kernels[0], clockModules, files)
	script += "/busybox mount -t tmpfs -o size=1g n /new\n/busybox tar -xf /machine.tar -C /new\n/busybox rm /machine.tar\nexec /busybox switch_root /new /init\n"
	out, err := boot(t, kernels[0], pack(t, dir, script, files), 1536, clockTime)
	if err != nil || !bytes.Contains(out, []byte("VM-PASS")) {
		t.Fatalf("the machine failed: %v", err)
	}
	for _, bad := range []string{"HostLost", "FunctionMoved", "FunctionHung", " -[0-9]+[smhd]"} {
		if found := regexp.MustCompile(bad).FindAll(out, -1); len(found) > 0 {
			t.Errorf("%d times %s", len(found), bad)
		}
	}
	if n := bytes.Count(out, []byte("FunctionDied")); n != 1 {
		t.Errorf("%d functions died, want the one that was killed", n)
	}
}

// install copies a program and the libraries that it is linked with.
func install(t *testing.T, machine, from, to string) {
	t.Helper()
	files := map[string]string{to: from}
	libraries, err := image.Libraries(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range libraries {
		files[path] = path
	}
	for to, from := range files {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		to = filepath.Join(machine, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
