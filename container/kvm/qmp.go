package kvm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	qmpIn    = 10 * time.Second
	maxReply = 64 << 10
)

// question is a command of QEMU's monitor.
type question struct {
	Execute   string         `json:"execute"`
	Arguments map[string]any `json:"arguments,omitempty"`
	file      *os.File       // handed over with it
}

// ignoresShared leaves the memory out of a machine's state: it is in a file.
var ignoresShared = question{Execute: "migrate-set-capabilities", Arguments: map[string]any{"capabilities": []any{map[string]any{"capability": "x-ignore-shared", "state": true}}}}

// ask has a machine's QEMU execute commands of its monitor (QMP), one after the other, and reads the answer to the last one into out; nil: it is not wanted. The monitor
// serves one client at a time and stays: each call is a connection of its own, so a new process of ours asks as the former one did.
func ask(ctx context.Context, bundle string, out any, commands ...question) error {
	ctx, cancel := context.WithTimeout(ctx, qmpIn)
	defer cancel()
	return converse(ctx, bundle, out, commands...)
}

// converse is ask of a QEMU that may take as long as ctx.
func converse(ctx context.Context, bundle string, out any, commands ...question) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(bundle, qmpSocket))
	if err != nil {
		return fmt.Errorf("QEMU's monitor: %w", err)
	}
	defer conn.Close()
	c := conn.(*net.UnixConn)
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	r := bufio.NewReader(io.LimitReader(c, maxReply))
	var answer json.RawMessage
	for _, q := range append([]question{{Execute: "qmp_capabilities"}}, commands...) {
		text, err := json.Marshal(q)
		if err == nil {
			var rights []byte
			if q.file != nil {
				rights = unix.UnixRights(int(q.file.Fd()))
			}
			_, _, err = c.WriteMsgUnix(append(text, '\n'), rights, nil)
		}
		if err == nil {
			answer, err = reply(r)
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("QEMU's monitor: %s: %w", q.Execute, err)
		}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

// reply reads up to a command's answer; greetings and events come in between.
func reply(r *bufio.Reader) (json.RawMessage, error) {
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		var m struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, err
		}
		if m.Error != nil {
			return nil, errors.New(m.Error.Desc)
		}
		if m.Return != nil {
			return m.Return, nil
		}
	}
}
