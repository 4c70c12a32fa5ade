package kernel

import (
	"context"
	"os"
	"time"

	"weir.dev/weir/container"
)

// Engine makes the processes of containers. Runtime calls it with a container's turn held, so for one container one call at a time, Exec apart.
type Engine interface {
	// Prepare writes what Launch needs into the container's bundle, which is there. What it makes elsewhere Remove removes.
	Prepare(c Container) error
	// Launch makes the container's first process in the container's cgroups, with its limits, its output going to log. In the end the process waits before its
	// first instruction, or has come to it, if run. made is called once there is the process, in its cgroups and with its limits; if made fails, Launch does.
	Launch(ctx context.Context, c Container, log *os.File, run bool, made Made) error
	// Start lets a container that waits run.
	Start(ctx context.Context, c Container) error
	// Find says what became of a Launch or Start that was interrupted, when no process of ours is at it any more.
	Find(ctx context.Context, c Container) (Found, error)
	// Exec runs one more process in a running container, see container.Runtime; when ctx ends, the process does.
	Exec(ctx context.Context, c Container, x container.ExecSpec) (int, error)
	// Left are the ids of containers of which the engine keeps something outside their bundles.
	Left() ([]string, error)
	// Remove removes what the engine keeps of a container outside its bundle. Its processes have ended.
	Remove(ctx context.Context, id string) error
}

// Made takes hold of a container's first process, by its id. done: Launch is at its end. Else the process goes on to prepare itself meanwhile, and does not come
// to its first instruction before.
type Made func(pid int, done bool) error

// Stepwise is an Engine whose Launch is never asked to run: Start is as good as nothing, and between the two the process is taken hold of, so that how it
// ends is known although another than this process collects it.
type Stepwise interface{ Stepwise() }

// Foreign is an Engine whose processes are children of a daemon that is not ours, which collects them when they have ended.
type Foreign interface {
	Engine
	Stepwise
	// ExitCode of a container's first process, which has ended, where the kernel does not tell it; false: not known.
	ExitCode(ctx context.Context, id string) (int, bool)
	// Destroy removes what the engine keeps for the instance besides containers.
	Destroy(ctx context.Context) error
}

// EndedFile is in the bundle of a Foreign's container whose cgroup went with its process: a copy of Home.OOMFile of before,
// and of Home.FailuresFile as its value failcnt.
const EndedFile = "ended"

// Container is what an engine is told of one container.
type Container struct {
	container.Spec
	Bundle string // directory
	Root   string // of its file system: Spec.Rootfs, or the writable layer over it
	PID    int    // of its first process; 0: not known
}

// Found is what there is of a container after an interruption.
type Found struct {
	State   container.State // Created, Running or Stopped; "": nothing that could be used
	PID     int             // unless stopped
	Started time.Time       // zero: not known
}

func (h *Home) container(s container.Spec, pid int) Container {
	c := Container{Spec: s, Bundle: h.Bundle(s.ID), Root: s.Rootfs, PID: pid}
	if !s.ReadOnly && h.machine == nil {
		c.Root = h.layer(s.ID)
	}
	return c
}
