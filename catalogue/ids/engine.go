package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	program    = "/usr/bin/suricata"
	startsIn   = 2 * time.Minute // rules are compiled in that time
	checksIn   = 2 * time.Minute
	answersIn  = 2 * time.Minute // as long as a reload may take
	endsIn     = 1500 * time.Millisecond
	maxLine    = 4 << 10
	maxProblem = 5 // of rules, that are told
)

// engine is a running Suricata.
type engine struct {
	cmd   *exec.Cmd
	dir   string
	ended chan struct{} // closed when it has ended; then err is set
	err   error
}

// startEngine runs Suricata with what is in dir and waits until it reads packets. It dies with this process, if the calling thread is its main one.
func startEngine(ctx context.Context, log *slog.Logger, dir string) (*engine, error) {
	e := &engine{dir: dir, ended: make(chan struct{}), cmd: exec.Command(program, "-c", filepath.Join(dir, yamlFile), "--af-packet", "--init-errors-fatal", "-l", dir)}
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	e.cmd.Stderr = e.cmd.Stdout
	if err := e.cmd.Start(); err != nil {
		return nil, fmt.Errorf("suricata: %w", err)
	}
	started, problems := make(chan struct{}), &problems{}
	go func() {
		first := true
		for line := range lines(said) {
			if first && strings.Contains(line, "Engine started") {
				first = false
				close(started)
			}
			if problems.add(line) || strings.HasPrefix(line, "W: ") {
				log.Warn("suricata", "says", line)
			} else {
				log.Info("suricata", "says", line)
			}
		}
		e.err = e.cmd.Wait()
		close(e.ended)
	}()
	late := time.NewTimer(startsIn)
	defer late.Stop()
	select {
	case <-started:
		return e, nil
	case <-e.ended:
		return nil, fmt.Errorf("suricata does not start: %s", problems.or(e.err))
	case <-late.C:
		err = fmt.Errorf("suricata does not start within %s", startsIn)
	case <-ctx.Done():
		err = ctx.Err()
	}
	e.stop()
	return nil, err
}

// stop ends it.
func (e *engine) stop() {
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-e.ended:
	case <-time.After(endsIn):
		_ = e.cmd.Process.Kill()
		<-e.ended
	}
}

// lines of a reader; what is longer than maxLine is cut.
func lines(r io.Reader) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		b := bufio.NewReaderSize(r, maxLine)
		for cut := false; ; {
			line, err := b.ReadSlice('\n')
			if len(line) > 0 && !cut && !yield(strings.TrimRight(string(line), "\n")) {
				return
			}
			cut = errors.Is(err, bufio.ErrBufferFull)
			if err != nil && !cut {
				return
			}
		}
	}
}

// problems are the first errors that Suricata tells.
type problems struct{ text []string }

// add a line, if it tells an error.
func (p *problems) add(line string) bool {
	found := strings.HasPrefix(line, "E: ") || strings.Contains(line, "<Error>")
	if found && len(p.text) < maxProblem {
		p.text = append(p.text, strings.TrimPrefix(line, "E: "))
	}
	return found
}

func (p *problems) or(err error) string {
	if len(p.text) == 0 {
		return fmt.Sprint(err)
	}
	return strings.Join(p.text, "; ")
}

// check asks a Suricata of its own whether what is in dir is good.
func check(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, checksIn)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-T", "-c", filepath.Join(dir, yamlFile), "--init-errors-fatal", "-l", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("suricata: %w", err)
	}
	found := &problems{}
	for line := range lines(out) {
		found.add(line)
	}
	if err := cmd.Wait(); err != nil {
		return errors.New(found.or(err))
	}
	return nil
}

// reload has Suricata read its rules again, without losing a packet.
func (e *engine) reload() error {
	c, err := net.DialTimeout("unix", filepath.Join(e.dir, controlSocket), time.Second)
	if err != nil {
		return fmt.Errorf("suricata's control socket: %w", err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answersIn)); err != nil {
		return err
	}
	answers := json.NewDecoder(io.LimitReader(c, 1<<20))
	for _, message := range []string{`{"version": "0.2"}`, `{"command": "reload-rules"}`} {
		if _, err := io.WriteString(c, message+"\n"); err != nil {
			return fmt.Errorf("suricata's control socket: %w", err)
		}
		var answer struct {
			Return  string `json:"return"`
			Message any    `json:"message"`
		}
		if err := answers.Decode(&answer); err != nil {
			return fmt.Errorf("suricata's control socket: %w", err)
		}
		if answer.Return != "OK" {
			return fmt.Errorf("suricata refuses %s: %v", message, answer.Message)
		}
	}
	return nil
}

// listenEve takes the lines that Suricata writes, until the listener is closed. Suricata does not wait for us: what we do not read in time it drops.
func listenEve(dir string, take func([]byte)) (net.Listener, error) {
	path := filepath.Join(dir, eveSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket of alerts: %w", err)
	}
	go func() {
		for { // one connection at a time: there is one Suricata
			c, err := l.Accept()
			if err != nil {
				return
			}
			readEve(c, take)
			c.Close()
		}
	}()
	return l, nil
}

const maxEve = 256 << 10 // bytes of a line

func readEve(r io.Reader, take func([]byte)) {
	b := bufio.NewReaderSize(r, maxEve)
	for cut := false; ; {
		line, err := b.ReadSlice('\n')
		if len(line) > 0 && !cut && err == nil {
			take(line)
		}
		cut = errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !cut {
			return
		}
	}
}
