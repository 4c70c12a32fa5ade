package machine

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Others are all processes but this one.
func Others(pid int) bool { return pid != os.Getpid() }

// PSS is the memory that some processes have, in bytes: what is shared counts for each of its users by its part. A file that is memory (memfd), and that one of
// them has open or maps, counts with all of its pages, also with those that nobody maps: a virtual machine's memory may be such a file. PSS has neither what the kernel
// keeps for the processes nor the cache of files on disks that nobody maps, nor processes with more rights than this one.
func PSS(counts func(pid int) bool) (sum int64, err error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return 0, fmt.Errorf("processes: %w", err)
	}
	files := memfds{}
	for _, p := range all {
		its := counts(p.PID)
		if err := files.look(p.PID, its); err != nil && !hidden(err) {
			return 0, fmt.Errorf("files of process %d: %w", p.PID, err)
		}
		if !its {
			continue
		}
		r, err := p.ProcSMapsRollup()
		if hidden(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("memory of process %d: %w", p.PID, err)
		}
		sum += int64(r.Pss)
	}
	return sum + files.unmapped(), nil
}

// hidden is an error of a process that has ended, is a thread of the kernel, or has more rights.
func hidden(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrPermission)
}

// memfds are the files in memory that processes have.
type memfds map[inode]*memfd

type inode struct{ dev, ino uint64 }

type memfd struct {
	pages  int64 // bytes that are there
	mapped int64 // bytes of them that are in the PSS of some process
	counts bool  // one of the processes that count has it
}

// memfdPrefix begins the name of such a file wherever the kernel shows it: memfd_create(2).
const memfdPrefix = "/memfd:"

// look adds the files that a process has open or maps.
func (m memfds) look(pid int, counts bool) error {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	add := func(link string) (*memfd, error) {
		var st unix.Stat_t
		if err := unix.Stat(link, &st); err != nil {
			return nil, err
		}
		key := inode{st.Dev, st.Ino}
		f := m[key]
		if f == nil {
			f = &memfd{}
			m[key] = f
		}
		f.pages, f.counts = st.Blocks*512, f.counts || counts
		return f, nil
	}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return err
	}
	for _, fd := range fds {
		link := filepath.Join(dir, "fd", fd.Name())
		if to, err := os.Readlink(link); err != nil || !strings.HasPrefix(to, memfdPrefix) {
			continue // a file that is closed meanwhile is no longer its
		}
		if _, err := add(link); err != nil && !hidden(err) {
			return err
		}
	}
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	if err != nil || !strings.Contains(string(maps), memfdPrefix) {
		return err
	}
	return mappings(filepath.Join(dir, "smaps"), func(addresses string, pss int64) error {
		f, err := add(filepath.Join(dir, "map_files", addresses))
		if err == nil {
			f.mapped += pss
		}
		if hidden(err) {
			return nil
		}
		return err
	})
}

// mappings calls f for each mapping of a file in memory: with the name that it has in /proc/PID/map_files, and the bytes of the file's pages that count to the process.
func mappings(smaps string, f func(addresses string, pss int64) error) error {
	file, err := os.Open(smaps)
	if err != nil {
		return err
	}
	defer file.Close()
	var addresses string // of the mapping that is read, if it is of such a file
	var pss int64
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"): // address perms offset dev inode path
			addresses, pss = "", 0
			if len(fields) > 5 && strings.HasPrefix(fields[5], memfdPrefix) {
				addresses = mapFile(fields[0])
			}
		case addresses == "" || len(fields) < 2:
		case fields[0] == "Pss:":
			pss = kilobytes(fields[1])
		case fields[0] == "Anonymous:": // the process's own copies of pages
			if err := f(addresses, max(0, pss-kilobytes(fields[1]))); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// mapFile is the name in map_files of addresses as maps has them, which pads them with zeros.
func mapFile(addresses string) string {
	from, to, _ := strings.Cut(addresses, "-")
	bare := func(s string) string {
		if s = strings.TrimLeft(s, "0"); s == "" {
			return "0"
		}
		return s
	}
	return bare(from) + "-" + bare(to)
}

func kilobytes(field string) int64 {
	kb, _ := strconv.ParseInt(field, 10, 64)
	return kb << 10
}

// unmapped are the bytes of those files that are in no process's PSS.
func (m memfds) unmapped() (sum int64) {
	for _, f := range m {
		if f.counts {
			sum += max(0, f.pages-f.mapped)
		}
	}
	return sum
}
