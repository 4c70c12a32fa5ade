package launcher

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// run runs a program to its end: what it says, what it prints, how it ends.
func run(t *testing.T, make func(p *Program)) (heard Said, out string, code int, failed error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := New(FirstFile)
	make(p)
	cmd, done, err := p.Command(t.Context(), nil, w)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	var text bytes.Buffer
	cmd.Stdout = &text
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	heard, failed = p.Hear(r, func(Said) bool { return false })
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return heard, text.String(), cmd.ProcessState.ExitCode(), failed
}

// print adds a step that writes a text.
func print(p *Program, s string) Step {
	return p.Call("print", unix.SYS_WRITE, Int(1), p.String(s), Int(len(s)))
}

func TestStepsFollowEachOther(t *testing.T) {
	_, out, code, err := run(t, func(p *Program) {
		print(p, "a")
		s := print(p, "bcd")
		p.Call("print as many bytes as the last step did", unix.SYS_WRITE, Int(1), p.String("xyzzy"), Result(s))
		p.Exit(7)
	})
	if err != nil || out != "abcdxyz" || code != 7 {
		t.Errorf("%v, %q, exit code %d", err, out, code)
	}
}

func TestAFailureSaysWhatAndWhy(t *testing.T) {
	_, out, code, err := run(t, func(p *Program) {
		print(p, "a")
		p.Call("go to nowhere", unix.SYS_CHDIR, p.String("/no/such/place"))
		print(p, "b")
	})
	var failed *Error
	if !errors.As(err, &failed) || failed.What != "go to nowhere" || failed.Errno != unix.ENOENT || out != "a" || code == 0 {
		t.Errorf("%v, %q, exit code %d", err, out, code)
	}
}

func TestJumps(t *testing.T) {
	for name, c := range map[string]struct {
		when   when
		path   string
		spared []unix.Errno
		want   string
	}{
		"zero":              {Zero, "/", nil, "end"},
		"not zero":          {Zero, "/no", []unix.Errno{unix.EPERM, unix.ENOENT}, "middle end"},
		"refused":           {Refused, "/no", []unix.Errno{unix.ENOENT}, "end"},
		"not refused":       {Refused, "/", []unix.Errno{unix.ENOENT}, "middle end"},
		"positive is not 0": {Positive, "/", nil, "middle end"},
		"never":             {never, "/", nil, "middle end"},
	} {
		t.Run(name, func(t *testing.T) {
			_, out, _, err := run(t, func(p *Program) {
				s := p.Jump(p.Spare(p.Call("go", unix.SYS_CHDIR, p.String(c.path)), c.spared...), c.when)
				print(p, "middle ")
				p.Land(s)
				print(p, "end")
			})
			if err != nil || out != c.want {
				t.Errorf("%v, %q, want %q", err, out, c.want)
			}
		})
	}
}

func TestForkSaysTheChildAndEndsAsIt(t *testing.T) {
	for name, c := range map[string]struct {
		child func(p *Program)
		want  int
	}{
		"exit code": {func(p *Program) { p.Exit(9) }, 9},
		"signal": {func(p *Program) {
			s := p.Call("who am I", unix.SYS_GETPID)
			p.Call("kill myself", unix.SYS_KILL, Result(s), Int(int(unix.SIGKILL)))
		}, 128 + 9},
		"another program": {func(p *Program) {
			p.Call("execute", unix.SYS_EXECVE, p.String("/bin/sh"), p.Strings([]string{"sh", "-c", "printf %s \"$A$1\"; exit 3", "sh", "z"}), p.Strings([]string{"A=b"}))
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			heard, out, code, err := run(t, func(p *Program) {
				fork := p.Fork("fork", 0)
				c.child(p)
				p.Land(fork.Step)
				p.SayPID(fork)
				p.SayReady()
				p.ExitAs(fork.Step)
			})
			if err != nil || heard.PID <= 0 || !heard.Ready || code != c.want {
				t.Errorf("%+v, %v, exit code %d, want %d", heard, err, code, c.want)
			}
			if name == "another program" && out != "bz" {
				t.Errorf("%q", out)
			}
		})
	}
}

// A filter that refuses getppid with EDOM, and lets all else pass.
func TestFilter(t *testing.T) {
	code := []byte{0x20, 0, 0, 0, 0, 0, 0, 0, 0x15, 0, 0, 1, byte(unix.SYS_GETPPID), 0, 0, 0, 6, 0, 0, 0, byte(unix.EDOM), 0, 5, 0, 6, 0, 0, 0, 0, 0, 0xff, 0x7f}
	_, _, _, err := run(t, func(p *Program) {
		p.Call("no privileges", unix.SYS_PRCTL, Int(unix.PR_SET_NO_NEW_PRIVS), Int(1), Int(0), Int(0), Int(0))
		p.Call("filter", unix.SYS_SECCOMP, Int(unix.SECCOMP_SET_MODE_FILTER), Int(0), p.Filter(4, code))
		p.Call("getppid", unix.SYS_GETPPID)
	})
	var failed *Error
	if !errors.As(err, &failed) || failed.What != "getppid" || failed.Errno != unix.EDOM {
		t.Errorf("got %v", err)
	}
}

// Whoever runs the launcher cannot change it for the next one.
func TestTheLauncherIsSealed(t *testing.T) {
	f, err := New(FirstFile).exe()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || fi.Mode().Perm() != 0o500 {
		t.Errorf("mode %v, %v: want none for others", fi.Mode(), err)
	}
	if _, err := f.WriteAt([]byte{0}, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("written: %v", err)
	}
	if err := f.Truncate(0); !errors.Is(err, unix.EPERM) {
		t.Errorf("cut: %v", err)
	}
	w, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), os.O_RDWR, 0)
	if err == nil {
		_, err = w.Write([]byte{0})
		w.Close()
	}
	if err == nil {
		t.Error("written by another descriptor")
	}
}

func TestWhatIsTooMuchIsRefused(t *testing.T) {
	for name, add := range map[string]func(p *Program){
		"steps": func(p *Program) {
			for range stepsMax + 1 {
				p.Exit(0)
			}
		},
		"data": func(p *Program) { p.Bytes(make([]byte, listMax+1)) },
	} {
		p := New(FirstFile)
		add(p)
		if _, _, err := p.Command(t.Context(), nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A program that the launcher became executes it again, as another user.
func TestAgain(t *testing.T) {
	inner := New(FirstFile)
	inner.Anyone = true
	print(inner, "inner")
	list, err := inner.File()
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	p := New(2)
	p.Anyone = true
	print(p, "outer ")
	p.Call("become another", unix.SYS_SETRESUID, Int(65534), Int(65534), Int(65534))
	args := Again(FirstFile)
	p.Call("execute", unix.SYS_EXECVE, p.String(args[0]), p.Strings(args), p.Strings(nil))
	cmd, done, err := p.Command(t.Context(), nil, list)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if out, err := cmd.Output(); err != nil || string(out) != "outer inner" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestSaved(t *testing.T) {
	dir := t.TempDir()
	p := New(2)
	print(p, "x")
	if err := p.Save(dir); err != nil {
		t.Fatal(err)
	}
	args := Saved(dir)
	if out, err := exec.Command(args[0], args[1:]...).Output(); err != nil || string(out) != "x" {
		t.Errorf("%q, %v", out, err)
	}
	if err := exec.Command(args[0], dir+"/none").Run(); err == nil {
		t.Error("it carries out a list that is not there")
	}
}

// Strings with more in them: their addresses, and a number that a step writes into one.
func TestAStepWritesIntoAString(t *testing.T) {
	heard, out, _, err := run(t, func(p *Program) {
		p.Say(FirstFile)
		own := p.String("N=\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
		p.Call("number the process", unix.SYS_READLINKAT, Here(), p.String("/proc/self"), own.Plus(2), Int(10))
		p.Call("execute", unix.SYS_EXECVE, p.String("/bin/sh"), p.Strings([]string{"sh", "-c", "[ $N = $$ ] && echo $A"}), p.Strings([]string{"A=b"}, own))
	})
	if err != nil || out != "b\n" {
		t.Errorf("%+v, %q, %v", heard, out, err)
	}
}

func TestHearDistrustsWhatItHears(t *testing.T) {
	for name, c := range map[string][]byte{
		"a word that means nothing": said(77, 1),
		"a step that is not there":  said(sayFails, 99<<32|2),
	} {
		if _, err := New(FirstFile).Hear(bytes.NewReader(c), func(Said) bool { return false }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := New(FirstFile).Hear(bytes.NewReader([]byte{1, 2, 3}), func(Said) bool { return false }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a word: %v", err)
	}
}
