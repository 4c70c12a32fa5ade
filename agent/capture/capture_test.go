package capture

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/netns"
)

// wire is a pair of links between two namespaces, and a raw socket at its end "far".
func wire(t *testing.T) (space string, send func([]byte)) {
	t.Helper()
	space, _, send = pair(t)
	return space, send
}

// pair is wire, and the link "far".
func pair(t *testing.T) (space string, other netns.Link, send func([]byte)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes network namespaces (sudo make test)")
	}
	dir := t.TempDir()
	near, far := filepath.Join(dir, "near"), filepath.Join(dir, "far")
	for _, p := range []string{near, far} {
		if err := netns.Create(p, netns.Options{Quiet: true}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := netns.Delete(p); err != nil {
				t.Error(err)
			}
		})
	}
	pair, err := netns.Veth(far, near, netns.VethOptions{HostName: "far", PeerName: "near", Alias: "weir:capture:test", Quiet: true})
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	if err := netns.Do(far, func() (err error) { fd, err = socket(pair.Host.Index, true, nil); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return near, pair.Host, func(b []byte) {
		if err := unix.Send(fd, b, 0); err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Error(err)
		}
	}
}

func tagged(n byte) []byte {
	return append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 7, 0x88, 0xb6, n}, make([]byte, 50)...)
}

func TestFramesAreAsOnTheWire(t *testing.T) {
	space, send := wire(t)
	r, err := Open(t.Context(), Place{Space: space, Link: "near", Name: "port"}, api.CaptureOptions{Count: 2, Bytes: 1 << 20, Snaplen: 30, Duration: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	send(tagged(1))
	send(tagged(2))
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	in, err := pcapgo.NewNgReader(bytes.NewReader(text), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for n := byte(1); n < 3; n++ {
		data, info, err := in.ReadPacketData()
		if err != nil || !bytes.Equal(data, tagged(n)[:30]) || info.Length != len(tagged(n)) || time.Since(info.Timestamp).Abs() > time.Minute {
			t.Errorf("% x %+v, %v", data, info, err)
		}
	}
	if _, _, err := in.ReadPacketData(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	at, err := in.Interface(0)
	if err != nil || at.Name != "port" || at.Statistics.PacketsReceived < 2 || at.Statistics.PacketsDropped != 0 {
		t.Errorf("%+v, %v", at, err)
	}
}

// A reader that does not read costs bounded memory; what it misses is counted.
func TestSlowReadersMissFrames(t *testing.T) {
	space, send := wire(t)
	r, err := Open(t.Context(), Place{Space: space, Link: "near"}, api.CaptureOptions{Bytes: 1 << 40, Snaplen: 2000, Duration: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sent := 0
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); sent++ {
		send(append(tagged(1), make([]byte, 1400)...))
	}
	received, dropped := 0, uint64(0)
	o := pcapgo.DefaultNgReaderOptions
	o.StatisticsCallback = func(_ int, s pcapgo.NgInterfaceStatistics) { dropped = s.PacketsDropped }
	in, err := pcapgo.NewNgReader(r, o)
	for err == nil {
		if _, _, err = in.ZeroCopyReadPacketData(); err == nil {
			received++
		}
	}
	if !errors.Is(err, io.EOF) || dropped == 0 || received == 0 || received+int(dropped) > sent { // the kernel may lose some before the socket
		t.Errorf("sent %d, received %d, dropped %d: %v", sent, received, dropped, err)
	}
}

func TestTheKernelChecksFilters(t *testing.T) {
	space, _ := wire(t)
	for filter, fine := range map[string]bool{"1,6 0 0 0": true, "1,6 0 0 262144": true, "1,40 0 0 12": false, "1,5 0 0 1000": false, "2,6 0 0 0": false} {
		r, err := Open(t.Context(), Place{Space: space, Link: "near"}, api.CaptureOptions{Bytes: 1, Snaplen: 100, Duration: time.Millisecond, Filter: filter})
		if (err == nil) != fine {
			t.Errorf("%s: %v", filter, err)
		}
		if err == nil {
			r.Close()
		}
	}
	if _, err := Open(t.Context(), Place{Space: space, Link: "nowhere"}, api.CaptureOptions{}); !errors.Is(err, netns.ErrNoLink) {
		t.Error(err)
	}
}

// What bears the right name is not yet the other end of our link.
func TestTheOtherEndIsChecked(t *testing.T) {
	space, far, _ := pair(t)
	elsewhere := far
	elsewhere.PeerIndex++
	for _, x := range []struct {
		link  string
		other netns.Link
		fine  bool
	}{{"near", far, true}, {"lo", far, false}, {"near", netns.Link{Index: far.Index + 1}, false}, {"near", elsewhere, false}} {
		r, err := Open(t.Context(), Place{Space: space, Link: x.link, OtherEnd: &x.other}, api.CaptureOptions{Bytes: 1, Snaplen: 100, Duration: time.Millisecond})
		if (err == nil) != x.fine {
			t.Errorf("%s, %+v: %v", x.link, x.other, err)
		}
		if err == nil {
			r.Close()
		}
	}
}
