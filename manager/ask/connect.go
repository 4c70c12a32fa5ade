package ask

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/remote"
	"weir.dev/weir/manager/web"
)

// openTimeout bounds the first exchange over a host's connection.
const openTimeout = 5 * time.Second

// connect takes over the connection that a host's agent opens, and asks it over that until it ends.
func (a *Asker) connect(w http.ResponseWriter, r *http.Request) error {
	host := r.PathValue("name")
	if !strings.EqualFold(r.Header.Get("Upgrade"), api.NodeProtocol) {
		w.Header().Set("Upgrade", api.NodeProtocol)
		return api.Refuse(http.StatusUpgradeRequired, "connect needs the headers `Connection: Upgrade` and `Upgrade: "+api.NodeProtocol+"`")
	}
	if err := object.CheckName(api.KindHost, host); err != nil {
		return err
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{})
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", api.NodeProtocol); err != nil {
		return nil // the agent is gone
	}
	ctx, cancel := web.StreamContext(r)
	defer cancel()
	c := remote.Dial(host, buffered{conn, rw.Reader})
	defer c.Close()
	open, opened := context.WithTimeout(ctx, openTimeout)
	err = c.Open(open)
	opened()
	if err != nil {
		a.Log.Warn("connection of a host", "host", host, "error", err)
		return nil
	}
	a.nodes.put(host, c)
	defer a.nodes.drop(host, c)
	a.Log.Info("host connected", "host", host, "peer", r.RemoteAddr)
	select {
	case <-c.Done():
	case <-ctx.Done():
	}
	a.Log.Info("host disconnected", "host", host)
	return nil
}

// buffered is a connection of which a part has been read already.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }
