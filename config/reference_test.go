package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/config"
)

var update = flag.Bool("update", false, "write the generated and golden files")

func TestReferenceIsCurrent(t *testing.T) {
	file := filepath.Join("..", "docs", "configuration.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(config.Reference()), 0o644))
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, config.Reference(), string(content), "run: go test ./config -run TestReferenceIsCurrent -update")
}

func TestReferenceDocumentsEveryName(t *testing.T) {
	t.Parallel()
	for _, line := range strings.Split(config.Reference(), "\n") {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| `") {
			require.Greater(t, len(strings.TrimSuffix(cells[len(cells)-1], " |")), 10, line)
		}
	}
}
