package store_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

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
		before := cpuTime(b)
		<-time.After(window)
		b.ReportMetric(100*float64(cpuTime(b)-before)/float64(window), "%core")
		b.ReportMetric(rss(b), "MiB-rss")
	}
}

// cpuTime is what this process has used, from /proc/self/stat (proc(5): fields 14 and 15, in ticks of 10 ms).
func cpuTime(b *testing.B) time.Duration {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func rss(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		b.Fatal(err)
	}
	return float64(pages*os.Getpagesize()) / (1 << 20)
}
