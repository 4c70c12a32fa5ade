package kvm

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/image"
	"weir.dev/weir/netns"
)

// owned is what the agent prepares for a function: namespaces with ids of their own, and the root as these see it.
func owned(t *testing.T, s container.Spec) container.Spec {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("/run", "weir-kvm-")
	must(err)
	must(os.Chmod(dir, 0o711))
	s.Netns, s.Userns = filepath.Join(dir, "net"), filepath.Join(dir, "user")
	s.IDs, err = netns.TakeIDs(dir)
	must(err)
	must(netns.CreateOwned(s.Userns, s.Netns, s.IDs, netns.Options{Quiet: true}))
	user, err := os.Open(s.Userns)
	must(err)
	defer user.Close()
	root, err := image.Shifted(s.Rootfs, user)
	must(err)
	defer unix.Close(root)
	s.Rootfs = filepath.Join(dir, "root")
	must(os.Mkdir(s.Rootfs, 0o755))
	must(unix.MoveMount(root, "", unix.AT_FDCWD, s.Rootfs, unix.MOVE_MOUNT_F_EMPTY_PATH))
	t.Cleanup(func() {
		for _, err := range []error{
			unix.Unmount(s.Rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW), netns.Delete(s.Netns), netns.Delete(s.Userns), os.RemoveAll(dir), netns.GiveIDsBack(dir, s.IDs),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// A machine's process is nobody, has no rights, and is in the function's network namespace: what a guest that breaks out of its machine would be.
func TestAMachinesProcessIsNobody(t *testing.T) {
	t.Parallel()
	r, spec := fresh(t)
	plain := spec
	spec = owned(t, spec)
	spec.ID, spec.Args, spec.Capabilities = "a", waiting, []string{"CAP_NET_ADMIN"}
	plain.ID, plain.Args = "b", waiting
	t.Cleanup(func() {
		if err := r.Destroy(context.Background()); err != nil { // before the namespaces go
			t.Error(err)
		}
	})
	ids := map[string]string{}
	for _, s := range []container.Spec{spec, plain} {
		if err := r.Run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		st, err := r.Status(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		proc := filepath.Join("/proc", strconv.Itoa(st.PID))
		text, err := os.ReadFile(filepath.Join(proc, "status"))
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			fields[key] = strings.Join(strings.Fields(value), " ")
		}
		for key, want := range map[string]string{"CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapInh": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"} {
			if fields[key] != want {
				t.Errorf("%s: %s is %s, want %s", s.ID, key, fields[key], want)
			}
		}
		uid, err := strconv.ParseUint(strings.Fields(fields["Uid"])[0], 10, 32)
		if err != nil || uint32(uid) < netns.FirstID || s.IDs.First != 0 && uint32(uid) != s.IDs.First {
			t.Errorf("%s: its user is %s, %v", s.ID, fields["Uid"], err)
		}
		ids[s.ID] = fields["Uid"]
		own, err := os.Readlink(filepath.Join(proc, "ns/net"))
		if err != nil {
			t.Fatal(err)
		}
		if host, err := os.Readlink("/proc/self/ns/net"); err != nil || own == host {
			t.Errorf("%s: it is in the host's network namespace, %v", s.ID, err)
		}
	}
	if ids["a"] == ids["b"] {
		t.Errorf("both have the ids %s", ids["a"])
	}
	out, err := exec.Command("stat", "-L", "-c", "%i", spec.Netns).Output()
	if err != nil {
		t.Fatal(err)
	}
	st, err := r.Status(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(st.PID), "ns/net")); err != nil || got != "net:["+strings.TrimSpace(string(out))+"]" {
		t.Errorf("its network namespace is %s, want that of the function, %s", got, out)
	}
	var owners strings.Builder
	if code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("busybox stat -c '%u %g' / /bin/busybox"), Stdout: &owners}); err != nil || code != 0 || owners.String() != "0 0\n0 0\n" {
		t.Errorf("owners inside: %q, %d, %v", owners.String(), code, err)
	}
}

// Where there is no tcx the programs are classifiers; twice is as good as once.
func TestProgramsWithoutTCX(t *testing.T) {
	b := newSandbox(t)
	err := netns.Do(b.fn, func() error {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R1, 1025), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return(),
		}})
		if err != nil {
			return err
		}
		defer prog.Close()
		for range 2 {
			if err := classify(1024, prog); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	left, right := listenFrames(t, b.left), listenFrames(t, b.right)
	f := frame(200, 0x88, 0xb5)
	left.send(t, f)
	if got := right.next(t); string(got) != string(f) {
		t.Errorf("got %x", got)
	}
}
