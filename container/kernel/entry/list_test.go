package entry

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// carry runs the program with a list, and returns what its last program printed and what it replied.
func carry(t *testing.T, l *List, command string) (string, error) {
	t.Helper()
	if err := Supported(); err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	f := &Files{all: []*os.File{nil, write, nil}}
	defer f.Close()
	list := &List{}
	list.Reply(fdExecReply, false)
	list.steps = append(list.steps, l.steps...)
	list.blob = l.blob
	if f.all[0], err = list.file(); err != nil {
		return "", err
	}
	if f.all[2], err = memory(programName, program); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/fd/5", "3")
	cmd.ExtraFiles, cmd.Stdout, cmd.Dir = f.all, &out, t.TempDir()
	_ = cmd.Run() // the reply says more
	f.Close()
	err = readReply(read, command, list)
	return out.String(), err
}

func TestStepsAreCarriedOut(t *testing.T) {
	dir := t.TempDir()
	l := &List{}
	l.Path(filepath.Join(dir, "a/b/c"))
	l.Touch(filepath.Join(dir, "a/b/c/file"))
	l.Change(filepath.Join(dir, "a/b"))
	l.Mask(0)
	l.Limit("RLIMIT_CORE", unix.RLIMIT_CORE, 0, 0)
	l.Words([]string{"sh", "-c", "ls c; pwd; echo $ONE,$TWO; ulimit -c; [ $NUMBER = $$ ] && echo numbered"}, []string{"PATH=/nowhere:/usr/bin:/bin", "ONE=1", "TWO="}, "NUMBER=")
	l.Find()
	l.Seal()
	l.Execute("")
	out, err := carry(t, l, "sh")
	if want := "file\n" + dir + "/a/b\n1,\n0\nnumbered\n"; out != want || !errors.Is(err, io.EOF) {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

func TestFailingStepIsNamed(t *testing.T) {
	command := func(args []string, env ...string) *List {
		l := &List{}
		l.Words(args, env, "")
		l.Find()
		l.Seal()
		l.Execute("")
		return l
	}
	for name, c := range map[string]struct {
		command string
		list    func() *List
		want    string
	}{
		"a directory":          {"", func() *List { l := &List{}; l.Change("/no/such"); return l }, `enter working directory "/no/such" of the image: no such file`},
		"a step behind others": {"", func() *List { l := &List{}; l.Mask(0); l.Join("/no/group"); return l }, "join cgroup /no/group: no such file"},
		"a command":            {"cmd", func() *List { return command([]string{"cmd"}, "PATH=/bin") }, `command "cmd" not found in the image`},
		"without PATH":         {"sh", func() *List { return command([]string{"sh"}) }, `command "sh" not found in the image`},
		"what is no program":   {"/etc", func() *List { return command([]string{"/etc"}, "PATH=/bin") }, `command "/etc" is not executable`},
		"what is no file":      {"/etc/passwd", func() *List { return command([]string{"/etc/passwd"}, "PATH=/bin") }, `command "/etc/passwd" is not executable`},
		"arguments without end": {"", func() *List { return command([]string{"sh", strings.Repeat("x", mostList)}, "PATH=/bin") },
			"arguments and environment take"},
		"too many arguments": {"", func() *List { return command(make([]string, mostArgs+1), "PATH=/bin") }, "argument list too long"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := carry(t, c.list(), c.command)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}
