package web

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
)

// ImagesPath is where agents find the manager's images, as a registry to read only (OCI Distribution).
const ImagesPath = "/v2/"

// Bounds of what agents fetch of images at a time.
const (
	imagesPerHost = 16
	imagesInAll   = 128
	imageWrite    = 30 * time.Second // for a piece of an answer
)

// imageGate bounds requests for images.
type imageGate struct {
	mu     sync.Mutex
	all    int
	byHost map[string]int
}

func (g *imageGate) enter(host string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= imagesInAll || g.byHost[host] >= imagesPerHost {
		return false
	}
	if g.byHost == nil {
		g.byHost = map[string]int{}
	}
	g.all++
	g.byHost[host]++
	return true
}

func (g *imageGate) leave(host string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.byHost[host]--; g.byHost[host] == 0 {
		delete(g.byHost, host)
	}
}

// isImages tells a request for images.
func isImages(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, ImagesPath) }

// serveImages answers an agent's request for images.
func (s *agentServer) serveImages(w http.ResponseWriter, r *http.Request, host string) {
	if s.a.Images == nil {
		s.a.fail(&tracked{ResponseWriter: w}, r, api.Refuse(http.StatusNotFound, "this manager has no images"))
		return
	}
	if !s.images.enter(host) {
		w.Header().Set("Retry-After", "1")
		s.a.fail(&tracked{ResponseWriter: w}, r, api.Refuse(http.StatusTooManyRequests, "too much of images is being fetched: try again in a second"))
		return
	}
	defer s.images.leave(host)
	s.a.Images.ServeHTTP(&patient{w, http.NewResponseController(w)}, r)
}

// patient gives each piece of an answer a bounded time.
type patient struct {
	http.ResponseWriter
	c *http.ResponseController
}

func (p *patient) Write(b []byte) (int, error) {
	if err := p.c.SetWriteDeadline(time.Now().Add(imageWrite)); err != nil {
		return 0, err
	}
	return p.ResponseWriter.Write(b)
}
