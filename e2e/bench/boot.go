package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/lab/platform"
)

const bootFunctions = 100

// boot: 100 functions created, started and chained from nothing, beside `docker run`; what the daemon then needs.
func (b *bench) boot() error {
	var took, one []float64
	var rss, cpu []float64
	var images string
	for round := range b.Rounds {
		err := b.withWeir(func(w *weir) error {
			d, err := w.wires(bootFunctions)
			if err != nil {
				return err
			}
			images = w.Images
			took = append(took, d.Seconds())
			one = append(one, d.Seconds()/bootFunctions)
			if _, err := w.Ping(b.ctx, w.alice(), "10.9.0.2", 3, "0.05"); err != nil { // the chain really carries
				return err
			}
			if round > 0 {
				return nil
			}
			pid, err := daemonPID(w.Rig)
			if err != nil {
				return err
			}
			if err := w.settle(b); err != nil {
				return err
			}
			time.Sleep(12 * time.Second) // a heartbeat and the last reports
			m, err := residentMB(pid)
			if err != nil {
				return err
			}
			rss = append(rss, m)
			c, err := cpuShare(pid, 20*time.Second)
			cpu = append(cpu, c)
			return err
		})
		if err != nil {
			return err
		}
	}
	b.limit(fmt.Sprintf("apply of %d functions in a chain", bootFunctions), "s", took, 4)
	b.limit("daemon RSS with 100 functions", "MB", rss, 150)
	b.limit("daemon idle CPU, 100 functions", "% core", cpu, 1)
	docker, err := dockerRun(b.ctx, images, 10)
	if err != nil {
		b.Notes = append(b.Notes, "docker run not measured: "+err.Error())
		b.add("one function", "s", one, nil, "", false, 0)
		return nil
	}
	b.add("one function", "s", one, docker, "docker run -d --network none", false, 8)
	return nil
}

// daemonPID is the process that holds the instance's lock; nsenter, which started it, has become it.
func daemonPID(r *rig.Rig) (int, error) {
	text, err := os.ReadFile(filepath.Join("/run/weir", r.Name, "lock"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func residentMB(pid int) (float64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	st, err := p.NewStatus()
	if err == nil && st.VmRSS == 0 {
		err = errors.New("no VmRSS: it has ended")
	}
	return float64(st.VmRSS) / (1 << 20), err
}

// cpuShare is the percentage of one core that a process used over d.
func cpuShare(pid int, d time.Duration) (float64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	before, err := p.Stat()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	time.Sleep(d)
	after, err := p.Stat()
	return (after.CPUTime() - before.CPUTime()) / time.Since(begin).Seconds() * 100, err
}

// dockerRun times `docker run -d --network none` n times, with the lab's engine.
func dockerRun(ctx context.Context, images string, n int) (took []float64, err error) {
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	o := platform.Options{Name: "b" + hex.EncodeToString(id[:]), Images: []string{images}}
	if why := platform.CheckEngine(o); why != "" {
		return nil, errors.New(why)
	}
	e, err := platform.StartEngine(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	for i := range n + 1 {
		begin := time.Now()
		if _, err := e.Docker(ctx, nil, "run", "-d", "--network", "none", platform.DockerImage, "/bin/busybox", "sleep", "1000"); err != nil {
			return nil, err
		}
		if i > 0 { // the first one warms up
			took = append(took, time.Since(begin).Seconds())
		}
	}
	return took, nil
}

// api: 1,000 policies in one file.
func (b *bench) api() error {
	var took, again []float64
	for range b.Rounds {
		err := b.withWeir(func(w *weir) error {
			if _, err := w.Apply(b.ctx, "functions:\n  w1: {image: wire}\nchains:\n  one: w1\n"); err != nil {
				return err
			}
			doc := manyPolicies(1000)
			for _, v := range []*[]float64{&took, &again} {
				begin := time.Now()
				if _, err := w.Apply(b.ctx, doc); err != nil {
					return err
				}
				*v = append(*v, time.Since(begin).Seconds())
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.limit("apply of 1,000 policies, in force", "s", took, 2)
	b.limit("the same again (nothing changes)", "s", again, 2)
	return nil
}
