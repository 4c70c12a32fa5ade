package channel

// Machine is what a machine is to be. It finds it as JSON in the file MachineFile on the disk DiskConfig, and beside it the directory MountsDir.
type Machine struct {
	Hostname     string
	ReadOnly     bool // else the root has a writable layer in the machine's memory
	Process      Process
	Dir          string
	UID, GID     uint32
	Capabilities uint64   // bits; the program has no others
	PIDs         int64    // processes at most; 0 no limit
	FileBytes    uint64   // of a file at most; 0 no limit
	Modules      []string // loaded before the program starts, as far as the kernel has them
	Links        []Link
	Devices      []string `json:",omitempty"` // on PCI, as in "0000:00:10.0": the program drives them, and no driver of the kernel does
	Hugepages    int      `json:",omitempty"` // set apart, of 2 MiB
	// Seed is for the kernel's random numbers, and Now the time in nanoseconds since 1970, of a machine made from a template: it has those of its template. Empty, 0: of another.
	Seed      []byte `json:",omitempty"`
	Now       int64  `json:",omitempty"`
	Forwarder string // Wire: frames go from the interface in to the interface out, and back; "" the program sees to it
	Mounts    []Mount
	Sockets   []Socket
}

// Wire hands each frame on, by a bridge. Its ports are the interfaces In and Out.
const (
	Wire = "wire"
	In   = "in"
	Out  = "out"
)

// DirectDriver is the driver of Machine.Devices, by which a program gets at them. It is a module of the kernel's.
const DirectDriver = "uio_pci_generic"

// Link names an interface.
type Link struct {
	MAC  string // as in "02:00:00:00:00:01"
	Name string
	MTU  int
}

// Mount is a file or a directory, copied when the machine was made: MountsDir/N, N its place in the list.
type Mount struct {
	Target   string
	Dir      bool
	ReadOnly bool
}

// Follows tells whether changes outside are copied into the machine later. What the program writes to is its own, and a single file stays as it was, as where
// it is mounted into a container.
func (m Mount) Follows() bool { return m.Dir && m.ReadOnly }

// Socket is a unix socket in one of the mounts, which the driver answers; its number is its place in the list. Any user of the machine may connect.
type Socket struct {
	Mount     int // place in Mounts
	Name      string
	Datagrams bool // not connections: each is a frame of one stream
}

// Disks, by their serial numbers.
const (
	DiskModules = "modules"
	DiskRoot    = "root"
	DiskConfig  = "config"
)

// Files.
const (
	MachineFile = "machine.json"
	MountsDir   = "mounts"
	IndexFile   = "index" // on DiskModules: a name and the files to load, in order, a line each
	BootModules = "/boot" // in the initial file system, in order of their names: those without which no disk is found
)

// Words on the kernel's command line.
const (
	Trial = "weir.trial" // the machine ends as soon as it has come to process 1
	// Template: the machine loads what it will need, writes TemplateReady to the ExitLine, and goes on when its disks are larger than one sector: those of a template
	// are not.
	Template = "weir.template"
	// Timer and a range of kHz, such as weir.timer=56250-68750: a machine whose kernel takes its local APIC's timer for another, or has none, ends with WrongTimer.
	Timer = "weir.timer="
)

// WrongTimer begins the Error of a machine that is as good as any other, but for its timer: see Timer.
const WrongTimer = "timer: "

// TemplateReady tells that a machine can be a template from now on.
const TemplateReady = "ready"

// Ports, by their names, and the serial line on which a machine writes its Exit when it ends.
const (
	PortControl = "weir.control"
	PortLog     = "weir.log"
	ExitLine    = "/dev/ttyS1"
)
