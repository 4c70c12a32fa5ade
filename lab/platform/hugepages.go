package platform

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
)

// hugepages are those of 2 MiB that a platform has the kernel set apart, beside those that were. They are given back exactly: so many fewer, whatever others
// have changed meanwhile. What was taken is on the disk before it is, so that after a crash the next run gives it back.
type hugepages struct {
	count  string // the kernel's file with their number
	record string
}

// pages is the record: how many are taken, and a change that was under way.
type pages struct {
	Taken  int `json:"taken"`
	Before int `json:"before,omitempty"` // the kernel's number before the change
	Change int `json:"change,omitempty"`
}

const (
	allHugepages  = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	nodeHugepages = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
)

// hugepagesOf a platform. On a machine with several nodes they are the first one's: there DPDK looks for them.
func hugepagesOf(i instance.Instance) hugepages {
	h := hugepages{count: allHugepages, record: filepath.Join(i.Run, "hugepages")}
	if nodes, _ := filepath.Glob("/sys/devices/system/node/node[0-9]*"); len(nodes) > 1 {
		h.count = nodeHugepages
	}
	return h
}

// checkHugepages tells why there can be none; empty: there can.
func checkHugepages() string {
	if _, err := os.Stat(allHugepages); err != nil {
		return "this kernel lacks hugepages of 2 MiB (CONFIG_HUGETLBFS): " + err.Error()
	}
	return ""
}

// hugeWait is how long another's change of their number is waited for.
const hugeWait = 30 * time.Second

// locked opens the kernel's file alone among those who do it this way.
func (h hugepages) locked() (*os.File, error) {
	f, err := os.OpenFile(h.count, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("hugepages: %w", err)
	}
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Since(begin) > hugeWait {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", h.count, err), f.Close())
		}
	}
}

// more takes n.
func (h hugepages) more(n int) error {
	f, err := h.locked()
	if err != nil {
		return err
	}
	defer f.Close()
	p, err := h.settled(f)
	if err != nil {
		return err
	}
	before, err := number(f)
	if err != nil {
		return err
	}
	if err := h.write(pages{p.Taken, before, n}); err != nil {
		return err
	}
	after, err := change(f, before+n)
	if err != nil {
		return err
	}
	if after < before+n {
		if _, err := change(f, before); err != nil {
			return err
		}
		return errors.Join(fmt.Errorf("hugepages: the kernel set %d of %d apart: its memory is used up or in pieces; end programs, or reserve them at boot (hugepages=N)", after-before, n),
			h.write(p))
	}
	return h.write(pages{Taken: p.Taken + n})
}

// giveBack all. Nothing was taken: nil.
func (h hugepages) giveBack() error {
	if _, err := os.Stat(h.record); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f, err := h.locked()
	if err != nil {
		return err
	}
	defer f.Close()
	p, err := h.settled(f)
	if err != nil {
		return err
	}
	if p.Taken > 0 {
		before, err := number(f)
		if err != nil {
			return err
		}
		if err := h.write(pages{p.Taken, before, -p.Taken}); err != nil {
			return err
		}
		if _, err := change(f, max(0, before-p.Taken)); err != nil {
			return err
		}
	}
	return os.Remove(h.record)
}

// settled is the record with a change that a crash interrupted as far as it came.
func (h hugepages) settled(f *os.File) (p pages, err error) {
	text, err := os.ReadFile(h.record)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return p, fmt.Errorf("%s: %w", h.record, err)
	}
	now, err := number(f)
	if err != nil {
		return p, err
	}
	switch came := now - p.Before; {
	case p.Change > 0:
		p.Taken += min(max(0, came), p.Change)
	case p.Change < 0 && came < 0:
		p.Taken = 0
	}
	p.Before, p.Change = 0, 0
	return p, h.write(p)
}

func (h hugepages) write(p pages) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return instance.Replace(h.record, append(text, '\n'), 0o600)
}

// number of hugepages that stay: those in use beyond what was asked for (surplus) go when their last user ends, but the kernel counts them in its file until then.
func number(f *os.File) (int, error) {
	for range mostReads {
		surplus, err := surplusOf(f)
		if err != nil {
			return 0, err
		}
		all, err := read(f, f.Name())
		if err != nil {
			return 0, err
		}
		switch again, err := surplusOf(f); {
		case err != nil:
			return 0, err
		case again == surplus:
			return all - surplus, nil
		}
	}
	return 0, fmt.Errorf("read %s: the surplus beside it changes all the time", f.Name())
}

// mostReads of two files that belong together and cannot be read at once.
const mostReads = 1000

func surplusOf(f *os.File) (int, error) {
	s, err := os.Open(filepath.Join(filepath.Dir(f.Name()), "surplus_hugepages"))
	if err != nil {
		return 0, fmt.Errorf("hugepages: %w", err)
	}
	defer s.Close()
	return read(s, s.Name())
}

func read(r io.ReaderAt, name string) (int, error) {
	text, err := io.ReadAll(io.NewSectionReader(r, 0, 64))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// change their number, and tell what it came to.
func change(f *os.File, n int) (int, error) {
	if _, err := f.WriteAt([]byte(strconv.Itoa(n)), 0); err != nil {
		return 0, fmt.Errorf("write %d to %s: %w", n, f.Name(), err)
	}
	return number(f)
}
