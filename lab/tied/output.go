package tied

import (
	"bytes"
	"strings"
	"sync"
)

// Output keeps the first bytes of what a program prints. It may be read while the program prints.
type Output struct {
	Most int // bytes; 0: 64 KiB

	mu sync.Mutex
	b  bytes.Buffer
}

// DefaultMost is how many bytes an Output keeps that does not say.
const DefaultMost = 1 << 16

// Write takes all, and keeps what there is room for.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	most := o.Most
	if most == 0 {
		most = DefaultMost
	}
	if room := most - o.b.Len(); room > 0 {
		o.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// String is what is kept.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Tail is the end of what is kept, for an error.
func (o *Output) Tail() string { return Tail(o.String()) }

// Tail is the end of a program's output, for an error.
func Tail(text string) string {
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-600):]
}
