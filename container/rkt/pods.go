package rkt

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const namePrefix = "weir-"

// appName is a container's id as rkt takes names: small letters, digits and single dashes.
func appName(id string) string { return namePrefix + hex.EncodeToString([]byte(id)) }

func idOf(app string) (string, bool) {
	text, ok := strings.CutPrefix(app, namePrefix)
	raw, err := hex.DecodeString(text)
	return string(raw), ok && err == nil && len(raw) > 0
}

// hostname is a host name without dots.
var hostname = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func isUUID(s string) bool { return uuid.MatchString(s) }

// pods are the apps of this instance's pods, by the pods' UUIDs.
func (e *Engine) pods(ctx context.Context) (map[string]string, error) {
	if _, err := os.Stat(filepath.Join(e.Home.Dir(), "data")); err != nil || e.cli == "" {
		return nil, nil // there are none, or nobody to ask
	}
	out, err := e.call(ctx, "list", "--format=json")
	if err != nil {
		return nil, err
	}
	var list []struct {
		Name string   `json:"name"`
		Apps []string `json:"app_names"`
	}
	if out = strings.TrimSpace(out); out != "" {
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return nil, fmt.Errorf("answer of rkt list: %w", err)
		}
	}
	pods := map[string]string{}
	for _, p := range list {
		if len(p.Apps) == 1 && isUUID(p.Name) {
			pods[p.Name] = p.Apps[0]
		}
	}
	return pods, nil
}
