package ask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
)

// Bounds of states that pass here from one host to another. Nothing of them is kept.
const (
	stateFor     = 15 * time.Second // from the question until the last byte is taken
	stateMost    = 64               // at a time
	statePerHost = 4                // that asks
)

// handing counts the states that pass.
type handing struct {
	mu  sync.Mutex
	all int
	by  map[string]int
}

// enter counts one of a host that asks; leave ends it.
func (h *handing) enter(host string) (leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all >= stateMost || h.by[host] >= statePerHost {
		return nil, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("too many states of functions are handed over at once: at most %d, %d to one host", stateMost, statePerHost))
	}
	if h.by == nil {
		h.by = map[string]int{}
	}
	h.all++
	h.by[host]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.all--
		if h.by[host]--; h.by[host] == 0 {
			delete(h.by, host)
		}
	}, nil
}

// state passes the state of a function that has moved from its former host to its new one, and to nobody else.
func (a *Asker) state(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	f, err := object.Find[api.Function](r.Context(), a.Store, api.KindFunction, name)
	if err != nil {
		return err
	}
	who, isAgent := web.AgentOf(r.Context())
	if isAgent && f.At() != who.Host || !isAgent && !web.CallerOf(r).Self {
		return api.Refuse(http.StatusForbidden, fmt.Sprintf("the state of function %s is for the agent of its host", name))
	}
	if f.Placement == nil || f.Placement.FormerHost == "" || f.Placement.FormerHost == f.At() {
		return api.Refuse(http.StatusNotFound, fmt.Sprintf("function %s has come from no other host, or is up already", name))
	}
	leave, err := a.states.enter(who.Host)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := web.StreamContext(r)
	defer cancel()
	end := time.Now().Add(stateFor)
	ctx, stop := context.WithDeadline(ctx, end)
	defer stop()
	n, err := a.node(ctx, f.Placement.FormerHost)
	if err != nil {
		return err
	}
	from, size, err := n.State(ctx, name, f.UID)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return api.Refuse(http.StatusGatewayTimeout, fmt.Sprintf("host %s does not answer within %v", f.Placement.FormerHost, stateFor))
	case err != nil:
		return live(err)
	case from == nil:
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	defer from.Close()
	defer context.AfterFunc(ctx, func() { from.Close() })() // a blocked read ends in time
	if size < 0 || size > api.MaxState {
		return api.Refuse(http.StatusBadGateway, fmt.Sprintf("host %s hands over a state of %d bytes: want at most %d", f.Placement.FormerHost, size, api.MaxState))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).SetWriteDeadline(end) // not possible on every kind of connection
	_, _ = io.Copy(w, io.LimitReader(from, size))           // who asks sees by the length that it is cut off
	return nil
}
