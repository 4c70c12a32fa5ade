package experiment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"weir.dev/weir/lab/controllers"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/ovsdb/ovsproc"
	"weir.dev/weir/router/fabric"
)

// installExperiment is how fast policies become entries of OpenFlow switches.
type installExperiment struct{}

func (installExperiment) Name() string { return "install" }
func (installExperiment) About() string {
	return "policies as entries of 10 OpenFlow switches, by Weir's router, which compiles them, or by os-ken, which is given the flow-mods"
}
func (installExperiment) Metrics() map[string]string {
	return map[string]string{"policies": "1/s", "entries": "1/s", "cpu": "us/entry"}
}

// Factors of the experiment install, and their levels.
const (
	factorController = "controller"
	factorInto       = "into"
	factorPolicies   = "policies"

	byWeir  = "weir"
	byOsken = "os-ken"

	intoOVS     = "ovs"
	intoSink    = "sink"
	intoNothing = "nothing"
)

func (installExperiment) Factors() []Factor {
	return []Factor{
		{Name: factorController, About: "who installs", Check: oneOf(byWeir, byOsken)},
		{Name: factorInto, Check: oneOf(intoOVS, intoSink, intoNothing), About: "ovs: Open vSwitch (netdev), whose own work is in the time; " +
			"sink: switches that only answer; nothing: flow-mods are made and encoded, none is sent"},
		{Name: factorPolicies, About: "how many", Default: defaultPolicies, Check: between(1, maxPolicies, "policies")},
	}
}

// The network whose policies are installed.
const (
	installSpines   = 2
	installLeaves   = 8
	installSwitches = installSpines + installLeaves
	installStations = 80

	defaultPolicies = "1000"
	maxPolicies     = 10_000
	suffixInstall   = "-f"
)

func installNetwork(policies int) fabric.Input {
	return controllers.LeafSpine(installSpines, installLeaves, installStations, policies)
}

func (installExperiment) Check(_ context.Context, _ *Bench, l Levels) string {
	if os.Geteuid() != 0 {
		return "needs root"
	}
	if l[factorController] == byOsken {
		if _, err := controllers.FindOsken(); err != nil {
			return err.Error()
		}
	}
	if l[factorInto] == intoOVS && ovsproc.Installed() != nil {
		return "Open vSwitch is not installed (apt-get install openvswitch-switch)"
	}
	return ""
}

func installDir(name string) string { return filepath.Join(platform.Run, name+suffixInstall) }

// installer is a controller that is ready to install.
type installer struct {
	levels   Levels
	in       fabric.Input
	mods     int
	file     string // with the flow-mods, for os-ken
	done     func()
	switches *controllers.Switches
}

func (installExperiment) Setup(_ context.Context, b *Bench, l Levels) (Arrangement, error) {
	in := installNetwork(l.number(factorPolicies, defaultPolicies))
	mods, err := controllers.Compile(in)
	if err != nil {
		return nil, err
	}
	program, err := b.program()
	if err != nil {
		return nil, err
	}
	i := &installer{levels: l, in: in, mods: controllers.Count(mods)}
	i.switches, err = shared(b, "install", func() (*controllers.Switches, error) {
		return controllers.Open(controllers.Options{Dir: installDir(b.Name), Program: program, Switches: installSwitches})
	})
	if err == nil {
		i.file, i.done, err = controllers.OskenFile(mods)
	}
	return i, err
}

// Close leaves the switches to others.
func (i *installer) Close() error {
	i.done()
	return nil
}

// installed is what came of a trial; the journal keeps it.
type installed struct {
	Mods       int           `json:"flow_mods"`
	Bytes      int           `json:"bytes,omitempty"` // of those that were only encoded
	Compiling  time.Duration `json:"compiling_ns,omitempty"`
	Installing time.Duration `json:"installing_ns"`
	CPU        time.Duration `json:"cpu_ns"`
}

func (i *installer) Measure(ctx context.Context, _ time.Duration) (Measurement, error) {
	var got installed
	var err error
	switch i.levels[factorInto] {
	case intoNothing:
		got, err = i.encode(ctx)
	case intoSink:
		got, err = i.install(ctx, func(port int, controller func() error) error {
			return i.switches.WithSink(ctx, port, i.mods, controller)
		})
	default:
		got, err = i.install(ctx, func(port int, controller func() error) error { return i.switches.WithOVS(ctx, port, controller) })
	}
	if err != nil {
		return Measurement{}, err
	}
	if got.Mods != i.mods {
		return Measurement{}, fmt.Errorf("%d flow-mods were installed, want %d", got.Mods, i.mods)
	}
	m := Measurement{Raw: got, Values: map[string]float64{
		"entries": float64(got.Mods) / got.Installing.Seconds(), "cpu": micros(got.CPU) / float64(got.Mods),
	}}
	if i.levels[factorInto] != intoNothing {
		m.Values["policies"] = float64(len(i.in.Policies)) / (got.Compiling + got.Installing).Seconds()
	}
	return m, nil
}

// install into switches that connect to a port while a controller runs.
func (i *installer) install(ctx context.Context, with func(port int, controller func() error) error) (got installed, err error) {
	if i.levels[factorController] == byOsken {
		port, err := i.switches.FreePort()
		if err != nil {
			return got, err
		}
		return got, with(port, func() (err error) {
			got, err = i.osken(ctx, "serve", fmt.Sprint(port))
			return err
		})
	}
	l, err := i.switches.Listen()
	if err != nil {
		return got, err
	}
	defer controllers.Calm()()
	err = with(l.Addr().(*net.TCPAddr).Port, func() error {
		r, err := controllers.Install(ctx, l, i.in, installSwitches)
		got = installed{r.Mods, 0, r.Compiling, r.Installing, r.CPU}
		return err
	})
	if cerr := l.Close(); cerr != nil && !errors.Is(cerr, net.ErrClosed) {
		err = errors.Join(err, cerr)
	}
	return got, err
}

// encode makes flow-mods and encodes them.
func (i *installer) encode(ctx context.Context) (got installed, err error) {
	if i.levels[factorController] == byOsken {
		return i.osken(ctx, "encode")
	}
	defer controllers.Calm()()
	r, err := controllers.Encode(i.in)
	return installed{r.Mods, r.Bytes, 0, r.Installing, r.CPU}, err
}

// osken runs it in the switches' namespace.
func (i *installer) osken(ctx context.Context, args ...string) (installed, error) {
	o, err := controllers.FindOsken()
	if err != nil {
		return installed{}, err
	}
	space := i.switches.Space()
	r, err := o.Run(ctx, space, append(args, i.file)...)
	return installed{Mods: r.FlowMods, Bytes: r.Bytes, Installing: time.Duration(r.Seconds * 1e9), CPU: time.Duration(r.CPU * 1e9)}, err
}
