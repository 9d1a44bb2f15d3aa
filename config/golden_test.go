package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/config"
)

// known is what the program of the golden cases has linked in.
func known() config.Known {
	return config.Known{
		Brokers:   []string{"embedded", "rabbitmq", "kafka"},
		Databases: []string{"sqlite", "postgres"},
		Keys:      []string{"database", "redis"},
		Plugins:   []string{"payments", "email", "mail-order"},
	}
}

// bindings are the names that the program has once its plugins are open.
func bindings() []string {
	return []string{"payments", "email", "email-payments.completed", "mail-order"}
}

// adapter is the configuration of an adapter, which config knows nothing of.
type adapter struct {
	URL          string            `yaml:"url"`
	URLFile      string            `yaml:"url_file"`
	Password     string            `yaml:"password"`
	Topology     string            `yaml:"topology" enum:"declare,verify,off"`
	Hosts        []string          `yaml:"hosts"`
	AckWait      time.Duration     `yaml:"ack_wait" check:"positive"`
	InFlight     int16             `yaml:"in_flight" check:"positive"`
	TLS          adapterTLS        `yaml:"tls"`
	Topics       map[string]topic  `yaml:"topics"`
	Headers      map[string]string `yaml:"headers"`
	PrefetchSize *int              `yaml:"prefetch_size"`
	Extra        any               `yaml:"extra"`
	PinToken     int               `yaml:"pin_token"`
}

type adapterTLS struct {
	Enabled bool   `yaml:"enabled"`
	CAFile  string `yaml:"ca_file"`
}

type topic struct {
	Name       string `yaml:"name"`
	Partitions int32  `yaml:"partitions"`
}

// TestF082Golden runs the cases in testdata. Each has a file, variables and flags, and what comes out of them: the
// printed configuration, or the error.
func TestF082Golden(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	here, err := os.Getwd()
	require.NoError(t, err)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			input, want, found := strings.Cut(string(content), "-- want --\n")
			require.True(t, found || *update)
			got := outcome(t, input)
			if *update {
				require.NoError(t, os.WriteFile(filepath.Join(here, file), []byte(input+"-- want --\n"+got), 0o644))
			}
			if !*update {
				require.Equal(t, want, got)
			}
		})
	}
}

func outcome(t *testing.T, input string) string {
	t.Chdir(t.TempDir())
	opts := config.LoadOptions{Known: known(), Flags: map[string]string{}}
	for name, text := range sections(input) {
		switch name {
		case "oncemill.yaml":
			require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
			opts.File = name
		case "env":
			opts.Env = strings.Split(strings.TrimSpace(text), "\n")
		case "flags":
			for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
				path, value, _ := strings.Cut(line, "=")
				opts.Flags[path] = value
			}
		default:
			t.Fatalf("unknown part %q", name)
		}
	}
	c, err := config.Load(opts)
	if err == nil {
		err = c.KnowBindings(bindings())
	}
	if err == nil {
		err = c.Brokers[c.Broker].Decode(&adapter{})
	}
	if err != nil {
		return err.Error() + "\n"
	}
	var out bytes.Buffer
	require.NoError(t, c.Print(&out))
	return out.String()
}

// sections splits "-- name --" parts.
func sections(input string) map[string]string {
	parts, name := map[string]string{}, ""
	for _, line := range strings.SplitAfter(input, "\n") {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "-- "); ok && strings.HasSuffix(n, " --") {
			name = strings.TrimSuffix(n, " --")
			continue
		}
		if name != "" {
			parts[name] += line
		}
	}
	return parts
}
