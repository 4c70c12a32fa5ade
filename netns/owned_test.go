package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// reacher is set in a process of this test's program that tries to make a link in the namespace at the other end of a veth.
const reacher = "WEIR_TEST_REACHER"

// reach asks the kernel for a bridge in the network namespace that it gave the number 0 here: that of the veth's other end.
func reach() error {
	s, err := At("")
	if err != nil {
		return err
	}
	defer s.Close()
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	return s.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(0)), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("out0")), info)
}

// owned makes namespaces that end with the test.
func owned(t *testing.T) (dir string, ids IDs) {
	t.Helper()
	dir = t.TempDir()
	ids, err := TakeIDs(dir)
	if err != nil {
		t.Fatal(err)
	}
	user, net := filepath.Join(dir, "user"), filepath.Join(dir, "net")
	t.Cleanup(func() {
		if err := errors.Join(Delete(user), Delete(net), GiveIDsBack(dir, ids)); err != nil {
			t.Error(err)
		}
	})
	if err := CreateOwned(user, net, ids, Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	return dir, ids
}

// A process with all capabilities over a network namespace reaches that at the other end of a veth by its number, unless a user namespace of its own
// owns its network namespace.
func TestRootOfAnOwnedNamespaceReachesNoOther(t *testing.T) {
	dir, ids := owned(t)
	plain := filepath.Join(t.TempDir(), "plain")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(Create(plain, Options{}))
	defer func() { must(Delete(plain)) }()
	for name, c := range map[string]struct {
		enter   []string
		net     string
		reaches bool
	}{
		"owned by the host": {[]string{"--net=" + plain}, plain, true},
		"owned":             {[]string{"--user=" + dir + "/user", "--net=" + dir + "/net", "-S", "0", "-G", "0"}, dir + "/net", false},
	} {
		t.Run(name, func(t *testing.T) {
			host := filepath.Join(t.TempDir(), "host")
			must(Create(host, Options{}))
			defer func() { must(Delete(host)) }()
			_, err := Veth(host, c.net, VethOptions{HostName: "h0", PeerName: "in", Alias: "weir:t:x", Quiet: true})
			must(err)
			exe, err := os.Open("/proc/self/exe") // nobody here is let through to it
			must(err)
			defer exe.Close()
			cmd := exec.Command("nsenter", append(c.enter, "/proc/self/fd/3")...)
			cmd.ExtraFiles = []*os.File{exe}
			cmd.Env = append(os.Environ(), reacher+"=1")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			s, serr := At(host)
			must(serr)
			defer s.Close()
			_, there := s.Link("out0")
			if (there == nil) != c.reaches || (err == nil) != c.reaches {
				t.Errorf("a link in the other namespace: %v; it said %q, %v", there == nil, out, err)
			}
			if !c.reaches && !strings.Contains(string(out), unix.EPERM.Error()) {
				t.Errorf("it was stopped by something else: %q", out)
			}
		})
	}
	if ids.First < FirstID || ids.Count != 65536 {
		t.Errorf("ids %+v", ids)
	}
}

// What the kernel counts for the owner of a user namespace is not counted for the host's root.
func TestAUserNamespaceBelongsToNobody(t *testing.T) {
	dir, ids := owned(t)
	f, err := os.Open(filepath.Join(dir, "user"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var owner uint32
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.NS_GET_OWNER_UID, uintptr(unsafe.Pointer(&owner))); errno != 0 {
		t.Fatal(errno)
	}
	if want := ids.First + ids.Count - 1; owner != want {
		t.Errorf("it belongs to %d, want %d", owner, want)
	}
}

// No two have the same ids; those of a directory that is gone are free again.
func TestIDsAreTakenOnce(t *testing.T) {
	seen := map[uint32]string{}
	for range 50 {
		dir := t.TempDir()
		ids, err := TakeIDs(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := GiveIDsBack(dir, ids); err != nil {
				t.Error(err)
			}
		})
		if other, taken := seen[ids.First]; taken {
			t.Fatalf("%s and %s have the same ids", other, dir)
		}
		seen[ids.First] = dir
	}
	// The owner's directory is gone without a word: who begins to look there gets that range.
	gone := filepath.Join(t.TempDir(), "gone")
	take := func() IDs {
		t.Helper()
		if err := os.Mkdir(gone, 0o700); err != nil {
			t.Fatal(err)
		}
		ids, err := TakeIDs(gone)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	first := take()
	link := idsLink((first.First - FirstID) / idsEach)
	if err := errors.Join(os.Remove(gone), os.Remove(link), os.Symlink(gone+"-other", link)); err != nil {
		t.Fatal(err)
	}
	again := take()
	if again != first {
		t.Errorf("got %+v, want the range %+v whose owner is gone", again, first)
	}
	if err := GiveIDsBack(gone, again); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Readlink(link); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("given back, and still taken: %v", err)
	}
}

// limited is set in a process of this test's program, in a user namespace of its own, to what that may have of user namespaces.
const limited = "WEIR_TEST_LIMITED"

// makeLimited tells what CreateOwned says under a limit.
func makeLimited(limit string) string {
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte(limit), 0o644); err != nil {
		return err.Error()
	}
	dir, err := os.MkdirTemp("", "limited-")
	if err != nil {
		return err.Error()
	}
	defer os.RemoveAll(dir)
	// All that its ids allow: with a limit of one, the first takes it.
	ids := IDs{First: 0, Count: 1000}
	first := CreateOwned(filepath.Join(dir, "user"), filepath.Join(dir, "net"), ids, Options{})
	second := CreateOwned(filepath.Join(dir, "user2"), filepath.Join(dir, "net2"), ids, Options{})
	return fmt.Sprintf("%v %v: %v\n%v %v: %v", first == nil, errors.Is(first, ErrNoUserns), first, second == nil, errors.Is(second, ErrNoUserns), second)
}

// A machine without user namespaces says so, with the remedy. One whose user namespaces are all in use is no such machine: its functions wait for one.
func TestWithoutUserNamespaces(t *testing.T) {
	for limit, want := range map[string][]string{
		"0": {"false true: create namespaces: no user namespaces: sysctl user.max_user_namespaces is 0: set it to"},
		"1": {"true false: <nil>\n", "false false: create namespaces: all user namespaces (or network namespaces) of this machine are in use: raise sysctl user.max_user_namespaces (1)"},
	} {
		t.Run(limit, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), limited+"="+limit)
			ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, w := range want {
				if !strings.Contains(string(out), w) {
					t.Errorf("%s\nwant %q in it", out, w)
				}
			}
		})
	}
}

func TestReasonOfUnshare(t *testing.T) {
	for text, want := range map[string]error{
		"unshare: unshare failed: Operation not permitted":        unix.EPERM,
		"unshare: unshare failed: No space left on device":        unix.ENOSPC,
		"unshare: unshare(0x50000000): Operation not permitted":   unix.EPERM,
		"unshare: unshare(0x50000000): Invalid argument":          unix.EINVAL,
		"unshare: failed to execute cat: Operation not permitted": nil,
		"": nil,
	} {
		if got := reason(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
