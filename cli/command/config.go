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

// configValue reads KEY=VALUE with the value in YAML: a number, a list or a mapping as in a file.
func configValue(pair string) (map[string]any, error) {
	key, text, _ := strings.Cut(pair, "=")
	if key == "" {
		return nil, Usage("--config %q: want KEY=VALUE", pair)
	}
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		return nil, Usage("--config %q: the value is not YAML: %s", pair, strings.SplitN(err.Error(), "\n", 2)[0])
	}
	return map[string]any{key: v}, nil
}

// ConfigOf reads a function's configuration from files in YAML or JSON, and KEY=VALUE. Later ones win. nil: there is none.
func ConfigOf(args []string) (map[string]any, error) {
	var config map[string]any
	for _, arg := range args {
		var part map[string]any
		var err error
		switch {
		case strings.Contains(arg, "="):
			part, err = configValue(arg)
		case !strings.ContainsAny(arg, "/.") && !exists(arg):
			err = Usage("--config %q: want KEY=VALUE, or a file in YAML or JSON", arg)
		default:
			part, err = ConfigFile(arg)
		}
		if err != nil {
			return nil, err
		}
		if config == nil {
			config = map[string]any{}
		}
		maps.Copy(config, part)
	}
	return config, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
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
