package lldp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write testdata anew")

var key = []byte("0123456789abcdef0123456789abcdef")

func sample() Frame {
	return Frame{Source: [6]byte{6, 0x57, 0, 0, 0, 1}, Chassis: SwitchChassis(0x1f), Port: "3", TTL: 4, Sequence: 0x0102030405060708}
}

func genFrame(t *rapid.T) Frame {
	id := rapid.StringN(1, 60, 255)
	f := Frame{
		Chassis: id.Draw(t, "chassis"), Port: id.Draw(t, "port"),
		TTL: rapid.Uint16().Draw(t, "ttl"), Sequence: rapid.Uint64().Draw(t, "sequence"),
	}
	copy(f.Source[:], rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "source"))
	return f
}

func TestVerifyOfEncodeIsTheFrame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := genFrame(t)
		b, err := Encode(f, key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Verify(append(b, make([]byte, rapid.IntRange(0, 40).Draw(t, "padding"))...), key)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(f, got); d != "" {
			t.Fatal(d)
		}
	})
}

// TestNoSignedBitCanChange: whatever a forger changes behind the Ethernet header, or in it so that it stays LLDP, is noticed.
func TestNoSignedBitCanChange(t *testing.T) {
	b, err := Encode(sample(), key)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		if i >= 6 && i < 12 {
			continue // the source address is not signed: switches and agents choose it
		}
		for bit := range 8 {
			c := bytes.Clone(b)
			c[i] ^= 1 << bit
			if f, err := Verify(c, key); err == nil {
				t.Errorf("octet %d bit %d changed: accepted as %+v", i, bit, f)
			}
		}
	}
	if _, err := Verify(b, []byte("another key of 32 octets........")); !errors.Is(err, ErrSignature) {
		t.Errorf("another key: %v", err)
	}
	if _, err := Verify(b, nil); !errors.Is(err, ErrSignature) {
		t.Errorf("no key: %v", err)
	}
	for n := range b {
		if _, err := Verify(b[:n], key); err == nil {
			t.Errorf("cut to %d octets: accepted", n)
		}
	}
}

func TestFramesOfOthersAreToldApart(t *testing.T) {
	foreign := append(append([]byte{}, Destination[:]...), 2, 0, 0, 0, 0, 9, 0x88, 0xcc)
	foreign = append(foreign, 0x02, 0x07, 4, 2, 0, 0, 0, 0, 9) // chassis id: a MAC address
	foreign = append(foreign, 0x04, 0x05, 5, 'e', 't', 'h', '0', 0x06, 0x02, 0, 120, 0, 0)
	if _, err := Decode(foreign); !errors.Is(err, ErrForeign) {
		t.Errorf("lldpd's frame: %v", err)
	}
	if _, err := Decode([]byte("no frame")); !errors.Is(err, ErrForeign) {
		t.Errorf("no LLDP: %v", err)
	}
	if _, err := Decode(foreign[:20]); !errors.Is(err, ErrMalformed) {
		t.Errorf("cut: %v", err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Frame)
		key    []byte
	}{
		"a short key":     {func(*Frame) {}, key[:15]},
		"no chassis":      {func(f *Frame) { f.Chassis = "" }, key},
		"a long chassis":  {func(f *Frame) { f.Chassis = strings.Repeat("x", 256) }, key},
		"no port":         {func(f *Frame) { f.Port = "" }, key},
		"a very long one": {func(f *Frame) { f.Port = strings.Repeat("x", 600) }, key},
	} {
		f := sample()
		c.change(&f)
		if b, err := Encode(f, c.key); err == nil {
			t.Errorf("%s: encoded %x", name, b)
		}
	}
}

func TestChassis(t *testing.T) {
	if id, host, err := ParseChassis(SwitchChassis(0xfedcba9876543210)); id != 0xfedcba9876543210 || host != "" || err != nil {
		t.Errorf("switch: %x %q %v", id, host, err)
	}
	if id, host, err := ParseChassis(HostChassis("h1")); id != 0 || host != "h1" || err != nil {
		t.Errorf("host: %x %q %v", id, host, err)
	}
	for _, s := range []string{"", "of:", "host:", "of:1", "of:000000000000000G", "of:000000000000000A", "of:+00000000000001f", "x:0000000000000001"} {
		if id, host, err := ParseChassis(s); err == nil {
			t.Errorf("%q: %x %q", s, id, host)
		}
	}
}

func TestAReplayedFrameIsRefused(t *testing.T) {
	var w Window
	var s Sequence
	now := time.Unix(1_000_000, 0)
	f := sample()
	f.Sequence = s.Next(now)
	if err := w.Accept(f, now); err != nil {
		t.Fatal(err)
	}
	if err := w.Accept(f, now.Add(time.Second)); !errors.Is(err, ErrReplay) {
		t.Errorf("again: %v", err)
	}
	other := f
	other.Port = "4"
	if err := w.Accept(other, now); err != nil {
		t.Errorf("another port has its own sequence: %v", err)
	}
	old := f.Sequence
	f.Sequence = s.Next(now.Add(-time.Hour)) // the clock went back, the sender goes on
	if f.Sequence <= old {
		t.Errorf("sequence %d after %d", f.Sequence, old)
	}
	if err := w.Accept(f, now.Add(2*time.Second)); err != nil {
		t.Errorf("next: %v", err)
	}
	f.Sequence = 1 // started again with a clock set back
	if err := w.Accept(f, now.Add(3*time.Second)); !errors.Is(err, ErrReplay) {
		t.Errorf("an old number: %v", err)
	}
	if err := w.Accept(f, now.Add(2*time.Second+Forget)); err != nil {
		t.Errorf("after a silence: %v", err)
	}
}

func TestTheWindowIsBounded(t *testing.T) {
	var w Window
	now := time.Unix(1_000_000, 0)
	f := sample()
	for i := range MaxPorts {
		f.Sequence = uint64(i)
		f.Port = string(binary.BigEndian.AppendUint32(nil, uint32(i)))
		if err := w.Accept(f, now); err != nil {
			t.Fatal(err)
		}
	}
	f.Port = "one more"
	if err := w.Accept(f, now); err == nil {
		t.Error("one more is accepted")
	}
	if err := w.Accept(f, now.Add(Forget)); err != nil || len(w.ports) != 1 {
		t.Errorf("after a silence of all: %v, %d remembered", err, len(w.ports))
	}
}

// TestTsharkReadsTheFrame: an independent decoder understands what we send, and the frame's bytes do not change by accident.
func TestTsharkReadsTheFrame(t *testing.T) {
	b, err := Encode(sample(), key)
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/frame.bin"
	if *update {
		if err := os.WriteFile(golden, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, b); d != "" {
		t.Errorf("%s: %s", golden, d)
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Fatal("tshark is missing: setup.sh installs it")
	}
	file := filepath.Join(t.TempDir(), "frame.pcap")
	pcap := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	pcap = append(pcap, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	pcap = binary.LittleEndian.AppendUint32(pcap, uint32(len(b)))
	pcap = binary.LittleEndian.AppendUint32(pcap, uint32(len(b)))
	if err := os.WriteFile(file, append(pcap, b...), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), tshark, "-r", file, "-T", "fields", "-E", "separator=|", "-e", "eth.dst", "-e", "lldp.chassis.id",
		"-e", "lldp.port.id", "-e", "lldp.time_to_live", "-e", "lldp.orgtlv.oui", "-e", "_ws.malformed")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	if d := cmp.Diff("01:80:c2:00:00:0e|"+hex.EncodeToString([]byte("of:000000000000001f"))+"|3|4|415557|", strings.TrimRight(string(out), "\n")); d != "" {
		t.Error(d)
	}
}

// FuzzDecode: nothing makes the decoder panic, and what it accepts is encoded the same again.
func FuzzDecode(f *testing.F) {
	b, err := Encode(sample(), key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:40])
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := Verify(in, key)
		if err != nil {
			_, _ = Decode(in)
			return
		}
		again, err := Encode(got, key)
		if err != nil || !bytes.HasPrefix(in, again) {
			t.Errorf("%x became %x: %v", in, again, err)
		}
	})
}
