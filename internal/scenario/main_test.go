// Package scenario runs the whole of Oncemill on real brokers and databases: replicas of the binary that are killed,
// stopped and started again under load, with only the flags changed from one system to the next.
package scenario

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/oncemill/oncemill/app"
)

// binary is the built program.
var binary string

// asReplica makes this test binary an application of its own plugins instead of a test.
const asReplica = "SCENARIO_REPLICA"

func TestMain(m *testing.M) {
	if as := os.Getenv(asReplica); as != "" {
		os.Unsetenv(asReplica)
		set := instrumented()
		if as == relabeling {
			set = relabelSet()
		}
		os.Exit(app.Main(set))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "oncemill-scenario-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "oncemill")
	build := exec.Command("go", "build", "-o", binary, "github.com/oncemill/oncemill/cmd/oncemill")
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
		return 1
	}
	return m.Run()
}
