package kernel

import (
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// PerFile keeps what was found out about programs, such as their versions, while their files stay the same: to start one takes 10 ms and more, and some are asked
// about for each of hundreds of variants. Errors are not kept. A script is its own file alone, whatever it executes.
type PerFile[T any] struct {
	mu    sync.Mutex
	known map[identity]T
}

// identity is of a file with its content.
type identity struct {
	path           string
	dev, ino       uint64
	size           int64
	changed, moved unix.Timespec
}

// mostFiles bounds what is kept.
const mostFiles = 64

// Of gives what is known of a file, or asks. Others wait meanwhile: they may ask about the same.
func (p *PerFile[T]) Of(path string, ask func() (T, error)) (T, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ask() // which says it better
	}
	id := identity{path, st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
	p.mu.Lock()
	defer p.mu.Unlock()
	if v, ok := p.known[id]; ok {
		return v, nil
	}
	v, err := ask()
	if err != nil {
		return v, err
	}
	if p.known == nil || len(p.known) >= mostFiles {
		p.known = map[identity]T{}
	}
	p.known[id] = v
	return v, nil
}

// FirstLine that a program prints. What it has started and left does not hold us up.
func FirstLine(cmd *exec.Cmd) (string, error) {
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line), nil
}
