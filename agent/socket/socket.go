// Package socket makes the sockets by which functions speak to the agent.
package socket

import (
	"errors"
	"net"
	"os"
)

// Listen makes a socket for any user of a container. It is made at fresh, where no container looks, in the same file system, then moved to path: whoever
// can write beside path, as containers of older versions can, could lay a link in the way of a mode that is set there.
func Listen(fresh, path string) (*net.UnixListener, error) {
	_ = os.Remove(fresh) // of an agent that was killed
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := place(fresh, path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Datagrams is Listen for a socket of datagrams.
func Datagrams(fresh, path string) (*net.UnixConn, error) {
	_ = os.Remove(fresh)
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: fresh, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	if err := place(fresh, path); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func place(fresh, path string) error {
	if err := errors.Join(os.Chmod(fresh, 0o666), os.Rename(fresh, path)); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return nil
}
