package ebpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
)

// initialPIDs is the inode of the initial process namespace (linux/proc_ns.h: PROC_PID_INIT_INO).
const initialPIDs = "pid:[4026531836]"

func unsupported(name, purpose, remedy string) error {
	return fmt.Errorf("%s, needed for %s: %w; want %s", name, purpose, datapath.ErrUnsupported, remedy)
}

// need is a kernel feature and what it is for.
type need struct {
	name, purpose, since, without string // without: what is done then; empty: nothing goes
	probe                         func() error
}

func needs() []need {
	helper := func(fn asm.BuiltinFunc) func() error {
		return func() error { return features.HaveProgramHelper(ebpf.SchedCLS, fn) }
	}
	mapType := func(t ebpf.MapType) func() error { return func() error { return features.HaveMapType(t) } }
	return []need{
		{"tc programs", "steering", "kernel 4.5 with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF, CONFIG_NET_SCH_INGRESS", "",
			func() error { return features.HaveProgramType(ebpf.SchedCLS) }},
		{"redirect_peer", "the way into functions", "kernel 5.10", "", helper(asm.FnRedirectPeer)},
		{"clone_redirect", "copies to taps", "kernel 4.2", "", helper(asm.FnCloneRedirect)},
		{"bounded loops", "the search among rules", "kernel 5.3", "", features.HaveBoundedLoops},
		{"global functions that take pointers", "programs that the kernel can verify", "kernel 5.12", "", haveGlobalFunctions},
		{"LRU hash", "the cache of known flows", "kernel 4.10", "", mapType(ebpf.LRUHash)},
		{"per-CPU array", "counters", "kernel 4.6", "", mapType(ebpf.PerCPUArray)},
		{"tcx", "quicker hooks", "kernel 6.6", "tc filters (clsact) are used", haveTCX},
		{"raw tracepoints", "setting a function down the instant its process ends", "kernel 4.17 with CONFIG_BPF_EVENTS, in the initial process namespace",
			"the agent notices some time later", haveExit},
		{"settled flows", "functions that settle flows (weir.settles)", "kernel 5.12 with the JIT compiler of this architecture (arm64: 5.18)",
			"every frame is given to them", haveCompareExchange},
		{"batch updates", "quick commits", "kernel 5.6", "entries are written one by one", haveBatch},
		{"bridge traffic past iptables", "ordinary switching", "net.bridge.bridge-nf-call-iptables=0",
			"iptables rules see bridged packets, and a FORWARD policy of DROP (Docker sets it) stops them, unless weir up has --accept-bridged; without any rule the kernel cuts padding off bridged IP packets and drops those whose IP header is wrong: " +
				"sysctl -w net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0", haveOpenBridge},
		{"steering past the bridge", "a queue less between two stations", "no chains of nftables for the families bridge and netdev, no ebtables, and nothing to which bridged packets are shown (net.bridge.bridge-nf-call-*=0)",
			"frames cross the bridge first, for who looks at them there", haveUnseenBridge},
	}
}

// Features tells what the kernel has of what the switch uses. It changes nothing.
func Features() []datapath.Feature {
	var all []datapath.Feature
	for _, n := range needs() {
		err := n.probe()
		f := datapath.Feature{Name: n.name, OK: err == nil, Required: n.without == "", Detail: n.purpose}
		switch {
		case err == nil:
		case n.without == "":
			f.Detail = fmt.Sprintf("needed for %s: want %s (%v)", n.purpose, n.since, err)
		default:
			f.Detail = fmt.Sprintf("%s: want %s; without it %s", n.purpose, n.since, n.without)
		}
		all = append(all, f)
	}
	return all
}

// Features of the switch's kernel.
func (s *Switch) Features() []datapath.Feature { return Features() }

// kernel is what the kernel has of what is not needed.
type kernel struct {
	tcx     bool
	exit    bool // it tells of processes' ends
	settles bool // functions can settle flows
}

// probe finds out what the switch can use, and names what it cannot go without.
func (k *kernel) probe(hook string) error {
	for _, n := range needs() {
		if n.without != "" {
			continue
		}
		if err := n.probe(); errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.ENOSYS) {
			return unsupported(n.name, n.purpose, n.since)
		}
	}
	k.tcx, k.exit, k.settles = haveTCX() == nil, haveExit() == nil, haveCompareExchange() == nil
	if hook == HookTCX && !k.tcx {
		return unsupported("tcx", "the hook asked for", "kernel 6.6, or the hook auto")
	}
	return nil
}

// haveGlobalFunctions loads a program with a function that is verified by itself, not anew for each call, and reads what its argument
// points to. The kernel needs no BTF of its own for that: the programs bring theirs.
func haveGlobalFunctions() error {
	number := &btf.Int{Name: "number", Size: 8}
	main := &btf.Func{Name: "main", Type: &btf.FuncProto{Return: number}, Linkage: btf.GlobalFunc}
	read := &btf.Func{Name: "read", Linkage: btf.GlobalFunc,
		Type: &btf.FuncProto{Return: number, Params: []btf.FuncParam{{Name: "at", Type: &btf.Pointer{Target: number}}}}}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "probe", Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		btf.WithFuncMetadata(asm.Mov.Imm(asm.R0, 0).WithSymbol("main"), main),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, -8),
		asm.Call.Label("read"),
		asm.Return(),
		btf.WithFuncMetadata(asm.Mov.Imm(asm.R0, 0).WithSymbol("read"), read),
		asm.JEq.Imm(asm.R1, 0, "null"),
		asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord),
		asm.Return().WithSymbol("null"),
	}})
	if err == nil {
		return p.Close()
	}
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) && !errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", ebpf.ErrNotSupported, err)
	}
	return err
}

// haveTCX asks for the programs at the loopback's tcx: a kernel without tcx does not know the question.
func haveTCX() error {
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress})
	return err
}

func haveExit() error {
	if err := features.HaveProgramType(ebpf.RawTracepoint); err != nil {
		return err
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return err
	}
	if ns != initialPIDs {
		return errors.New("not in the initial process namespace: process ids differ")
	}
	return nil
}

// haveCompareExchange loads a program as short as one that compares and exchanges can be.
func haveCompareExchange() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "probe", Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, 0),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R1, 1),
		asm.CmpXchg.Mem(asm.RFP, asm.R1, asm.DWord, -8),
		asm.Return(),
	}})
	if err != nil {
		return err
	}
	return p.Close()
}

func haveBatch() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	_, err = m.BatchUpdate([]uint32{1}, []uint32{1}, nil)
	return err
}

func haveOpenBridge() error {
	for _, name := range acceptors {
		if v := bridgedTo(name); v != "" {
			return fmt.Errorf("bridge-nf-call-%s is %s", name, v)
		}
	}
	return nil
}
