package ebpf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
)

// store keeps what maps cannot tell, as JSON files under the run directory: one a port or function, so that a change writes
// little; the rules of either copy; what is the same for all. A file is replaced as a whole. Written before the kernel is changed,
// they name at least all that was made.
type store struct{ dir string }

func newStore(i instance.Instance) store { return store{filepath.Join(i.Run, "switch")} }

// state is switch.json.
type state struct {
	ABI      string                      // directory of the maps in force
	Previous string                      // of the maps being replaced: their counters are still to be added
	Build    string                      // of the programs
	Hook     string                      // HookTCX, HookClsact
	Secret   uint32                      // of marks
	Rules    map[uint64]datapath.Counter // counted before the present maps were made
	Ports    map[string]portCounters
}

type portCounters struct{ Rx, Tx, Dropped datapath.Counter }

// port is a file: what a link is to the switch, and how it was before.
type port struct {
	Slot    uint16
	Name    string // "endpoint/alice", "function/fw/in"
	Link    string
	Index   uint32
	Inner   uint32            // index of a function's end of the veth
	Own     flow.MAC          // its MAC
	Veth    bool              // with its peer in another namespace
	WasUp   bool              // before
	Clsact  bool              // a qdisc that we made
	InnerCl bool              // the same inside
	E       datapath.Endpoint `json:",omitzero"`
}

// function is a file.
type function struct {
	Slot  uint16
	F     datapath.Function
	Ports []*port // in, out or tap

	written [4]bool // qdiscs, as the file tells
}

// ruleSet is a file: rules.0.json or rules.1.json, by the copy in which they are.
type ruleSet struct {
	Version uint32
	Rules   []flow.Rule
	Slots   map[uint64]uint32 // cookie -> counters
	index   map[uint64]int
}

func newRuleSet() ruleSet { return ruleSet{Slots: map[uint64]uint32{}, index: map[uint64]int{}} }

func (s store) write(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("write switch state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write switch state: %w", err)
	}
	return nil
}

// read is false for a file that is not there.
func (s store) read(name string, v any) (bool, error) {
	path := filepath.Join(s.dir, name)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read switch state: %w", err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("read switch state %s: %w; remove the file to start the switch anew", path, err)
	}
	return true, nil
}

func (s store) remove(name string) error {
	if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove switch state: %w", err)
	}
	return nil
}

// file of an endpoint or function.
func file(kind, name string) string { return kind + "." + url.PathEscape(name) + ".json" }

// list names the files of a kind.
func (s store) list(kind string) ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read switch state: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), kind+".") && strings.HasSuffix(e.Name(), ".json") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func rulesFile(version uint32) string { return fmt.Sprintf("rules.%d.json", version&1) }
