package ebpf

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// Who looks at bridged frames may be a question without an answer, from the start on: then all cross the bridge, and that is said, once.
func TestWhatNetfilterDoesNotTellIsSaidOnce(t *testing.T) {
	var log bytes.Buffer
	h := newHost(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	h.Commit() // nobody looks around by himself
	s := h.Switch.(*Switch)
	heed := func(by string, err error) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.heed(by, err); err != nil {
			t.Fatal(err)
		}
		if want := by == "" && err == nil; s.past != want {
			t.Errorf("seen by %q, %v: frames may pass the bridge by: %v, want %v", by, err, s.past, want)
		}
	}
	heed("somebody", nil)
	for range 3 {
		heed("", errors.New("no answer"))
	}
	heed("", nil)
	heed("", errors.New("no answer"))
	h.Close()
	if n := strings.Count(log.String(), "no answer"); n != 2 {
		t.Errorf("said %d times, want 2: %s", n, log.String())
	}
}
