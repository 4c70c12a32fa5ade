package solo

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// syn is a TCP frame.
const syn = "020000000002020000000001080045000028000100004006" + "66cd" + "0a0000010a0000029c4000500000000100000000500200007c630000"

func frame(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func frames(names string) (out []Frame) {
	for _, n := range names {
		out = append(out, Frame{Data: append(make([]byte, 20), byte(n))})
	}
	return out
}

func TestFramesAreComparedInOrder(t *testing.T) {
	for name, tt := range map[string]struct {
		want, got string
		says      []string
	}{
		"equal":             {"abc", "abc", nil},
		"both empty":        {"", "", nil},
		"one is missing":    {"abc", "ac", []string{"missing 2/0"}},
		"the first":         {"abc", "bc", []string{"missing 1/0"}},
		"the last":          {"abc", "ab", []string{"missing 3/0"}},
		"one more":          {"abc", "abxc", []string{"unexpected 0/3"}},
		"one differs":       {"abc", "axc", []string{"differs 2/2 at 20"}},
		"two changed place": {"abcd", "acbd", []string{"missing 2/0", "unexpected 0/3"}},
		"nothing came":      {"ab", "", []string{"missing 1/0", "missing 2/0"}},
		"twice":             {"ab", "aab", []string{"unexpected 0/2"}},
		"behind a gap":      {"abcdef", "bcdxf", []string{"missing 1/0", "differs 5/4 at 20"}},
	} {
		t.Run(name, func(t *testing.T) {
			var says []string
			for _, d := range Compare("out", frames(tt.want), frames(tt.got), nil) {
				text := fmt.Sprintf("%s %d/%d", d.Kind, d.Expected, d.Got)
				if d.Kind == Differs {
					text += fmt.Sprint(" at ", d.Offset)
				}
				says = append(says, text)
			}
			if d := cmp.Diff(tt.says, says); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestFieldsAreIgnored(t *testing.T) {
	for name, tt := range map[string]struct {
		at     int // the byte that is changed
		ignore []string
		field  string // that differs; "": none
	}{
		"destination MAC":              {0, nil, "destination MAC"},
		"source MAC":                   {11, nil, "source MAC"},
		"both left out":                {11, []string{IgnoreMAC}, ""},
		"TTL":                          {22, nil, "IPv4 TTL"},
		"left out":                     {22, []string{IgnoreTTL}, ""},
		"its checksum with it":         {24, []string{IgnoreTTL}, ""},
		"IPv4's checksum":              {25, nil, "IPv4 checksum"},
		"TCP's checksum":               {51, nil, "TCP checksum"},
		"TCP's left out":               {51, []string{IgnoreChecksum}, ""},
		"not by another name":          {51, []string{IgnoreMAC, IgnoreTTL, IgnoreID}, "TCP checksum"},
		"identification":               {19, nil, "IPv4 identification"},
		"identification left out":      {19, []string{IgnoreID}, ""},
		"port, whatever is left out":   {37, Ignorable(), "TCP destination port"},
		"address, whatever's left out": {33, Ignorable(), "IPv4 destination"},
		"ethertype":                    {12, nil, "ethertype or VLAN tag"},
	} {
		t.Run(name, func(t *testing.T) {
			was, is := frame(t, syn), frame(t, syn)
			is[tt.at] ^= 0xff
			got := ""
			for _, d := range Compare("out", []Frame{{Data: was}}, []Frame{{Data: is}}, tt.ignore) {
				got = d.Field
				if d.Offset != tt.at {
					t.Errorf("offset %d, want %d", d.Offset, tt.at)
				}
			}
			if got != tt.field {
				t.Errorf("differs in %q, want %q", got, tt.field)
			}
		})
	}
}

// Files that are written are read again, in both formats, and the same frames make the same file.
func TestFilesOfFrames(t *testing.T) {
	for _, name := range []string{"a.pcap", "a.pcapng"} {
		path := filepath.Join(t.TempDir(), name)
		want := []Frame{{Data: frame(t, syn)}, {Data: append(frame(t, syn), 1)}}
		var former []byte
		for range 2 {
			if err := WriteFrames(path, want); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(path)
			if err != nil || former != nil && !bytes.Equal(text, former) {
				t.Fatalf("%s: %v, or another file of the same frames", name, err)
			}
			former = text
		}
		got, err := ReadFrames(path)
		if err != nil || len(got) != 2 || len(Compare("", want, got, nil)) > 0 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for text, says := range map[string]string{
		"":           "too short",
		"PK\x03\x04": "want pcap or pcapng",
		"\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x71\x00\x00\x00":                                                                                                                                   "want Ethernet",
		"\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x01\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00\x0e\x00\x00\x00\x3c\x00\x00\x00" + "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x88\xb5": "14 of its 60 bytes",
	} {
		if _, err := readFrames(bufio.NewReader(strings.NewReader(text))); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

// Whatever is in a file, and in its frames, is read, compared and described without a panic.
func FuzzFrames(f *testing.F) {
	for _, name := range []string{"a.pcap", "a.pcapng"} {
		path := filepath.Join(f.TempDir(), name)
		if err := WriteFrames(path, []Frame{{Data: frame(f, syn)}}); err != nil {
			f.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := readFrames(bufio.NewReader(bytes.NewReader(text)))
		if err != nil {
			return
		}
		for _, x := range all {
			Compare("out", all[:1], []Frame{x}, Ignorable())
			Summary(x.Data)
			for at := range x.Data {
				fieldAt(x.Data, at)
			}
		}
	})
}

// A capture that is cut is refused wherever it is cut, but between two frames, and the error says so.
func TestACaptureThatIsCut(t *testing.T) {
	frame := Frame{Data: bytes.Repeat([]byte{7}, 60)}
	for name, begin := range map[string]struct{ file, frame int }{ // bytes of the file's begin, and of a frame with its header
		"c.pcap":   {24, 16 + 60},
		"c.pcapng": {0, 0},
	} {
		whole := filepath.Join(t.TempDir(), name)
		if err := WriteFrames(whole, []Frame{frame, frame}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(whole)
		if err != nil {
			t.Fatal(err)
		}
		if begin.frame == 0 {
			begin.frame = 32 + 60 // block, no options
			begin.file = len(text) - 2*begin.frame
		}
		second := begin.file + begin.frame
		cut := filepath.Join(t.TempDir(), name)
		for at := begin.file; at < len(text); at++ {
			if err := os.WriteFile(cut, text[:at], 0o600); err != nil {
				t.Fatal(err)
			}
			frames, err := ReadFrames(cut)
			if at == begin.file || at == second {
				if want := (at - begin.file) / begin.frame; err != nil || len(frames) != want {
					t.Errorf("%s, cut behind %d frames: %d, %v", name, want, len(frames), err)
				}
				continue
			}
			n := 1 + (at-begin.file)/begin.frame
			if want := fmt.Sprintf("frame %d: the file ends in the middle of it", n); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, cut at byte %d: %d frames, %v: want %q", name, at, len(frames), err, want)
			}
		}
	}
}
