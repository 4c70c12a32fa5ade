package ovsproc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"weir.dev/weir/ovsdb"
)

// Control has ovs-vswitchd carry out a command, as `ovs-appctl` does.
func (p *Process) Control(ctx context.Context, command string, args ...string) error {
	return p.control(ctx, switchd, command, args...)
}

func (p *Process) control(ctx context.Context, program, command string, args ...string) error {
	c, err := ovsdb.Dial(ctx, "unix:"+filepath.Join(p.o.Dir, program+".ctl"), ovsdb.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	if args == nil {
		args = []string{}
	}
	return c.Call(ctx, command, args, nil)
}

// maxLog is the size at which a log is turned over. The directory may be in memory.
const maxLog = 4 << 20

// TurnLogs bounds the logs of both processes: a large one becomes FILE.1, in place of the one before, and its process begins a new one.
// Call it now and then.
func (p *Process) TurnLogs(ctx context.Context) error { return p.turnLogs(ctx, maxLog) }

func (p *Process) turnLogs(ctx context.Context, limit int64) error {
	var errs []error
	for _, program := range []string{server, switchd} {
		path := filepath.Join(p.o.Dir, program+".log")
		info, err := os.Stat(path)
		if err == nil && info.Size() <= limit {
			continue
		}
		if err == nil {
			err = os.Rename(path, path+".1")
		} else if errors.Is(err, fs.ErrNotExist) { // somebody removed it, or the process has not begun its new one
			err = nil
		}
		if err == nil && p.pid(program) > 0 {
			err = p.control(ctx, program, "vlog/reopen")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("turn over log of %s: %w", program, err))
		}
	}
	return errors.Join(errs...)
}
