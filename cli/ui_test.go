package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

// desktop has an xdg-open that is a shell script.
func desktop(t *testing.T, script string) (tmp string) {
	t.Helper()
	bin, tmp := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "xdg-open"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", tmp)
	t.Setenv("SUDO_UID", "")
	return tmp
}

// An xdg-open that is the browser itself, or leaves its output to one, holds nobody up, and the file with the code is gone soon.
func TestABrowserInTheForegroundHoldsNobodyUp(t *testing.T) {
	before := readPage
	readPage = 300 * time.Millisecond
	t.Cleanup(func() { readPage = before })
	for name, script := range map[string]string{"foreground": "exec sleep 60", "background": "sleep 60 &"} {
		t.Run(name, func(t *testing.T) {
			pid := filepath.Join(t.TempDir(), "pid")
			tmp := desktop(t, map[string]string{"foreground": "echo $$ > " + pid + "; " + script, "background": script + " echo $! > " + pid}[name])
			var errs bytes.Buffer
			a := &app{App: &command.App{Stdout: &bytes.Buffer{}, Stderr: &errs}}
			ended := make(chan error, 1)
			go func() {
				ended <- a.browse(t.Context(), api.SessionLink{URL: "http://127.0.0.1:1/sign-in#code", Address: "http://127.0.0.1:1/"})
			}()
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("it waits for the browser")
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			end(t, pid)
		})
	}
}

func TestAnXdgOpenThatFailsIsTold(t *testing.T) {
	desktop(t, "echo no browser here >&2; exit 3")
	a := &app{App: &command.App{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}}}
	if err := a.browse(t.Context(), api.SessionLink{}); err == nil || !strings.Contains(err.Error(), "exit status 3 no browser here") {
		t.Error(err)
	}
}

// end ends the process whose id is in a file: it lives on, as a browser does.
func end(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the browser has ended: %v", err)
	}
}
