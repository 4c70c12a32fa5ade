package fabric

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// changes follows the entries of all switches; what it returns ends that, and tells what has changed.
func (b *bed) changes() func() []string {
	b.t.Helper()
	var mu sync.Mutex
	var seen []string
	var stop []func()
	for _, n := range b.status().Nodes {
		if n.Kind != "switch" {
			continue
		}
		c := exec.CommandContext(b.ctx, "nsenter", "--net="+b.netns("ovs"), "--", "ovs-ofctl", "-O", "OpenFlow13", "--no-names", "monitor", n.Socket, "watch:!initial")
		out, err := c.StdoutPipe()
		if err != nil {
			b.t.Fatal(err)
		}
		c.Stderr = c.Stdout
		c.Env = append(os.Environ(), "OVS_RUNDIR="+filepath.Dir(n.Socket))
		if err := c.Start(); err != nil {
			b.t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			buf := make([]byte, 65536)
			for {
				k, err := out.Read(buf)
				for _, line := range strings.Split(string(buf[:k]), "\n") {
					if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "ONFST_FLOW_MONITOR reply") {
						continue
					}
					mu.Lock()
					seen = append(seen, time.Now().Format("15:04:05.000 ")+n.Name+": "+line)
					mu.Unlock()
				}
				if err != nil {
					return
				}
			}
		}()
		stop = append(stop, func() {
			_ = c.Process.Kill()
			<-done
			_ = c.Wait()
		})
	}
	return func() []string {
		for _, f := range stop {
			f()
		}
		return seen
	}
}

// discarded counts the frames that came while a receive queue of the switches' ports was full: ovs-vswitchd got no processor for so long. It
// is told beside a loss, and excuses none: the queues are wide enough for a minute (see testbed).
func (b *bed) discarded() int {
	b.t.Helper()
	out, err := b.exec("ovs", "ss", "-0", "-m", "-n", "-H", "-O")
	if err != nil {
		b.t.Fatal(err)
	}
	n := 0
	for _, m := range socketDrops.FindAllStringSubmatch(out, -1) {
		k, _ := strconv.Atoi(m[1]) // digits
		n += k
	}
	return n
}

// socketDrops is the last field of ss(8)'s skmem.
var socketDrops = regexp.MustCompile(`skmem:\([^)]*,d(\d+)\)`)

// cachedFlow is what the switches' datapath does with frames of a key without asking the entries again, by port numbers of the datapath.
type cachedFlow struct{ key, actions string }

// appctl asks the process that all switches are in.
func (b *bed) appctl(args ...string) (string, error) {
	return b.exec("ovs", append([]string{"ovs-appctl", "-t", "/run/weir-testbed/" + b.name + "/ovs/ovs-vswitchd.ctl"}, args...)...)
}

// cached are the flows of the switches' cache, without those that ask the router.
func (b *bed) cached() []cachedFlow {
	b.t.Helper()
	out, err := b.appctl("dpctl/dump-flows", "-m", "--no-names")
	if err != nil {
		b.t.Fatal(err)
	}
	var flows []cachedFlow
	for _, m := range cachedAs.FindAllStringSubmatch(out, -1) {
		if !strings.Contains(m[2], "userspace(") {
			flows = append(flows, cachedFlow{m[1], m[2]})
		}
	}
	return flows
}

// cachedAs finds the key and the actions in a line of dpctl/dump-flows (ovs-dpctl(8)).
var cachedAs = regexp.MustCompile(`(?m)^ufid:\S+, (\S+), packets:.* actions:(\S+?)(?:, dp-extra-info:.*)?$`)

// stale are those of the flows whose actions are not what the switches' own entries say. Open vSwitch 3.1.0 with its datapath in user space
// may keep one of them for as long as frames come, though the entries that it was made from are gone: no controller can see or mend that.
func (b *bed) stale(flows []cachedFlow) []string {
	var list []string
	for _, f := range flows {
		out, err := b.appctl("ofproto/trace", f.key)
		if err != nil {
			continue // not a key of a frame
		}
		if m := tracedAs.FindStringSubmatch(out); m != nil && m[1] != f.actions {
			list = append(list, f.key+": cached "+f.actions+", by the entries "+m[1])
		}
	}
	return list
}

var tracedAs = regexp.MustCompile(`(?m)^Datapath actions: (\S+)$`)

// purge empties the switches' cache.
func (b *bed) purge() {
	b.t.Helper()
	if _, err := b.appctl("revalidator/purge"); err != nil {
		b.t.Fatal(err)
	}
}
