package scenario

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/IBM/sarama"
	"github.com/jmoiron/sqlx"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// foreign publishes as a program does that knows nothing of Oncemill or Watermill: with the broker's plain client library, without
// anything that would check the message.
func (s *system) foreign(topic string, headers map[string]string, body string) {
	s.t.Helper()
	switch s.broker {
	case "rabbitmq":
		s.foreignRabbit(topic, headers, body)
	case "kafka":
		s.foreignKafka(topic, headers, body)
	case "sql":
		s.foreignSQL(topic, headers, body)
	case "sqs":
		s.foreignSQS(topic, headers, body)
	default:
		s.foreignNATS(topic, headers, body)
	}
}

func (s *system) setting(names ...string) any {
	var part any = s.settings["brokers"].(node)[s.broker]
	for _, name := range names {
		part = part.(node)[name]
	}
	return part
}

func (s *system) foreignRabbit(topic string, headers map[string]string, body string) {
	t := s.t
	conn, err := amqp.Dial(s.setting("url").(string))
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	table := amqp.Table{}
	for name, value := range headers {
		table[name] = value
	}
	confirm, err := ch.PublishWithDeferredConfirm(topic, "", true, false, amqp.Publishing{
		Headers: table, Body: []byte(body), DeliveryMode: amqp.Persistent,
	})
	require.NoError(t, err)
	require.True(t, confirm.Wait())
}

func (s *system) foreignKafka(topic string, headers map[string]string, body string) {
	t := s.t
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	conf.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(s.setting("brokers").([]string), conf)
	require.NoError(t, err)
	defer producer.Close()
	msg := &sarama.ProducerMessage{Topic: s.setting("topics", topic, "name").(string), Value: sarama.StringEncoder(body)}
	for name, value := range headers {
		msg.Headers = append(msg.Headers, sarama.RecordHeader{Key: []byte(name), Value: []byte(value)})
	}
	_, _, err = producer.SendMessage(msg)
	require.NoError(t, err)
}

func (s *system) foreignSQL(topic string, headers map[string]string, body string) {
	t := s.t
	dsn := s.setting("dsn").(string)
	metadata, err := json.Marshal(headers)
	require.NoError(t, err)
	if !strings.HasPrefix(dsn, "postgres") {
		db, err := sqlx.Open("mysql", dsn)
		require.NoError(t, err)
		defer db.Close()
		_, err = db.Exec("INSERT INTO `watermill_"+topic+"` (uuid, payload, metadata) VALUES ('', ?, ?)", []byte(body), string(metadata))
		require.NoError(t, err)
		return
	}
	db, err := sqlx.Open("pgx", dsn)
	require.NoError(t, err)
	defer db.Close()
	_, err = db.Exec(`INSERT INTO "watermill_`+topic+`" (uuid, payload, metadata, transaction_id) VALUES ('', $1, $2, pg_current_xact_id())`, []byte(body), string(metadata))
	require.NoError(t, err)
}

// foreignNATS finds the embedded server as an operator would, by the file in the data folder.
func (s *system) foreignNATS(topic string, headers map[string]string, body string) {
	t := s.t
	data, err := os.ReadFile(filepath.Join(s.dir, "nats.address"))
	require.NoError(t, err)
	var at struct{ Address, Token string }
	require.NoError(t, json.Unmarshal(data, &at))
	nc, err := nats.Connect("nats://"+at.Address, nats.Token(at.Token))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	msg := &nats.Msg{Subject: topic, Data: []byte(body), Header: nats.Header{}}
	for name, value := range headers {
		msg.Header[name] = []string{value}
	}
	_, err = js.PublishMsg(t.Context(), msg)
	require.NoError(t, err)
}
