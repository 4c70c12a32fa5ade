package command

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
)

func TestExitCodes(t *testing.T) {
	interrupted, cancel := context.WithCancelCause(context.Background())
	cancel(SignalError{syscall.SIGINT})
	terminated, cancel := context.WithCancelCause(context.Background())
	cancel(SignalError{syscall.SIGTERM})
	_, missing := os.Open("/nowhere/at/all")
	program := exec.Command("/bin/sh", "-c", "exit 25").Run()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want int
	}{
		"a program's code":         {err: fmt.Errorf("build: mmdebstrap: %w", program), want: ExitFailure},
		"a program in a code":      {err: WithCode(ExitInvalid, program), want: ExitInvalid},
		"anything":                 {err: errors.New("bang"), want: ExitFailure},
		"usage":                    {err: Usage("no"), want: ExitUsage},
		"invalid file":             {err: &file.Error{}, want: ExitInvalid},
		"refused by the server":    {err: api.Refuse(http.StatusUnprocessableEntity, ""), want: ExitInvalid},
		"too large":                {err: api.Refuse(http.StatusRequestEntityTooLarge, ""), want: ExitInvalid},
		"not found, wrapped":       {err: fmt.Errorf("get: %w", api.Refuse(http.StatusNotFound, "")), want: ExitNotFound},
		"in use":                   {err: api.Refuse(http.StatusConflict, ""), want: ExitConflict},
		"changed by someone else":  {err: api.Refuse(http.StatusPreconditionFailed, ""), want: ExitConflict},
		"not reachable":            {err: fmt.Errorf("%w at x", api.ErrUnreachable), want: ExitUnreachable},
		"token":                    {err: api.Refuse(http.StatusUnauthorized, ""), want: ExitForbidden},
		"root":                     {err: fmt.Errorf("mount: %w", syscall.EPERM), want: ExitForbidden},
		"deadline":                 {err: fmt.Errorf("wait: %w", context.DeadlineExceeded), want: ExitTimeout},
		"no space, server":         {err: api.Refuse(http.StatusInsufficientStorage, ""), want: ExitFull},
		"no space, here":           {err: fmt.Errorf("log: %w", syscall.ENOSPC), want: ExitFull},
		"a folder to read only":    {err: &os.PathError{Op: "open", Path: "x", Err: syscall.EROFS}, want: ExitFull},
		"an unreadable file":       {err: WithCode(ExitInvalid, &os.PathError{Op: "open", Path: "x", Err: syscall.EACCES}), want: ExitInvalid},
		"busy":                     {err: api.Refuse(http.StatusServiceUnavailable, ""), want: ExitFailure},
		"a missing file as such":   {err: missing, want: ExitFailure},
		"a hook's code":            {err: fmt.Errorf("up: %w", WithCode(ExitConflict, errors.New("already running"))), want: ExitConflict},
		"a process's code":         {err: Silent(42), want: 42},
		"one of several":           {err: errors.Join(errors.New("bang"), api.Refuse(http.StatusNotFound, "")), want: ExitNotFound},
		"Ctrl-C, whatever came":    {ctx: interrupted, err: api.ErrUnreachable, want: ExitInterrupted},
		"SIGTERM, whatever came":   {ctx: terminated, err: context.Canceled, want: ExitTerminated},
		"timeout of --timeout":     {err: WithCode(ExitTimeout, errors.New("apply: not done after 1s")), want: ExitTimeout},
		"without an error no code": {err: WithCode(ExitConflict, nil), want: ExitOK},
	} {
		t.Run(name, func(t *testing.T) {
			if c.ctx == nil {
				c.ctx = context.Background()
			}
			got := ExitOK
			if c.err != nil {
				got = ExitCode(c.ctx, c.err)
			}
			if got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestEveryExitCodeIsDocumentedOnce(t *testing.T) {
	seen := map[int]bool{}
	for _, e := range ExitCodes {
		if seen[e.Code] || e.Meaning == "" {
			t.Errorf("code %d is there twice or says nothing", e.Code)
		}
		seen[e.Code] = true
	}
	for _, code := range []int{ExitOK, ExitFailure, ExitUsage, ExitInvalid, ExitNotFound, ExitConflict, ExitUnreachable, ExitForbidden, ExitTimeout,
		ExitChanges, ExitFull, ExitDiffers, ExitHangup, ExitInterrupted, ExitTerminated} {
		if !seen[code] {
			t.Errorf("code %d is not documented", code)
		}
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 10239: "10239", 10240: "10K", 3 << 20: "3072K", 64 << 20: "64M", 4 << 30: "4096M", 1 << 40: "1024G", 1 << 62: "4096P"} {
		if got := Size(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
