// Package nf has what functions of the catalogue have in common: their start, the bridge between their ports or the loop over their frames, decoding, their files,
// events.
package nf

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// Files that a function finds.
const (
	ConfigFile = "/etc/weir/config.json"
	ProbeFile  = "/etc/weir/probe"
	EventsFile = "/run/weir/events.sock"
)

// ReadConfig reads a configuration file; nil: there is none.
func ReadConfig(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return raw, nil
}

// Mark tells whether a file changed.
type Mark struct {
	size  int64
	mtime time.Time
	inode uint64
}

// MarkOf a file; one that is not there has none.
func MarkOf(path string) Mark {
	fi, err := os.Stat(path)
	if err != nil {
		return Mark{}
	}
	m := Mark{size: fi.Size(), mtime: fi.ModTime()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		m.inode = st.Ino
	}
	return m
}

// LoadProbe reads "destination source", the addresses of the frames by which the switch finds out whether we forward. nil: no such file.
func LoadProbe(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the probe's addresses: %w", err)
	}
	fields := strings.Fields(string(raw))
	if len(fields) != 2 {
		return nil, fmt.Errorf("probe's addresses %s: want two MAC addresses", path)
	}
	var head []byte
	for _, text := range fields {
		mac, err := net.ParseMAC(text)
		if err != nil || len(mac) != 6 {
			return nil, fmt.Errorf("probe's addresses %s: %q is no MAC address", path, text)
		}
		head = append(head, mac...)
	}
	return head, nil
}
