package scenario

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDemo runs the demo with its kills, in an environment with nothing configured.
func TestDemo(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), binary, "demo", "--payments", "500", "--kills", "2")
	cmd.Env = bareEnvironment()
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Contains(t, string(said), "SIGKILL number 2")
	require.Regexp(t, `payments made +500 +each exactly once`, string(said))
	require.Contains(t, string(said), "Every payment happened exactly once")
}
