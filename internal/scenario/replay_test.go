package scenario

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/app"
	"github.com/oncemill/oncemill/internal/testenv"
)

// TestKafkaForgottenOffsetsAreAskedAbout lets Kafka forget a group's offsets, as it does after days: the binding does not begin at the oldest
// message of its own accord, and where it is told to, its keys remove what was done.
func TestKafkaForgottenOffsetsAreAskedAbout(t *testing.T) {
	const count = 50
	s := newSystem(t, "kafka", "sqlite")
	s.write()
	r := s.replica("a", true)
	r.start()
	r.ready()
	events := tasks(count, "")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, send(ctx, s.open(), events))
	db := s.db()
	testenv.Eventually(t, time.Minute, func() error { return expect(number(t, db, completedTallies), count, "tasks") })
	r.stop()
	s.forgetGroup(s.service + ".tally")

	refused := exec.CommandContext(ctx, r.program, "run", "--config", s.file)
	refused.Env = r.env
	said, err := refused.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, app.ExitRefused, refused.ProcessState.ExitCode(), "%s", said)
	require.Contains(t, string(said), "no committed offset of its group "+s.service+".tally")

	s.set("replay", true)
	s.write()
	r.start()
	r.ready()
	removed := fmt.Sprintf(`oncemill_messages_total{kind="duplicate",scope="%s/tally"} %d`, s.service, count)
	testenv.Eventually(t, time.Minute, func() error {
		if page := r.metrics(); !strings.Contains(page, removed) {
			return fmt.Errorf("the metrics do not say %s", removed)
		}
		return nil
	})
	for name, n := range s.runs() {
		require.Equal(t, 1, n, "runs of %s", name)
	}
}

// forgetGroup deletes a consumer group with its offsets.
func (s *system) forgetGroup(group string) {
	s.t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	admin, err := sarama.NewClusterAdmin(s.setting("brokers").([]string), conf)
	require.NoError(s.t, err)
	defer admin.Close()
	testenv.Eventually(s.t, 30*time.Second, func() error { return admin.DeleteConsumerGroup(group) })
}
