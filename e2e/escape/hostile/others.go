package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// others are the processes to be seen that are not the function's own, with their commands; or the one of them that OTHER in the environment names.
func others() map[int]string {
	out := map[int]string{}
	only := os.Getenv("OTHER")
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || only != "" && e.Name() != only {
			continue
		}
		b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if len(b) > 0 && !bytes.Contains(b, []byte("hostile")) && !bytes.HasPrefix(b, []byte("/proc/self/exe\x00")) {
			out[pid] = strings.TrimSpace(strings.ReplaceAll(string(b[:min(len(b), 80)]), "\x00", " "))
		}
	}
	return out
}

// eachOther tries something with every other process; the first that goes through counts.
func eachOther(try func(pid int) error, what string) (string, string) {
	var last error = errors.New("no process but its own")
	for pid, command := range others() {
		if last = try(pid); last == nil {
			return escaped, fmt.Sprintf("%s process %d, %s", what, pid, command)
		}
	}
	return refused, last.Error()
}

func otherAttempts() []attempt {
	return []attempt{
		{"foreign-processes", func() (string, string) {
			return eachOther(func(int) error { return nil }, "sees")
		}},
		{"signal-others", func() (string, string) {
			return eachOther(func(pid int) error { return unix.Kill(pid, 0) }, "may signal")
		}},
		{"enter-others", func() (string, string) {
			return eachOther(func(pid int) error {
				last := errors.New("it is in the same namespaces")
				for _, ns := range []string{"user", "net", "mnt", "pid", "ipc", "uts", "cgroup"} {
					path := fmt.Sprintf("/proc/%d/ns/%s", pid, ns)
					own, _ := os.Readlink("/proc/self/ns/" + ns)
					other, err := os.Readlink(path)
					if err != nil {
						return err
					}
					if other == own {
						continue
					}
					verdict, detail := enters(path)
					if verdict == escaped {
						return nil
					}
					last = errors.New(detail)
				}
				return last
			}, "entered a namespace of")
		}},
		{"look-into-others", func() (string, string) {
			return eachOther(func(pid int) error {
				_, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid))
				if err != nil {
					_, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
				}
				return err
			}, "reads files or the environment of")
		}},
		{"trace-others", func() (string, string) { return eachOther(unix.PtraceSeize, "traces") }},
		{"shared-memory", func() (string, string) { // the test has made some outside
			for _, kind := range []string{"shm", "msg", "sem"} {
				b, err := os.ReadFile("/proc/sysvipc/" + kind)
				if err == nil && bytes.Count(b, []byte("\n")) > 1 {
					return escaped, "sees what others have of System V " + kind
				}
			}
			return refused, "none to be seen"
		}},
		{"own-limits", ownLimits},
		{"clone3", func() (string, string) {
			return all(func() (string, string) { return clone3(unix.CLONE_NEWUSER) },
				func() (string, string) { return clone3(unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS) })
		}},
	}
}

// ownLimits makes a namespace of cgroups below one of users, and lifts what bounds it from there: see liftLimits.
func ownLimits() (string, string) {
	c := exec.Command("/proc/self/exe", "lift-limits")
	one := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
	}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP, UidMappings: one(os.Geteuid()), GidMappings: one(os.Getegid())}
	out, err := c.CombinedOutput()
	if err != nil {
		return refused, err.Error()
	}
	if text, ok := strings.CutPrefix(strings.TrimSpace(string(out)), escaped+" "); ok {
		return escaped, text
	}
	return refused, strings.TrimSpace(string(out))
}

// liftLimits is the program of ownLimits, in its namespaces.
func liftLimits() {
	_ = os.MkdirAll("/tmp/group", 0o700)
	lift := func(kind, data, file, value string) func() (string, string) {
		return func() (string, string) {
			if err := unix.Mount("group", "/tmp/group", kind, 0, data); err != nil {
				return refused, err.Error()
			}
			defer func() { _ = unix.Unmount("/tmp/group", unix.MNT_DETACH) }()
			return no(os.WriteFile(filepath.Join("/tmp/group", file), []byte(value), 0), escaped, "has lifted its own "+file)
		}
	}
	verdict, detail := all(lift("cgroup", "memory", "memory.limit_in_bytes", "-1"), lift("cgroup", "pids", "pids.max", "max"),
		lift("cgroup2", "", "memory.max", "max"), lift("cgroup2", "", "pids.max", "max"))
	fmt.Println(verdict, detail)
}
