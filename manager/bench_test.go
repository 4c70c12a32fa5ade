package manager_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/router"
	"weir.dev/weir/store"
)

// startEtcd is a manager over an embedded etcd, with all checks, as `weir up` has it.
func startEtcd(b *testing.B) *bench {
	b.Helper()
	dir := shortDir(b)
	s := must(store.Open(ctx(b), store.Options{Dir: filepath.Join(dir, "etcd"), SocketDir: dir}))(b)
	b.Cleanup(func() { s.Close() })
	return startIn(b, dir, manager.Options{Store: s, Validate: router.ValidateChange})
}

// BenchmarkApply1000 applies a file of 1,000 policies: all new, then again, then each changed.
func BenchmarkApply1000(b *testing.B) {
	m := startEtcd(b)
	for b.Loop() {
		for _, what := range []string{"new", "again", "changed"} {
			d := many(1000)
			if what == "changed" {
				for name, p := range d.Policies {
					p.Match = append(p.Match, "udp/"+strings.TrimPrefix(p.Match[0], "tcp/"))
					d.Policies[name] = p
				}
			}
			began := time.Now()
			must(m.Apply(ctx(b), api.ApplyRequest{Document: d}))(b)
			b.ReportMetric(float64(time.Since(began).Milliseconds()), what+"-ms")
		}
		empty := must(m.Policies().List(ctx(b), api.ListOptions{}))(b)
		ops := []store.Op{}
		for _, p := range empty.Items {
			ops = append(ops, store.Delete(api.KindPolicy, p.Name))
		}
		must(m.store.Txn(ctx(b), nil, ops))(b)
	}
}

// BenchmarkReport reports 100 functions, of which each has changed.
func BenchmarkReport(b *testing.B) {
	m := startEtcd(b)
	d := api.Document{Functions: map[string]api.FunctionSpec{}}
	for i := range 100 {
		d.Functions[fmt.Sprintf("f%d", i)] = api.FunctionSpec{Image: "wire"}
	}
	must(m.Apply(ctx(b), api.ApplyRequest{Document: d}))(b)
	n := 0
	for b.Loop() {
		n++
		r := api.StatusReport{Functions: map[string]api.FunctionStatus{}}
		for name := range d.Functions {
			r.Functions[name] = api.FunctionStatus{ObservedGeneration: 1, State: api.FunctionStarted, PID: n}
		}
		report(b, m, r)
	}
}

// BenchmarkIdle is what manager and store cost while nothing happens, with 1,000 policies and 4 watches: percent of a core,
// and resident memory.
func BenchmarkIdle(b *testing.B) {
	m := startEtcd(b)
	must(m.Apply(ctx(b), api.ApplyRequest{Document: many(1000)}))(b)
	for range 4 {
		go func() {
			for range m.Policies().Watch(ctx(b), 0, api.ListOptions{}) {
			}
		}()
	}
	const window = 20 * time.Second
	for b.Loop() {
		<-time.After(3 * time.Second) // the apply's own work ends
		before, _ := used(b)
		<-time.After(window)
		after, rss := used(b)
		b.ReportMetric(100*float64(after-before)/float64(window), "%core")
		b.ReportMetric(rss, "MiB-rss")
	}
}

// used is the processor time that this process has used, and the memory that it has.
func used(b *testing.B) (cpu time.Duration, rssMiB float64) {
	st, err := must(procfs.Self())(b).Stat()
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(st.CPUTime() * float64(time.Second)), float64(st.ResidentMemory()) / (1 << 20)
}

// BenchmarkApplyFunctions applies 100 new functions where one host is, as `weir up` has it, and where there are 100.
func BenchmarkApplyFunctions(b *testing.B) {
	for _, hosts := range []int{1, 100} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			m := startEtcd(b)
			for i := range hosts {
				hostUp(b, m, fmt.Sprintf("h%d", i))
			}
			d := api.Document{Functions: map[string]api.FunctionSpec{}}
			for i := range 100 {
				d.Functions[fmt.Sprintf("f%d", i)] = api.FunctionSpec{Image: "wire", CPUs: "0.1"}
			}
			var ops []store.Op
			for name := range d.Functions {
				ops = append(ops, store.Delete(api.KindFunction, name))
			}
			for b.Loop() {
				must(m.Apply(ctx(b), api.ApplyRequest{Document: d}))(b)
				b.StopTimer()
				must(m.store.Txn(ctx(b), nil, ops))(b)
				b.StartTimer()
			}
		})
	}
}
