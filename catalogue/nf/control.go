package nf

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// The commands of a function's contract (labels weir.reload, weir.export, weir.import). The platform runs the function's program once more, with one of these words; that
// process asks the one that serves, at a socket which has its name in the function's network namespace, where nobody else is.
const (
	commandReload = "reload" // the input is a configuration
	commandExport = "export" // prints the state
	commandImport = "import" // the input is what another instance has exported
)

var commands = []string{commandReload, commandExport, commandImport}

const (
	controlSocket = "@weir-control"
	maxControl    = 16 << 20         // bytes of a configuration or a state
	controlReads  = 10 * time.Second // for a request to come whole, and for an answer to be taken
	controlStarts = 4 * time.Second  // for a process that has just begun to listen
	answerOK      = "ok"
)

// request of a command, and where its answer goes.
type request struct {
	command string
	body    []byte
	answer  chan reply
}

type reply struct {
	body []byte
	err  error
}

// carryOut a request.
func (d *duty) carryOut(ctx context.Context, r request) reply {
	switch {
	case r.command == commandReload && d.Load != nil:
		if err := d.Load(ctx, r.body); err != nil {
			d.start.Log.Error("configuration refused, the former one stays in force", "error", err)
			return reply{err: err}
		}
		d.given = r.body
		return reply{}
	case r.command == commandExport && d.Export != nil:
		body, err := d.Export()
		return reply{body, err}
	case r.command == commandImport && d.Import != nil:
		return reply{err: d.Import(r.body)}
	}
	return reply{err: fmt.Errorf("this function has no command %q", r.command)}
}

// listen for requests until ctx ends or stop is called. Without the socket the function works, and its commands do not.
func listen(ctx context.Context, log *slog.Logger, asked chan<- request) (stop func()) {
	l, err := net.Listen("unix", controlSocket)
	if err != nil {
		log.Warn("socket for commands", "error", err)
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	undo := context.AfterFunc(ctx, func() { l.Close() })
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			c, err := l.Accept()
			if err != nil {
				select { // no descriptor is left: wait
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			hear(ctx, c, asked)
			c.Close()
		}
	})
	return func() {
		undo()
		cancel()
		l.Close()
		done.Wait()
	}
}

// hear one request and answer it.
func hear(ctx context.Context, c net.Conn, asked chan<- request) {
	if c.SetDeadline(time.Now().Add(controlReads)) != nil {
		return
	}
	in := bufio.NewReader(io.LimitReader(c, maxControl+64))
	word, err := in.ReadString('\n')
	if err != nil {
		return
	}
	body, err := io.ReadAll(in)
	if err != nil {
		return
	}
	r := request{strings.TrimSpace(word), body, make(chan reply, 1)}
	answer := reply{err: fmt.Errorf("more than %d MiB", maxControl>>20)}
	if len(body) <= maxControl {
		select {
		case asked <- r:
		case <-ctx.Done():
			return
		}
		select {
		case answer = <-r.answer:
		case <-ctx.Done():
			return
		}
	}
	if c.SetDeadline(time.Now().Add(controlReads)) != nil {
		return
	}
	head := answerOK
	if answer.err != nil {
		head = strings.ReplaceAll(answer.err.Error(), "\n", "; ")
	}
	_, _ = fmt.Fprintln(c, head) // who asked is gone, if these fail
	_, _ = c.Write(answer.body)
}

// Command runs the command that the program was called with, if it was, and ends the process: exit code 0, done; 1, refused, for the reason on standard error; 2, the
// function could not be asked.
func Command() {
	if len(os.Args) != 2 || !slices.Contains(commands, os.Args[1]) {
		return
	}
	refused, err := ask(os.Args[1], os.Stdin, os.Stdout)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	case refused != "":
		fmt.Fprintln(os.Stderr, refused)
		os.Exit(1)
	}
	os.Exit(0)
}

// ask the process that serves.
func ask(command string, in io.Reader, out io.Writer) (refused string, err error) {
	var c net.Conn
	for end := time.Now().Add(controlStarts); ; time.Sleep(20 * time.Millisecond) {
		if c, err = net.Dial("unix", controlSocket); err == nil {
			break
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("the function does not listen for commands: %w", err)
		}
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, command); err != nil {
		return "", err
	}
	if command != commandExport {
		if _, err := io.Copy(c, io.LimitReader(in, maxControl+1)); err != nil {
			return "", err
		}
	}
	if err := c.(*net.UnixConn).CloseWrite(); err != nil {
		return "", err
	}
	from := bufio.NewReader(c)
	head, err := from.ReadString('\n')
	switch {
	case errors.Is(err, io.EOF):
		return "", errors.New("the function has ended, or closed the connection without an answer")
	case err != nil:
		return "", err
	}
	if head = strings.TrimSpace(head); head != answerOK {
		return head, nil
	}
	_, err = io.Copy(out, from)
	return "", err
}
