package command

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
)

// maxConfig bounds a file of a function's configuration.
const maxConfig = 4 << 20

// ConfigValues reads KEY=VALUE with values in YAML: numbers, lists and mappings as in a file.
func ConfigValues(pairs []string) (map[string]any, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	config := map[string]any{}
	for _, p := range pairs {
		key, text, ok := strings.Cut(p, "=")
		if !ok || key == "" {
			return nil, Usage("--config %q: want KEY=VALUE", p)
		}
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			return nil, Usage("--config %q: the value is not YAML: %s", p, strings.SplitN(err.Error(), "\n", 2)[0])
		}
		config[key] = v
	}
	return config, nil
}

// ConfigOf reads a function's configuration from files in YAML or JSON, and KEY=VALUE. Later ones win.
func ConfigOf(args []string) (map[string]any, error) {
	config := map[string]any{}
	for _, arg := range args {
		var part map[string]any
		var err error
		if strings.Contains(arg, "=") {
			part, err = ConfigValues([]string{arg})
		} else {
			part, err = ConfigFile(arg)
		}
		if err != nil {
			return nil, err
		}
		maps.Copy(config, part)
	}
	return config, nil
}

// ConfigFile reads a file in YAML or JSON: one mapping.
func ConfigFile(path string) (map[string]any, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, WithCode(ExitInvalid, fmt.Errorf("configuration: %w", err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, WithCode(ExitInvalid, fmt.Errorf("configuration: %w", err))
	}
	if len(text) > maxConfig {
		return nil, WithCode(ExitInvalid, fmt.Errorf("configuration %s: want at most %d bytes", path, maxConfig))
	}
	if at := bytes.IndexByte(text, 0); at >= 0 { // the parser would end there
		return nil, WithCode(ExitInvalid, fmt.Errorf("configuration %s: byte %d is 0: want text, a mapping in YAML or JSON", path, at+1))
	}
	config := map[string]any{}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, WithCode(ExitInvalid, fmt.Errorf("configuration %s: want a mapping in YAML or JSON: %w", path, err))
	}
	return config, nil
}
