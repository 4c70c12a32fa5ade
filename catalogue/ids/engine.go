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

	"weir.dev/weir/catalogue/nf"
)

const (
	program    = "/usr/bin/suricata"
	startsIn   = 2 * time.Minute // rules are compiled in that time
	checksIn   = 2 * time.Minute
	answersIn  = 2 * time.Minute // as long as a reload may take
	maxProblem = 5               // of rules, that are told
)

// engine is a running Suricata.
type engine struct {
	*nf.Running
	dir string
}

// startEngine runs Suricata with what is in dir and waits until it reads packets.
func startEngine(ctx context.Context, log *slog.Logger, dir string) (*engine, error) {
	r, err := nf.Child{
		Name: "suricata", Log: log, Within: startsIn,
		Args:  []string{program, "-c", filepath.Join(dir, yamlFile), "--af-packet", "--init-errors-fatal", "-l", dir},
		Ready: func(line string) bool { return strings.Contains(line, "Engine started") },
		Problem: func(line string) (string, bool) {
			if text, found := problem(line); found {
				return text, true
			}
			return "", strings.HasPrefix(line, "W: ")
		},
	}.Start(ctx)
	if err != nil {
		return nil, err
	}
	return &engine{r, dir}, nil
}

// problem is an error that a line tells.
func problem(line string) (text string, found bool) {
	text, found = strings.CutPrefix(line, "E: ")
	return text, found || strings.Contains(line, "<Error>")
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
	var found []string
	for line := range nf.Lines(out) {
		if text, is := problem(line); is && len(found) < maxProblem {
			found = append(found, text)
		}
	}
	if err := cmd.Wait(); err != nil {
		return nf.Problems(found, err)
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
