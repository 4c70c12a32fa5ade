package netns

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
