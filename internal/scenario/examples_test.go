package scenario

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// TestExamplesExactlyOnce builds the programs of examples/, which have the middleware in a plain Watermill router, and runs each as two
// processes that are killed in mid-run, while a producer sends everything two or three times.
func TestExamplesExactlyOnce(t *testing.T) {
	for _, e := range []struct {
		name, system string
		try          func(s *system)
	}{
		{"rabbitmq", "rabbitmq-classic", func(s *system) {
			s.countOrders("orders", "orders_shop", "rabbitmq", "-rabbitmq", s.setting("url").(string))
		}},
		{"kafka", "kafka", func(s *system) {
			topic := s.service + ".orders"
			s.countOrders(topic, topic+"-shop", "kafka", "-topic", topic, "-kafka", strings.Join(testenv.Kafka(s.t), ","))
		}},
		{"cqrs on RabbitMQ", "rabbitmq-classic", func(s *system) {
			s.shipOrders(s.service+".commands:"+s.service+".ship", s.service+".events:"+s.service+".books", "-rabbitmq", s.setting("url").(string))
		}},
		{"cqrs on Kafka", "kafka", func(s *system) {
			s.shipOrders(s.service+".ship", s.service+".books", "-kafka", strings.Join(testenv.Kafka(s.t), ","))
		}},
	} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, e.system, "postgres")
			s.write()
			e.try(s)
		})
	}
}

// exampleOrders are how many orders an example gets.
const exampleOrders = 150

// countOrders runs an example that adds each order to its customer's total; group is its queue or consumer group.
func (s *system) countOrders(topic, group, folder string, args ...string) {
	t := s.t
	const customers = 7
	events := make([]event, exampleOrders)
	want := map[string]int64{}
	for n := range events {
		customer, cents := fmt.Sprintf("customer-%d", n%customers), n+1
		events[n] = event{topic: topic, key: fmt.Sprintf("order-%04d", n), body: fmt.Sprintf(`{"customer":%q,"cents":%d}`, customer, cents)}
		want[customer] += int64(cents)
	}
	bad := event{topic: topic, key: "order-bad", body: `{"customer":"nobody","cents":-5}`}
	s.underKills(folder, args, append(events, bad), exampleOrders+1, map[string]string{topic: group})

	db := s.db()
	for customer, cents := range want {
		require.Equal(t, cents, number(t, db, `SELECT cents FROM totals WHERE customer = ?`, customer), customer)
	}
	require.EqualValues(t, customers, number(t, db, `SELECT count(*) FROM totals`))
	require.EqualValues(t, 1, number(t, db, `SELECT count(*) FROM parked`))
	require.EqualValues(t, 1, number(t, db, `SELECT count(*) FROM parked WHERE state = 'dead' AND reason = 'order-invalid'`))
	for _, look := range [][]string{{"keys", "show", "order-0001"}, {"dlq", "list"}} {
		said, err := exec.Command(binary, append(look, "--config", s.file)...).CombinedOutput()
		require.NoError(t, err, "%s", said)
		require.Contains(t, string(said), "shop/count")
	}
}

// shipOrders runs the example of commands and events.
func (s *system) shipOrders(commandGroup, eventGroup string, args ...string) {
	t := s.t
	commands, events := s.service+".commands", s.service+".events"
	sent := make([]event, exampleOrders)
	want := int64(0)
	for n := range sent {
		sent[n] = event{topic: commands, key: fmt.Sprintf("ship-%04d", n), body: fmt.Sprintf(`{"order":"order-%04d","items":%d}`, n, n%9+1), command: "ShipOrder"}
		want += int64(n%9 + 1)
	}
	s.underKills("cqrs", append(args, "-service", s.service), sent, 2*exampleOrders, map[string]string{commands: commandGroup, events: eventGroup})

	db := s.db()
	for _, name := range []string{"shipped", "invoiced", "points"} {
		require.Equal(t, want, number(t, db, `SELECT n FROM counts WHERE name = ?`, name), name)
	}
	require.Zero(t, number(t, db, `SELECT count(*) FROM parked`))
	require.EqualValues(t, exampleOrders, number(t, db, `SELECT count(*) FROM processed_events WHERE scope = ? AND status = 'completed'`, s.service+"/books"))
}

// underKills runs two processes of an example, sends every event two or three times, kills one or each of them in mid-run, and stops them when everything that
// was sent has been delivered, nothing is left to publish, and so many keys are done. groups are the topics and who consumes them.
func (s *system) underKills(folder string, args []string, events []event, keys int64, groups map[string]string) {
	t := s.t
	t.Helper()
	programs, err := examples()
	require.NoError(t, err)
	args = append(args, "-postgres", s.settings["databases"].(node)["postgres"].(node)["dsn"].(string))
	both := []*replica{s.replica("a", false), s.replica("b", false)}
	for _, r := range both {
		r.program, r.args = filepath.Join(programs, folder), args
		r.start()
	}
	var all []event
	for n, e := range events {
		for range 2 + n%2 {
			all = append(all, e)
		}
	}
	sent := make(chan struct{})
	go func() { defer close(sent); s.sendFromSeveral(2, all) }()

	db := s.db()
	testenv.Eventually(t, time.Minute, func() error {
		return expect(number(t, db, `SELECT count(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'outbox'`), 1, "tables")
	})
	victims := both
	if s.broker == "kafka" {
		victims = both[:1] // each takes a session's timeout
	}
	for n, r := range victims {
		testenv.Eventually(t, 2*time.Minute, func() error {
			return atLeast(number(t, db, `SELECT count(*) FROM processed_events`), keys*int64(n+1)/4, "keys before the next kill")
		})
		require.NoError(t, r.running())
		r.kill()
		r.start()
	}
	<-sent
	testenv.Eventually(t, 2*time.Minute, func() error {
		if err := atLeast(number(t, db, `SELECT count(*) FROM processed_events`), keys, "keys"); err != nil {
			return err
		}
		if err := expect(number(t, db, `SELECT count(*) FROM outbox`), 0, "outbox"); err != nil {
			return err
		}
		for topic, group := range groups {
			if err := s.delivered(topic, group); err != nil {
				return err
			}
		}
		return nil
	})
	for _, r := range both {
		r.stop()
	}
}

// examples builds the programs of examples/ once, and returns their folder.
var examples = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(filepath.Dir(binary), "examples")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	said, err := exec.Command("go", "build", "-o", dir, "github.com/oncemill/oncemill/examples/...").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build the examples: %w: %s", err, said)
	}
	return dir, err
})

// delivered says what of a topic its group, on RabbitMQ a queue, has not got yet.
func (s *system) delivered(topic, group string) error {
	if s.broker == "rabbitmq" {
		conn, err := amqp.Dial(s.setting("url").(string))
		if err != nil {
			return err
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		queue, err := ch.QueueDeclarePassive(group, true, false, false, false, nil)
		if err != nil {
			return err
		}
		return expect(int64(queue.Messages), 0, "messages in the queue "+group)
	}
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	client, err := sarama.NewClient(testenv.Kafka(s.t), conf)
	if err != nil {
		return err
	}
	defer client.Close()
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	partitions, err := client.Partitions(topic)
	if err != nil {
		return err
	}
	committed, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: partitions})
	if err != nil {
		return err
	}
	for _, p := range partitions {
		end, err := client.GetOffset(topic, p, sarama.OffsetNewest)
		if err != nil {
			return err
		}
		if done := max(committed.GetBlock(topic, p).Offset, 0); done < end {
			return fmt.Errorf("group %s is at %d of %d in partition %d of %s", group, done, end, p, topic)
		}
	}
	return nil
}
