package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"weir.dev/weir/container"
	"weir.dev/weir/instance"
)

// oldest is the engine that was there before there were others: its paths have no name of an engine.
const oldest = "oci"

// Home is where an engine's containers of one instance are: directories, cgroups, and the limits that the host sets.
type Home struct {
	inst     instance.Instance
	engine   string
	cgroups  []hierarchy
	defaults container.Limits // where a Spec has none
	disk     disk             // that defaults bound
	score    *int             // of containers, for want of memory; nil: as this process
	seccomp  profiles
	rousing  sync.Mutex // held while Rouse is at it
	machine  Machine    // the engine, if it is one
	rings    ringBound
}

// Dir is the engine's run directory. Everything directly in it but "bundles" and "bpf" is the engine's own.
func (h *Home) Dir() string { return filepath.Join(h.inst.Run, h.engine) }

// Scope is the name of these containers beside those of other engines and instances. No instance's name has an @.
func (h *Home) Scope() string {
	if h.engine == oldest {
		return h.inst.Name
	}
	return h.inst.Name + "@" + h.engine
}

func (h *Home) root() string {
	if h.engine == oldest {
		return h.inst.Root
	}
	return filepath.Join(h.inst.Root, h.engine)
}

func (h *Home) bundlesDir() string        { return filepath.Join(h.Dir(), "bundles") }
func (h *Home) logsDir() string           { return filepath.Join(h.root(), "logs") }
func (h *Home) writableDir() string       { return filepath.Join(h.root(), "containers") }
func (h *Home) writable(id string) string { return filepath.Join(h.writableDir(), id) }

// Bundle is the directory of one container, in which the engine may keep files besides those of Home.
func (h *Home) Bundle(id string) string { return filepath.Join(h.bundlesDir(), id) }

// LogFile is where containers with a log of this name print.
func (h *Home) LogFile(log string) string { return filepath.Join(h.logsDir(), log+".log") }

// Score is the OOM score of containers; nil: they have that of this process.
func (h *Home) Score() *int { return h.score }

// CgroupPath is a container's group below each hierarchy's mount.
func (h *Home) CgroupPath(id string) string { return filepath.Join("/weir", h.Scope(), id) }

func (h *Home) makeDirs() error {
	for _, dir := range []string{h.bundlesDir(), h.logsDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// Left tells whether there may be something of an engine's, containers or logs or what a crash left, as far as can be told.
func Left(i instance.Instance, engine string) bool {
	h := &Home{inst: i, engine: engine}
	for _, dir := range []string{h.Dir(), h.logsDir(), h.writableDir()} {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}
