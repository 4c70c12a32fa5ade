package soak

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/netns"
)

// budget says how much more than in the first half of a walk may be there in the second: share of it, and so much besides. The base document is in
// force whenever it is measured.
type budget struct {
	share, more float64
}

// What is counted and belongs to the document may not grow at all. Memory, descriptors and threads of a Go process breathe. The state keeps
// events and operations up to a bound, which a walk does not reach: they may grow with its steps, as do logs.
var budgets = map[string]budget{
	"rss_kib":     {0.35, 24 << 10},
	"fds":         {0.10, 16},
	"threads":     {0.50, 8},
	"goroutines":  {0.15, 30},
	"bpf_fds":     {0, 3},
	"bpf_pins":    {},
	"mounts":      {0, 2}, // an image that a host has not run before stays mounted
	"cgroups":     {},
	"namespaces":  {},
	"sandboxes":   {},
	"links":       {},
	"functions":   {},
	"log_files":   {},
	"state_bytes": {1, 4 << 20},
	"log_bytes":   {1.5, 256 << 10},
}

// measures of one moment, by "NODE/WHAT".
type measures map[string]float64

// measure looks at all daemons.
func (w *walk) measure() (measures, error) {
	all, err := w.world.daemons()
	if err != nil {
		return nil, err
	}
	m := measures{}
	here := map[string]int{} // functions of the document that are to be at a node
	for _, f := range w.model.doc.Functions {
		here[f.Host]++
	}
	for node, d := range all {
		if err := m.process(node, d); err != nil {
			return nil, fmt.Errorf("measure %s: %w", node, err)
		}
		functions := here[node]
		if len(w.model.kind.hosts) == 1 {
			functions = len(w.model.doc.Functions)
		}
		if err := m.things(node, d, functions); err != nil {
			return nil, fmt.Errorf("measure %s: %w", node, err)
		}
		m.files(node, d)
	}
	n, err := goroutines(w.ctx, w.world.socket())
	if err != nil {
		return nil, err
	}
	m["api/goroutines"] = n
	return m, nil
}

func (m measures) process(node string, d daemon) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid))
	if err != nil {
		return err
	}
	for l := range strings.Lines(string(status)) {
		f := strings.Fields(l)
		what := map[string]string{"VmRSS:": "rss_kib", "Threads:": "threads"}[f[0]]
		if what == "" {
			continue
		}
		if m[node+"/"+what], err = strconv.ParseFloat(f[1], 64); err != nil {
			return err
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.pid))
	if err != nil {
		return err
	}
	m[node+"/fds"], m[node+"/bpf_fds"] = float64(len(fds)), 0
	for _, fd := range fds {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", d.pid, fd.Name())); strings.HasPrefix(to, "anon_inode:bpf") {
			m[node+"/bpf_fds"]++
		}
	}
	return nil
}

// settleSandboxes bounds how long a former instance of a function may stay after a change, and a function that has moved to another host: it drains, then
// its process has 3 s to end.
const settleSandboxes = 20 * time.Second

// things of the kernel that bear the instance's name.
func (m measures) things(node string, d daemon, want int) error {
	run := "/run/weir/" + d.instance
	for end := time.Now().Add(settleSandboxes); ; {
		boxes, _ := os.ReadDir(run + "/sandboxes")
		functions, _ := os.ReadDir(run + "/netns") // none yet
		m[node+"/sandboxes"] = float64(len(boxes))
		if len(boxes) <= len(functions) && len(functions) <= want || time.Now().After(end) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	links := 0
	if err := netns.Do(d.netns, func() error {
		all, err := net.Interfaces()
		links = len(all)
		return err
	}); err != nil {
		return err
	}
	m[node+"/links"] = float64(links)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	m[node+"/mounts"] = float64(strings.Count(string(mounts), "/run/weir/"+d.instance+"/") + strings.Count(string(mounts), " "+d.root+"/"))
	count := func(what, top string) {
		m[node+"/"+what] = 0
		_ = filepath.WalkDir(top, func(_ string, e fs.DirEntry, err error) error { // some may vanish meanwhile
			if err == nil && (what == "cgroups") == e.IsDir() {
				m[node+"/"+what]++
			}
			return nil
		})
	}
	count("bpf_pins", "/run/weir/"+d.instance+"/bpf")
	tops, _ := filepath.Glob("/sys/fs/cgroup/*/weir/" + d.instance)
	for _, top := range append(tops, "/sys/fs/cgroup/weir/"+d.instance) {
		before := m[node+"/cgroups"]
		count("cgroups", top)
		m[node+"/cgroups"] += before
	}
	for what, dir := range map[string]string{"namespaces": "netns", "functions": "functions"} {
		entries, _ := os.ReadDir("/run/weir/" + d.instance + "/" + dir) // none yet
		m[node+"/"+what] = float64(len(entries))
	}
	return nil
}

// files that grow: the store's database, logs.
func (m measures) files(node string, d daemon) {
	m[node+"/log_bytes"], m[node+"/log_files"] = 0, 0
	_ = filepath.WalkDir(d.root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			if err == nil && e.Name() == "images" {
				return fs.SkipDir
			}
			return nil
		}
		info, err := e.Info()
		switch {
		case err != nil:
		case strings.HasSuffix(path, "/snap/db"):
			m[node+"/state_bytes"] = float64(info.Size())
		case strings.Contains(path, "log") && !strings.Contains(path, "/etcd/"):
			m[node+"/log_bytes"] += float64(info.Size())
			m[node+"/log_files"]++
		}
		return nil
	})
}

// goroutines of the process that serves the API.
func goroutines(ctx context.Context, socket string) (float64, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://weir/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(page)) {
		if n, ok := strings.CutPrefix(l, "go_goroutines "); ok {
			return strconv.ParseFloat(strings.TrimSpace(n), 64)
		}
	}
	return 0, fmt.Errorf("no go_goroutines at /metrics")
}

// judge compares the halves of a walk: the most of each. The first moment warms up and does not count.
func judge(all []measures) (table string, over []string) {
	if len(all) < 3 {
		return "", nil
	}
	all = all[1:]
	half := len(all) / 2
	most := func(part []measures, key string) (n float64) {
		for _, m := range part {
			n = max(n, m[key])
		}
		return n
	}
	keys := map[string]bool{}
	for _, m := range all {
		for k := range m {
			keys[k] = true
		}
	}
	var lines []string
	for key := range keys {
		_, what, _ := strings.Cut(key, "/")
		b, first, second := budgets[what], most(all[:half], key), most(all[half:], key)
		may := first*(1+b.share) + b.more
		lines = append(lines, fmt.Sprintf("%-24s %12.0f %12.0f  at most %.0f", key, first, second, may))
		if second > may {
			over = append(over, fmt.Sprintf("%s grows: %.0f in the first half, %.0f in the second, at most %.0f", key, first, second, may))
		}
	}
	slices.Sort(lines)
	slices.Sort(over)
	return strings.Join(lines, "\n"), over
}
