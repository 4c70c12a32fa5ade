package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "weir.dev/weir/"

// layers says what each folder or package may import of ours: folders, or packages of them; "=" before one means that package without those below it. The
// longest entry that fits a package counts. A package may always import what is below its entry. The root's main.go wires everything. Imports point one way only; see docs/ARCHITECTURE.md.
var layers = map[string][]string{
	"":          {"*"},
	"api":       {"cpuset", "portkind"},
	"web":       {},
	"instance":  {},
	"flow":      {},
	"portkind":  {},
	"cpuset":    {},
	"netns":     {},
	"bpf":       {},
	"image":     {"instance", "sbom"},
	"sbom":      {},
	"container": {"bpf/rings", "cpuset", "instance", "netns", "portkind"},
	"datapath":  {"flow", "portkind", "instance", "netns", "bpf", "openflow", "ovsdb"},
	"router":    {"api", "flow", "openflow", "placement"},
	"openflow":  {},
	"ovsdb":     {"netns"},
	"pki":       {"instance"},
	"placement": {"api", "portkind", "router/policy"},
	"testbed":   {"api", "instance", "netns", "ovsdb"},
	"store":     {"api"},
	"manager":   {"api", "container", "instance", "pki", "placement", "store"},
	"agent":     {"api", "bpf/xsk", "container", "cpuset", "datapath", "flow", "image", "instance", "netns", "openflow", "pki", "portkind", "router"},
	"daemon":    {"agent", "pki", "placement", "api", "container", "datapath", "flow", "image", "instance", "manager", "netns", "router", "store"},
	"notify":    {"api", "instance"},
	"cli":       {"api", "instance", "notify", "router", "sbom"},
	"catalogue": {"image", "netns"},
	"solo":      {"agent/capture", "agent/events", "agent/health", "agent/kernel", "agent/sandbox", "agent/socket", "agent/xdp", "api", "bpf", "container", "datapath", "flow", "image", "instance", "netns"},
	"e2e":       {"*"},
	"lab":       {"agent", "api", "bpf", "catalogue/nf", "container", "datapath", "flow", "image", "instance", "netns", "openflow", "ovsdb", "portkind", "router", "testbed"},
	"examples":  {"api", "catalogue/nf"},

	// packages of catalogue
	"catalogue/rig": {"image", "instance", "netns"},

	// packages of lab, lower ones first
	"lab/functions":   {"bpf/xsk", "catalogue/nf", "image", "netns"},
	"lab/machine":     {},
	"lab/tied":        {"netns"},
	"lab/stats":       {},
	"lab/search":      {},
	"lab/study":       {"api"},
	"lab/claim":       {"lab/stats", "lab/study"},
	"lab/traffic":     {"lab/stats", "lab/tied", "netns"},
	"lab/platform":    {"lab/tied", "lab/traffic/tools", "api", "cpuset", "bpf", "container", "datapath", "flow", "image", "instance", "netns", "ovsdb", "portkind", "router"},
	"lab/guest":       {"lab/platform", "lab/tied", "lab/traffic/tools", "container", "image", "instance", "netns"},
	"lab/controllers": {"api", "flow", "netns", "openflow", "ovsdb", "router"},
	"lab/experiment":  {"lab/controllers", "lab/guest", "lab/machine", "lab/search", "lab/stats", "lab/tied", "lab/traffic", "lab/platform", "api/file", "container", "cpuset", "image", "instance", "netns", "ovsdb", "router/fabric", "testbed"},

	// packages of cli, lower ones first
	"cli/command": {"api", "instance"},
	"cli/service": {"cli/command", "api", "daemon/config", "instance"},
	"cli/author":  {"cli/command", "container", "image", "solo"},
	"cli/graph":   {"api"},
	"cli/images":  {"cli/command", "api", "image"},
	"cli/lab":     {"cli/command", "api", "lab"},
	"cli/testbed": {"cli/command", "testbed"},

	// packages of router, lower ones first
	"router/identity":          {"flow"},
	"router/policy":            {"api", "flow"},
	"router/fabric":            {"router/identity", "api", "flow"},
	"router/fabric/graph":      {"router/fabric", "router/identity", "flow"},
	"router/fabric/tags":       {"router/fabric", "router/fabric/graph", "flow"},
	"router/fabric/switches":   {"router/fabric", "router/identity", "api", "flow"},
	"router/fabric/forwarding": {"router/fabric", "router/fabric/graph", "router/fabric/switches", "router/identity", "flow"},
	"router/fabric/steering": {"router/fabric", "router/fabric/forwarding", "router/fabric/graph", "router/fabric/switches", "router/fabric/tags", "router/identity",
		"router/policy", "api", "flow"},
	"router/fabric/model":  {"router", "api", "flow", "placement"},
	"router/fabric/oracle": {"router/fabric", "api", "flow"}, // independent of what it checks
	"router/discovery":     {"api", "flow", "openflow", "=router/fabric"},
	"router/rollout":       {"api", "flow", "openflow", "=router/fabric", "router/fabric/steering"},
	"router/control":       {"api", "flow", "openflow", "=router", "router/discovery", "=router/fabric", "router/identity", "router/policy", "router/rollout"},

	// packages of manager, lower ones first
	"manager/strict":     {"api"},
	"manager/bounded":    {},
	"manager/remote":     {"api", "container"},
	"manager/object":     {"api", "manager/strict", "store"},
	"manager/history":    {"api", "manager/object", "manager/strict", "store"},
	"manager/tx":         {"api", "manager/history", "manager/object", "store"},
	"manager/keys":       {"api", "manager/object", "manager/tx", "pki", "store"},
	"manager/web":        {"api", "manager/bounded", "manager/history", "manager/keys", "manager/object", "manager/strict", "pki", "store"},
	"manager/members":    {"api", "manager/bounded", "manager/history", "manager/object", "manager/strict", "manager/tx", "manager/web", "pki", "store"},
	"manager/access":     {"api", "instance", "manager/bounded", "manager/history", "manager/keys", "manager/members", "manager/object", "manager/tx", "manager/web", "pki", "store"},
	"manager/ui":         {"api", "instance", "manager/web"},
	"manager/switchcert": {"api", "manager/history", "manager/keys", "manager/object", "manager/tx", "manager/web", "pki", "store"},
	"manager/graph":      {"api"},
	"manager/labs":       {"api", "manager/web"},
	"manager/images":     {"api", "manager/strict", "manager/web"},
	"manager/read":       {"manager/graph", "api", "manager/history", "manager/members", "manager/object", "manager/web", "store"},
	"manager/news":       {"api", "manager/bounded", "manager/history", "manager/members", "manager/object", "manager/tx", "manager/web", "store"},
	"manager/intent":     {"api", "manager/history", "manager/keys", "manager/members", "manager/object", "manager/strict", "manager/tx", "manager/web", "placement", "store"},
	"manager/lead":       {"api", "manager/intent", "manager/members", "store"},
	"manager/join":       {"api", "manager/bounded", "manager/access", "manager/history", "manager/intent", "manager/keys", "manager/members", "manager/object", "manager/tx", "manager/web", "pki", "store"},
	"manager/ask":        {"api", "container", "manager/intent", "manager/lead", "manager/members", "manager/object", "manager/remote", "manager/strict", "manager/web", "store"},
}

// testsOnly is what tests may import besides.
var testsOnly = map[string][]string{
	"agent":     {"manager", "store"}, // agents speak to the real API
	"bpf":       {"netns"},
	"openflow":  {"netns", "ovsdb"}, // Open vSwitch is the oracle
	"datapath":  {"router"},         // the same cases run on the reference switch and in the kernel
	"manager":   {"router", "portkind", "store"},
	"store":     {"instance"},
	"catalogue": {"agent/socket", "agent/xdp", "bpf", "container", "instance"}, // a wire's frames are the switch's program's, and the agent leads some into sockets
	"container": {"image"},
	"image":     {"netns"},
	"router":    {"manager", "store", "netns", "ovsdb", "instance"}, // the controller against the real API and Open vSwitch
	"lab":       {"catalogue/rig", "manager", "store"},              // its platform hosts speaks to the real API
	"notify":    {"manager", "store"},
	"cli":       {"container", "manager", "store"}, // commands speak to the real API
}

// TestLayering keeps the arrows of the architecture pointing one way.
func TestLayering(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "node_modules" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		seen++
		folder := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), ".")
		entry := folder
		for layers[entry] == nil && entry != "" {
			entry = strings.TrimSuffix(strings.TrimSuffix(entry, filepath.Base(entry)), "/")
		}
		if entry == "" && folder != "" {
			t.Errorf("%s: folder %s has no place in the architecture: give it one in layers", path, folder)
			return filepath.SkipDir
		}
		folder, _, _ = strings.Cut(folder, "/")
		allowed := append(slices.Clone(layers[entry]), entry)
		if strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/suite/") || strings.Contains(path, "/cases/") {
			allowed = append(allowed, append(testsOnly[folder], folder)...)
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			rest, ours := strings.CutPrefix(p, module)
			if !ours {
				if strings.HasPrefix(p, "go.etcd.io/") && folder != "store" {
					t.Errorf("%s imports %s: only store knows etcd", path, p)
				}
				continue
			}
			if !slices.ContainsFunc(allowed, func(a string) bool { return a == "*" || a == "="+rest || rest == a || strings.HasPrefix(rest, a+"/") }) {
				t.Errorf("%s imports %s: %s may import only %v", path, p, entry, allowed)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 20 {
		t.Fatalf("only %d Go files seen: the test looks in the wrong place", seen)
	}
}
