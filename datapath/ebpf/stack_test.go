package ebpf

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
)

// Kernels before 6.8 round the stack of each function up to 32 bytes, and refuse a program that takes more than 512 on any way through its functions. This kernel may
// count otherwise, but says what each function takes.
func TestTheStackIsShortEnoughForOlderKernels(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	all, _, err := (&Options{Ports: 64, Rules: 64, Flows: 64, Masks: 64, Keys: 64, Settled: 64}).specs()
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range []*ebpf.CollectionSpec{all.steer, all.exit, all.settle} {
		for _, m := range spec.Maps {
			m.Pinning = ebpf.PinNone
		}
		c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for name, p := range c.Programs {
			if most, way := deepest(t, spec.Programs[name].Instructions, p.VerifierLog); most > 512 {
				t.Errorf("%s takes %d bytes of stack as older kernels count, want 512 at most: %s", name, most, strings.Join(way, ", "))
			}
		}
	}
}

// deepest is how much stack a program takes at most, and on which way through its functions.
func deepest(t *testing.T, all asm.Instructions, log string) (most int, way []string) {
	t.Helper()
	called := map[string]bool{all[0].Symbol(): true}
	for _, ins := range all {
		if ins.IsFunctionCall() {
			called[ins.Reference()] = true
		}
	}
	var names []string
	calls := map[string][]string{}
	for _, ins := range all {
		if s := ins.Symbol(); called[s] {
			names = append(names, s)
		}
		if at := len(names) - 1; ins.IsFunctionCall() {
			calls[names[at]] = append(calls[names[at]], ins.Reference())
		}
	}
	said := regexp.MustCompile(`(?m)^stack depth ([0-9+]+)`).FindStringSubmatch(log)
	if said == nil {
		t.Fatalf("the kernel does not say what the stack is: %s", log)
	}
	sizes := strings.Split(said[1], "+")
	if len(sizes) != len(names) {
		t.Fatalf("%d functions, %d sizes: %v, %v", len(names), len(sizes), names, sizes)
	}
	size := map[string]int{}
	for i, s := range sizes {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		size[names[i]] = (max(n, 1) + 31) / 32 * 32
	}
	var enter func(name string) (int, []string)
	enter = func(name string) (most int, way []string) {
		for _, next := range calls[name] {
			if n, on := enter(next); n > most {
				most, way = n, on
			}
		}
		return most + size[name], append([]string{name + " " + strconv.Itoa(size[name])}, way...)
	}
	return enter(names[0])
}

// Kernels before 5.15 on amd64 make wrong code of an atomic and, or or xor that fetches by way of the register R0. The compiler takes or for adding 0.
func TestNoOperationThatOlderKernelsGetWrong(t *testing.T) {
	all, _, err := (&Options{}).specs()
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range []*ebpf.CollectionSpec{all.steer, all.exit, all.settle} {
		for name, p := range spec.Programs {
			for i, ins := range p.Instructions {
				if op := ins.OpCode.AtomicOp(); ins.Dst == asm.R0 && (op == asm.FetchAnd || op == asm.FetchOr || op == asm.FetchXor) {
					t.Errorf("%s, instruction %d: %v", name, i, ins)
				}
			}
		}
	}
}
