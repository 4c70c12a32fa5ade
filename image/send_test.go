package image

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// taking is a registry that has nothing, and takes what is sent by a function. It keeps nothing.
func taking(t *testing.T, take func(r *http.Request)) string {
	t.Helper()
	x := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodHead:
			w.WriteHeader(http.StatusNotFound)
		case http.MethodPost:
			w.Header().Set("Location", "/v2/nf/big/blobs/uploads/1")
			w.WriteHeader(http.StatusAccepted)
		case http.MethodPatch:
			take(r)
			w.Header().Set("Location", "/v2/nf/big/blobs/uploads/1")
			w.WriteHeader(http.StatusAccepted)
		case http.MethodPut:
			take(r)
			w.WriteHeader(http.StatusCreated)
		}
	}))
	t.Cleanup(x.Close)
	return strings.TrimPrefix(x.URL, "http://")
}

// A registry that stops reading in the middle of a layer is given up, once, and the error says which layer. Nothing goes on behind that.
func TestARegistryThatStopsReading(t *testing.T) {
	img := bigImage(t, 1, 64<<20) // more than connections hold
	s, layer := with(t, "big:1", img), layersOf(t, img)[0]
	over := make(chan struct{})
	defer close(over)
	var tries atomic.Int32
	at := taking(t, func(r *http.Request) {
		if r.ContentLength < 1<<20 { // the config
			_, _ = io.Copy(io.Discard, r.Body)
			return
		}
		tries.Add(1)
		_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
		<-over
	})
	begin := time.Now()
	const idle = time.Second
	_, err := s.Push(t.Context(), "big:1", at+"/nf/big:1", RemoteOptions{idle: idle, Progress: func(int64, int64) {}})
	if !errors.Is(err, errStuck) {
		t.Fatalf("%v: want %v", err, errStuck)
	}
	for _, want := range []string{"push big:1 to " + at + "/nf/big:1", "in 1s, of " + layer, "bytes: " + at + " has stopped reading: see whether it works and has room"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	if took, n := time.Since(begin), tries.Load(); took < idle || took > 20*time.Second || n != 1 {
		t.Errorf("given up after %v and %d tries", took, n)
	}
}

// A registry that is slow is waited for, longer than one may say nothing.
func TestARegistryThatReadsSlowly(t *testing.T) {
	s := with(t, "big:1", bigImage(t, 1, 16<<20))
	const idle, pause, piece = 3 * time.Second, 200 * time.Millisecond, 512 << 10
	at := taking(t, func(r *http.Request) {
		for {
			if n, err := io.CopyN(io.Discard, r.Body, piece); n < piece || err != nil {
				return
			}
			time.Sleep(pause)
		}
	})
	begin := time.Now()
	if _, err := s.Push(t.Context(), "big:1", at+"/nf/big:1", RemoteOptions{idle: idle}); err != nil || time.Since(begin) < idle {
		t.Errorf("%v after %v: want a push of more than %v", err, time.Since(begin), idle)
	}
}

// A registry that reads all and does not answer has not stopped reading.
func TestARegistryThatReadsAndDoesNotAnswer(t *testing.T) {
	s := with(t, "big:1", bigImage(t, 1, 1<<20))
	over := make(chan struct{})
	defer close(over)
	at := taking(t, func(r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.Contains(r.URL.Path, "/manifests/") {
			<-over
		}
	})
	_, err := s.Push(t.Context(), "big:1", at+"/nf/big:1", RemoteOptions{idle: time.Second})
	if err == nil || errors.Is(err, errStuck) || !strings.Contains(err.Error(), at+" does not answer in time") {
		t.Errorf("%v: want that it does not answer", err)
	}
}

// By HTTP/2 a connection takes bytes of other requests when nobody reads this one's.
func TestAStreamThatIsNotRead(t *testing.T) {
	over := make(chan struct{})
	x := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("%s: want HTTP/2", r.Proto)
		}
		if r.URL.Path == "/stuck" {
			<-over
			return
		}
		_, _ = io.Copy(w, r.Body)
	}))
	x.EnableHTTP2 = true
	x.StartTLS()
	defer x.Close()
	defer close(over)
	c := http.Client{Transport: sender{next: x.Client().Transport, within: time.Second}}
	body := bytes.Repeat([]byte("x"), 16<<20)
	send := func(path string) ([]byte, error) {
		resp, err := c.Post(x.URL+path, "text/plain", bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		return io.ReadAll(resp.Body)
	}
	if got, err := send("/echo"); err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d bytes, %v: want what was sent", len(got), err)
	}
	if _, err := send("/stuck"); !errors.Is(err, errStuck) || !strings.Contains(err.Error(), "of /stuck, behind") {
		t.Errorf("%v: want %v", err, errStuck)
	}
}
