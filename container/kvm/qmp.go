package kvm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"time"
)

const (
	qmpIn    = 10 * time.Second
	maxReply = 64 << 10
)

// ask has a machine's QEMU execute one command of its monitor (QMP), and reads the answer into out. The monitor serves one client at a time and stays:
// each question is a connection of its own, so a new process of ours asks as the former one did.
func ask(ctx context.Context, bundle, command string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, qmpIn)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(bundle, qmpSocket))
	if err != nil {
		return fmt.Errorf("QEMU's monitor: %w", err)
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	r := bufio.NewReader(io.LimitReader(c, maxReply))
	for _, name := range []string{"qmp_capabilities", command} {
		if _, err := fmt.Fprintf(c, "{\"execute\":%q}\n", name); err != nil {
			return fmt.Errorf("QEMU's monitor: %s: %w", name, err)
		}
		answer, err := reply(r)
		if err != nil {
			return fmt.Errorf("QEMU's monitor: %s: %w", name, err)
		}
		if name == command {
			return json.Unmarshal(answer, out)
		}
	}
	return nil
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
