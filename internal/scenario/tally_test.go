package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/app"
	"github.com/oncemill/oncemill/app/builtin"
	"github.com/oncemill/oncemill/handlers"
)

// Topics of the instrumented plugin, and the variable that names its file.
const (
	tallyTopic    = "tally.run"
	sequenceTopic = "sequence.next"
	tallyFile     = "SCENARIO_TALLY"
)

// instrumented is everything built in, and a plugin whose handler counts its own runs outside the transaction, as a witness
// that no rollback can take back.
func instrumented() app.Set {
	set := builtin.Set()
	set.Plugins = append(set.Plugins, tally())
	return set
}

// work is the payload of tally.run: what the handler shall do.
type work struct {
	Name      string `json:"name"`
	SleepMS   int    `json:"sleep_ms"`
	FailFor   int    `json:"fail_for"` // so many runs fail
	Kill      bool   `json:"kill"`     // the handler ends its process
	Permanent bool   `json:"permanent"`
}

func tally() handlers.Plugin {
	return handlers.Plugin{
		Name: "tally", Guarantee: "A witness for tests.",
		Open: handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
			b.On(tallyTopic, handlers.JSON(count))
			b.On(sequenceTopic, sequence, handlers.Named("sequence"), handlers.Ordered())
			return nil
		}),
	}
}

// count writes a line for each run, before it does anything else.
func count(ctx context.Context, tx handlers.Tx, w work) (any, error) {
	runs, err := witness(w.Name)
	if err != nil {
		return nil, err
	}
	if w.Kill {
		os.Exit(137)
	}
	select {
	case <-time.After(time.Duration(w.SleepMS) * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if w.Permanent {
		return nil, handlers.Permanent("told-to", "the test wants it")
	}
	if runs <= w.FailFor {
		return nil, errors.New("told to fail")
	}
	return runs, nil
}

// failedOnce are the messages that this process has failed already, for those that are told to fail once.
var failedOnce sync.Map

// sequence writes the number in its payload behind those of its ordering key.
func sequence(_ context.Context, _ handlers.Tx, msg *message.Message) (any, error) {
	line, failing := strings.CutSuffix(string(msg.Payload), " fails-once")
	if failing {
		if _, before := failedOnce.LoadOrStore(line, true); !before {
			return nil, errors.New("told to fail once")
		}
	}
	return nil, appendLine(line)
}

// witness appends a line to the tally file, which all replicas share, and returns how often the line stands there.
func witness(line string) (int, error) {
	if err := appendLine(line); err != nil {
		return 0, err
	}
	data, err := os.ReadFile(os.Getenv(tallyFile))
	if err != nil {
		return 0, err
	}
	return strings.Count("\n"+string(data), "\n"+line+"\n"), nil
}

func appendLine(line string) error {
	f, err := os.OpenFile(os.Getenv(tallyFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(line + "\n")
	return err
}

// runs reads how often each line was written, in the order of the first.
func (s *system) runs() map[string]int {
	s.t.Helper()
	counts := map[string]int{}
	for _, line := range s.lines() {
		counts[line]++
	}
	return counts
}

func (s *system) lines() []string {
	s.t.Helper()
	data, err := os.ReadFile(s.dir + "/tally")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(s.t, err)
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// task is a message for the counting handler; more is further fields of its payload.
func task(key, more string) event {
	return event{topic: tallyTopic, key: key, body: fmt.Sprintf(`{"name":%q%s}`, key, more)}
}

// tasks are n messages for the counting handler.
func tasks(n int, more string) []event {
	events := make([]event, n)
	for i := range events {
		events[i] = task(fmt.Sprintf("task-%04d", i), more)
	}
	return events
}
