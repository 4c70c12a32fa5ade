package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Others are all processes but this one.
func Others(pid int) bool { return pid != os.Getpid() }

// PSS is the memory that some processes have, in bytes: what is shared counts for each of its users by its part. It has neither what the kernel keeps for
// them nor the cache of files that nobody maps, nor processes with more rights than this one.
func PSS(counts func(pid int) bool) (sum int64, err error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return 0, fmt.Errorf("processes: %w", err)
	}
	for _, p := range all {
		if !counts(p.PID) {
			continue
		}
		r, err := p.ProcSMapsRollup()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrPermission) { // it has ended, or is a thread of the kernel
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("memory of process %d: %w", p.PID, err)
		}
		sum += int64(r.Pss)
	}
	return sum, nil
}
