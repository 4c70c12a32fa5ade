package docs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const top = "../.." // of the repository

// pages lists README.md and docs/*.md.
func pages(t *testing.T) []Page {
	t.Helper()
	found, err := filepath.Glob(top + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []Page
	for _, path := range append(found, top+"/README.md") {
		p, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// The blocks of these pages are executed, the longest page first. docs/cli.md is a reference whose examples stand for themselves.
var executed = []string{"run-a-study.md", "deploy-a-chain.md", "demonstration.md", "ui.md", "write-an-nf.md", "operate.md", "backup.md", "several-hosts.md", "runtimes.md", "api.md", "fabric.md", "images.md", "fair-peers.md",
	"../catalogue/ids/README.md", "../catalogue/cache/README.md"}

func TestCommandsOfThePagesDoWhatThePagesSay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("root is needed (network namespaces, BPF, containers): sudo make test")
	}
	for _, name := range executed {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait more than they work
			p, err := Read(filepath.Join(top, "docs", name))
			if err != nil {
				t.Fatal(err)
			}
			out := run(t, p.Script())
			if err := p.Check(out); err != nil {
				t.Error(err)
			}
		})
	}
}

// session prepares what a reader has: a machine without Weir's things on it, and weir on the PATH. It is a network namespace and a
// mount namespace of its own, so that names of network namespaces are free whatever else runs here. The instance has a name of
// its own, since state directory and cgroups are the machine's; the default one's paths in the page become its paths.
const session = `
mount -t tmpfs none /run
mkdir /run/netns
ip link set lo up
end() {
	code=$?
	trap - EXIT
	[ $code = 0 ] || { echo "exit code $code"; weir status; tail -n 20 "/var/lib/weir/$WEIR_NAME/weir.log"; } || true
	for t in /run/weir-testbed/*/; do [ ! -d "$t" ] || weir testbed down "$(basename "$t")" || code=72; done
	for n in $(ip netns list | cut -d' ' -f1); do ip netns pids "$n" | xargs -r kill -9; done
	weir down || code=70
	[ ! -e "/var/lib/weir/$WEIR_NAME" ] || { echo "left: $(ls -A "/var/lib/weir/$WEIR_NAME")"; code=71; }
	[ ! -e "/run/weir/$WEIR_NAME" ] || { echo "left: $(ls -A "/run/weir/$WEIR_NAME")"; code=71; }
	exit $code
}
trap end EXIT
trap 'exit 143' TERM
`

// binary is the program under test.
func binary(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("WEIR_BIN")
	if bin == "" {
		bin = filepath.Join(top, "bin", "weir")
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: build it with `make build`", err)
	}
	return bin
}

// run executes a script from the top of the repository and returns what it printed. Nothing of it is left at the end.
func run(t *testing.T, script string) string {
	t.Helper()
	bin := binary(t)
	images := os.Getenv("WEIR_IMAGES")
	if images == "" {
		images = filepath.Join(filepath.Dir(bin), "images")
	}
	var id [3]byte
	_, _ = rand.Read(id[:]) // never fails
	name := "docs" + hex.EncodeToString(id[:])

	own := strings.NewReplacer("/run/weir/0/", "/run/weir/"+name+"/", "/var/lib/weir/0/", "/var/lib/weir/"+name+"/")

	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	out, err := os.Create(filepath.Join(t.TempDir(), "output")) // no pipe: the shell takes everything down even if we are killed
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--propagation", "slave", "bash", "-c", session+own.Replace(script))
	c.Dir = top
	c.Stdout, c.Stderr = out, out
	c.Env = environment(map[string]string{
		"PATH": filepath.Dir(bin) + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "TMPDIR": t.TempDir(),
		"WEIR_NAME": name, "WEIR_IMAGES": images, "WEIR_YES": "true", "NO_COLOR": "1", // weir down asks who reads a page
		"WEIR_QUIET_WAIT": "0s", "WEIR_BLOCKS": "2", // other tests run beside, and what is measured is not asked: each block but the first two is the same once more
	})
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) } // the shell takes everything down
	c.WaitDelay = 30 * time.Second
	err = c.Run()
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	leftovers(t, name)
	text, rerr := os.ReadFile(out.Name())
	if rerr != nil {
		t.Error(rerr)
	}
	if err != nil {
		t.Errorf("%v; the end of what it printed:\n%s", err, tail(string(text), 40))
	}
	return string(text)
}

// environment is ours without any WEIR_ variable, and with these.
func environment(set map[string]string) []string {
	var out []string
	for _, e := range os.Environ() {
		key, _, _ := strings.Cut(e, "=")
		if _, replaced := set[key]; !replaced && !strings.HasPrefix(key, "WEIR_") {
			out = append(out, e)
		}
	}
	for k, v := range set {
		out = append(out, k+"="+v)
	}
	return out
}

// leftovers ends and reports processes that the session left behind, by the instance's name in their environment, and reports cgroups.
func leftovers(t *testing.T, name string) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Error(err)
	}
	for _, path := range found {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(env, []byte("WEIR_NAME="+name+"\x00")) {
			continue // ended meanwhile, or somebody else's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		t.Errorf("process %d was left behind: %s", pid, bytes.ReplaceAll(command, []byte{0}, []byte(" ")))
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/weir/" + name, "/sys/fs/cgroup/*/weir/" + name} {
		left, err := filepath.Glob(pattern)
		if err != nil || len(left) > 0 {
			t.Errorf("cgroups were left behind: %v %v", left, err)
		}
	}
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

var update = flag.Bool("update", false, "write the files that pages show into the pages")

// A page that shows a file of the repository shows what is in it: go test ./e2e/docs -run Files -update brings it up to date.
func TestFilesThatPagesShowAreWhatTheyAre(t *testing.T) {
	for _, p := range pages(t) {
		for _, b := range p.Blocks {
			if b.File == "" {
				continue
			}
			want, err := os.ReadFile(filepath.Join(top, b.File))
			if err != nil {
				t.Errorf("%s:%d: %v", p.Path, b.Line, err)
				continue
			}
			if b.Text == string(want) {
				continue
			}
			if !*update {
				t.Errorf("%s:%d: differs from %s: bring it up to date with -update", p.Path, b.Line, b.File)
			} else if err := replace(p.Path, b, string(want)); err != nil {
				t.Error(err)
			}
		}
	}
}

// replace gives a block of a page another text.
func replace(path string, b Block, text string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head := "<!-- file: " + b.File + " -->\n```" + b.Language + "\n"
	return os.WriteFile(path, []byte(strings.Replace(string(raw), head+b.Text, head+text, 1)), 0o644)
}

// What README.md shows as a file to apply is one.
func TestFilesToApplyAreAccepted(t *testing.T) {
	bin := binary(t)
	for _, p := range pages(t) {
		for _, b := range p.Blocks {
			if b.Language != "yaml" || !strings.HasPrefix(b.Text, "endpoints:") {
				continue
			}
			c := exec.Command(bin, "check", "-f", "-")
			c.Stdin = strings.NewReader(b.Text)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%s:%d: %v\n%s", p.Path, b.Line, err, out)
			}
		}
	}
}

func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	for _, p := range pages(t) {
		for _, link := range p.Links {
			target, _, _ := strings.Cut(link, "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(p.Path), target)); errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: nothing is at %s", p.Path, link)
			}
		}
	}
}

func TestPromisesAreKeptInTheirOrder(t *testing.T) {
	b := Block{Line: 1, Language: "sh", Text: "x  # prints: one\ny\n# prints: b ... d\n"}
	for name, x := range map[string]struct {
		output string
		kept   bool
	}{
		"as promised":        {"one\na b c d\n", true},
		"more around them":   {"zero\n>one<\nb, d.\n", true},
		"the other way":      {"b c d\none\n", false},
		"one is missing":     {"one\n", false},
		"on different lines": {"one\nb\nd\n", false},
	} {
		if err := b.Check(x.output); (err == nil) != x.kept {
			t.Errorf("%s: %v", name, err)
		}
	}
}
