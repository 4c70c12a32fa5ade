// Package container is the contract of a container runtime and the conformance suite that every driver passes.
//
// Drivers: see container/drivers. A container outlives the process that made it.
package container

import (
	"context"
	"errors"
	"io"
	"runtime"
	"time"

	"weir.dev/weir/netns"
	"weir.dev/weir/portkind"
)

// Errors that callers tell apart.
var (
	ErrNotFound = errors.New("container not found")
	ErrState    = errors.New("container is in the wrong state")
	ErrMissing  = errors.New("container runtime is not available") // on this host, now; see About.Missing
	ErrLeft     = errors.New("something of the container may be left")
)

// AtOnce is how many operations on containers a machine does at once: two per core, since half of the time of one is waiting.
func AtOnce() int { return 2 * runtime.NumCPU() }

// State of a container.
type State string

const (
	Created State = "created" // everything prepared, the process waits before its first instruction
	Running State = "running"
	Stopped State = "stopped"
)

// About is what is known of one runtime on this host.
type About struct {
	Name        string
	Version     string          // of its programs, as they say it
	Ports       []portkind.Kind // by which its containers can be joined with a switch; see Runtime.PortKinds
	Userns      bool            // its containers can be in a user namespace: see Spec.Userns
	Machine     bool            // its containers have a kernel of their own: what acts in their network namespace acts before they see a frame
	LeastMemory int64           // bytes that a container wants; 0: the runtime has no such bound
	Missing     string          // why it cannot be used here, and what would help; "": it can
	Note        string          // what an operator should know of it, such as an emulated processor; "" nothing
}

// Noted is a Runtime that finds out at work what About could not tell, such as how its machines come up on this host.
type Noted interface {
	// Note takes the place of About.Note; "": nothing was found out yet.
	Note() string
}

// Spec says what to run. Netns, if named, exists and its links are up before Create is called.
type Spec struct {
	ID string
	// Runtime is the name of the runtime that runs it, where there are several to choose from; "": the host's default.
	Runtime string `json:",omitempty"`
	// Image is the reference of the image that the root is of, for runtimes that have images of their own. "" if there is none.
	Image string `json:",omitempty"`
	// Rootfs is how the root file system is had: a directory where it is mounted. It is never written when ReadOnly.
	Rootfs   string
	ReadOnly bool     // false gives the container a writable layer of its own on overlayfs
	Args     []string // process and arguments, as the image says unless overridden
	Env      []string
	Dir      string
	Netns    string // path of the network namespace; "": the runtime makes one, with nothing but a loopback
	// Userns is the path of the user namespace that owns Netns, with the ids IDs, and Rootfs is mounted for it. Root inside is nobody outside, and
	// Capabilities count in Netns alone. Empty: root inside is the host's. It wants a root that is ReadOnly.
	Userns       string
	IDs          netns.IDs
	Log          string   // the name under which its output is kept, that several containers may share one after another; "" ID
	CPUs         float64  // cores, 0 the host's default
	Memory       int64    // bytes, 0 the host's default
	PIDs         int64    // 0: the host's default
	CPUSet       string   `json:",omitempty"` // processors that it may run on, as package cpuset writes them, e.g. "0-3,5"; "" all
	Capabilities []string // beyond none, for example CAP_NET_ADMIN; from the image's contract
	Mounts       []Mount
	UID, GID     uint32
	// Forwarder is what hands frames on between the ports in and out where the image's program does not: "wire", each frame as it is. Only a machine does it
	// itself (About.Machine): of a container's ports everybody outside could.
	Forwarder string `json:",omitempty"`
	// Shared are ports of the kind portkind.VhostUser, beside the links of Netns. Only a machine has such.
	Shared      *Shared `json:",omitempty"`
	Annotations map[string]string
}

// Shared are ports by which a machine shares its memory with a switch in user space (vhost-user). The machine listens, and the switch connects, again whenever it was
// away. Create waits until it has, so the switch has its ports before.
type Shared struct {
	// Dir is a directory for nothing but the ports' sockets, each by its port's name. It is given to the machine's user, and stays its maker's to remove.
	Dir   string
	Ports []string // interfaces inside, such as in and out
	// Direct leaves the devices to the program, as DPDK wants them: the machine's kernel has no driver on them but that by which the program gets at them
	// (uio_pci_generic), sets hugepages apart, and shows /sys for writing. The devices are kvm.Device(0) and so on, on PCI. The program wants CAP_SYS_ADMIN, to find where its memory is.
	Direct bool `json:",omitempty"`
}

// Mount is a bind mount into the container.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Status is a container as the runtime has it.
type Status struct {
	ID       string
	State    State
	PID      int       // of the first process, 0 unless created or running
	Started  time.Time // zero if never
	ExitCode int       // -1 unknown (the exit was not seen); 128+n: Signal n
	Signal   int       // that killed it, 0 none
	OOM      bool      // the kernel killed it for want of memory
	Short    Shortage  // whose memory, with OOM
	Limits   Limits    // in force for the last process
	// RingsRefused is how often it asked for larger rings of sockets than its limit.
	RingsRefused uint64
}

// Shortage is whose memory was short when the kernel killed for want of memory.
type Shortage string

const (
	ShortLimit   Shortage = "limit" // the container had reached its own limit
	ShortHost    Shortage = "host"  // the host's, or that of a cgroup above the container's
	ShortUnknown Shortage = ""      // it cannot be told
)

// Limits are what a container gets at most, by its Spec or the host's default; 0: no limit.
type Limits struct {
	CPUs      float64 `json:"cpus,omitempty"`   // cores
	Memory    int64   `json:"memory,omitempty"` // bytes
	PIDs      int64   `json:"pids,omitempty"`
	CPUSet    string  `json:"cpuset,omitempty"`     // processors, e.g. "0-3,5"
	DiskBytes int64   `json:"disk_bytes,omitempty"` // a second, for reading and for writing each
	DiskOps   int64   `json:"disk_ops,omitempty"`   // the same
	Rings     int64   `json:"rings,omitempty"`      // bytes that the rings of its packet and AF_XDP sockets take together, beside Memory
	Missing   string  `json:"missing,omitempty"`    // what this host does not bound although it should by default, and why
}

// ExecSpec runs one more process in a running container.
type ExecSpec struct {
	Args           []string
	Env            []string
	TTY            bool
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan [2]uint16 // columns, rows; with TTY
}

// LogOptions select from a container's output.
type LogOptions struct {
	Tail   int  // last N lines; 0 all
	Follow bool // until ctx ends
	Latest bool // only what the last process printed, not those before it
}

// Runtime drives containers. Every method is safe to call twice.
type Runtime interface {
	// PortKinds are the kinds of ports by which its containers can be joined with a switch, the preferred ones first. Only what works is named.
	PortKinds() []portkind.Kind
	// Create prepares a container: the process exists and waits. An equal one that exists already is left as it is. An error leaves nothing, but if it is ErrLeft: then
	// Delete is to be called, until it succeeds. The same is true of Run.
	Create(ctx context.Context, s Spec) error
	// Start lets a created container run; a running one is left alone. A stopped one is made anew from its Spec.
	Start(ctx context.Context, id string) error
	// Run is Create and Start in one, faster where the runtime can.
	Run(ctx context.Context, s Spec) error
	// Stop sends SIGTERM, then SIGKILL after grace. Stopped or unknown: nil.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Delete removes the container, its cgroups, its mounts, its writable layer, and its log unless another container has the same; it kills
	// first. Unknown: nil.
	Delete(ctx context.Context, id string) error
	// Status reports one container; unknown: ErrNotFound.
	Status(ctx context.Context, id string) (Status, error)
	// List reports every container of this instance.
	List(ctx context.Context) ([]Status, error)
	// Wait blocks until the container's first process has ended (at once if it has).
	Wait(ctx context.Context, id string) (Status, error)
	// Exec runs one more process and returns its exit code.
	Exec(ctx context.Context, id string, e ExecSpec) (int, error)
	// Logs streams the container's output, both streams in order.
	Logs(ctx context.Context, id string, o LogOptions) (io.ReadCloser, error)
	// Destroy removes every container of this instance and whatever a crash left of them.
	Destroy(ctx context.Context) error
}
