package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"weir.dev/weir/store"
)

// BenchmarkOpen opens and closes a store: anew, and again.
func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		o := options(shortDir(b))
		for _, what := range []string{"fresh", "again"} {
			began := time.Now()
			s := open(b, o)
			b.ReportMetric(float64(time.Since(began).Milliseconds()), what+"-open-ms")
			began = time.Now()
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(time.Since(began).Milliseconds()), what+"-close-ms")
		}
	}
}

// BenchmarkTxn puts 1,000 values of 500 bytes in one transaction.
func BenchmarkTxn(b *testing.B) {
	s := open(b, options(shortDir(b)))
	defer s.Close()
	var ops []store.Op
	for i := range 1000 {
		ops = append(ops, store.Op{Key: fmt.Sprintf("policy/p%04d", i), Value: make([]byte, 500)})
	}
	for b.Loop() {
		if _, err := s.Txn(b.Context(), nil, ops); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIdle tells what an open store that nobody uses costs: percent of a core, and resident memory.
func BenchmarkIdle(b *testing.B) {
	s := open(b, options(shortDir(b)))
	defer s.Close()
	const window = 20 * time.Second
	for b.Loop() {
		<-time.After(2 * time.Second) // the start's own work ends
		before, _ := used(b)
		<-time.After(window)
		after, rss := used(b)
		b.ReportMetric(100*float64(after-before)/float64(window), "%core")
		b.ReportMetric(rss, "MiB-rss")
	}
}

// used is the processor time that this process has used, and the memory that it has.
func used(b *testing.B) (cpu time.Duration, rssMiB float64) {
	p, err := procfs.Self()
	if err != nil {
		b.Fatal(err)
	}
	st, err := p.Stat()
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(st.CPUTime() * float64(time.Second)), float64(st.ResidentMemory()) / (1 << 20)
}
