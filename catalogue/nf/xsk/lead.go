package xsk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// File is the socket where a function with the label weir.xdp hands over its AF_XDP sockets.
const File = "/run/weir/xdp.sock"

// Times of Lead.
const (
	redial  = 100 * time.Millisecond
	comes   = 10 * time.Second // for a platform that has just begun
	answers = 5 * time.Second
)

// Lead has the platform lead what comes in at a port's receive queue into an AF_XDP socket that is bound there. That lasts as long as the socket does, whatever becomes of
// the platform.
func Lead(ctx context.Context, path, port string, queue, socket int) error {
	err := lead(ctx, path, port, queue, socket)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lead frames of port %s: %w (the image's label weir.xdp must be \"true\")", port, err)
	}
	if err != nil {
		return fmt.Errorf("lead frames of port %s: %w", port, err)
	}
	return nil
}

func lead(ctx context.Context, path, port string, queue, socket int) error {
	c, err := dial(ctx, path)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answers)); err != nil {
		return err
	}
	if _, _, err := c.WriteMsgUnix(fmt.Appendf(nil, "%s %d\n", port, queue), unix.UnixRights(socket), nil); err != nil {
		return err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	if answer = strings.TrimSpace(answer); answer != "ok" {
		return errors.New(answer)
	}
	return nil
}

// dial, again and again for a while: the platform may be about to start.
func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	for deadline := time.Now().Add(comes); ; {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil || time.Now().After(deadline) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(redial):
		}
	}
}
