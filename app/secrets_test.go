package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/internal/testenv/smtpsink"
)

// What must never be seen, in both of its forms, and a part of both.
const (
	password        = "s3cr3t-Zq!"
	passwordEncoded = "s3cr3t-Zq%21"
	passwordPart    = "s3cr3t"
)

// F083: nothing listens at port 1, so every adapter has to say what it could not reach. Whatever command it is, at
// debug level, neither form of the password is in what it says; the host is.
func TestF083NoSecretInAnyOutput(t *testing.T) {
	t.Parallel()
	const host = "127.0.0.1:1"
	for name, env := range map[string][]string{
		"rabbitmq":          {"BROKER=rabbitmq", "BROKERS__RABBITMQ__URL=amqp://shop:" + password + "@" + host + "/"},
		"rabbitmq, encoded": {"BROKER=rabbitmq", "BROKERS__RABBITMQ__URL=amqp://shop:" + passwordEncoded + "@" + host + "/"},
		"rabbitmq, broken":  {"BROKER=rabbitmq", "BROKERS__RABBITMQ__URL=amqp://shop:" + password + "%@" + host + ":x/"},
		"kafka": {"BROKER=kafka", "BROKERS__KAFKA__BROKERS=" + host, "BROKERS__KAFKA__SASL__MECHANISM=SCRAM-SHA-512",
			"BROKERS__KAFKA__SASL__USER=shop", "BROKERS__KAFKA__SASL__PASSWORD=" + password},
		"nats":              {"BROKER=nats", "BROKERS__NATS__URL=nats://shop:" + passwordEncoded + "@" + host},
		"nats, apart":       {"BROKER=nats", "BROKERS__NATS__URL=nats://" + host, "BROKERS__NATS__USER=shop", "BROKERS__NATS__PASSWORD=" + password},
		"nats, token":       {"BROKER=nats", "BROKERS__NATS__URL=nats://" + password + "@" + host},
		"postgres":          {"DATABASE=postgres", "DATABASES__POSTGRES__DSN=postgres://shop:" + password + "@" + host + "/shop"},
		"postgres, encoded": {"DATABASE=postgres", "DATABASES__POSTGRES__DSN=postgres://shop:" + passwordEncoded + "@" + host + "/shop"},
		"postgres, words":   {"DATABASE=postgres", "DATABASES__POSTGRES__DSN=host=127.0.0.1 port=1 user=shop dbname=shop password=" + password},
		"mysql":             {"DATABASE=mysql", "DATABASES__MYSQL__DSN=shop:" + password + "@tcp(" + host + ")/shop"},
		"mysql, broken":     {"DATABASE=mysql", "DATABASES__MYSQL__DSN=shop:" + password + "@tcp(" + host + "/shop"},
		"mysql, URL":        {"DATABASE=mysql", "DATABASES__MYSQL__DSN=mysql://shop:" + passwordEncoded + "@" + host + "/shop"},
		"postgres, broken":  {"DATABASE=postgres", "DATABASES__POSTGRES__DSN=postgres://shop:" + password + "%@" + host + ":x/shop"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConsole(t, Builtin(), append(env, "LOG__LEVEL=debug",
				"TELEMETRY__OTLP_ENDPOINT=http://shop:"+passwordEncoded+"@"+host, "TELEMETRY__OTLP_AUTHORIZATION=Bearer "+password)...)
			c.patience = time.Second // adapters may go on trying
			var all strings.Builder
			for _, args := range [][]string{
				{"run"}, {"guarantees"}, {"publish", "payments.requested", "--data", "{}"}, {"keys", "list"}, {"migrate", "status"},
				{"config", "check"}, {"config", "print"}, {"guarantees", "--json"}, {"run", "--set", "bindings.x=y"},
			} {
				a := c.do(args...)
				if args[0] == "run" {
					require.NotEqual(t, ExitOK, a.code, args)
					if !strings.HasSuffix(name, "broken") && len(args) == 1 {
						require.Contains(t, a.errs, "127.0.0.1", "the host helps")
					}
				}
				all.WriteString(a.out + a.errs)
			}
			require.NotContains(t, all.String(), passwordPart)
		})
	}
}

// F083: the mail server's password, a body and an address are in nothing that the running program says, also when
// the server is away, a letter is refused, and a handler panics with the message in its hands.
func TestF083NoSecretAndNoBodyWhileItRuns(t *testing.T) {
	t.Parallel()
	sink := smtpsink.Start(t, smtpsink.Options{StartTLS: true, Username: "shop", Password: "another", Faults: smtpsink.Faults{}})
	l := &tally{}
	l.does(func(_ context.Context, _ handlers.Tx, msg *message.Message) error {
		if strings.Contains(string(msg.Payload), "panic") {
			var none map[string]*message.Message
			none["x"].Payload = msg.Payload // a nil pointer
		}
		return errors.New("no reason")
	})
	host, port, _ := strings.Cut(sink.Addr(), ":")
	set := Builtin()
	set.Plugins = append(set.Plugins, l.plugin())
	for _, level := range []string{"info", "debug"} {
		t.Run(level, func(t *testing.T) {
			c := newConsole(t, set, "LOG__LEVEL="+level, "LOG__FORMAT=text",
				"PLUGINS__EMAIL__CONFIG__TRANSPORT=smtp", "PLUGINS__EMAIL__CONFIG__FROM=shop@example.org",
				"PLUGINS__EMAIL__CONFIG__SMTP__HOST="+host, "PLUGINS__EMAIL__CONFIG__SMTP__PORT="+port, "PLUGINS__EMAIL__CONFIG__SMTP__TLS=none",
				"PLUGINS__EMAIL__CONFIG__SMTP__USERNAME=shop", "PLUGINS__EMAIL__CONFIG__SMTP__PASSWORD="+password,
				"BINDINGS__EMAIL_REQUESTED__RETRY__IN_PROCESS=0s", "BINDINGS__TALLY__RETRY__ATTEMPTS=1",
			)
			run := c.start()
			c.publish("email.requested", "m-1", `{"to":"alice@example.org","subject":"private-subject","text":"private-body"}`)
			c.publish("email.requested", "m-2", `{"to":"alice@example.org\nBcc: bob@example.org","subject":"private-subject","text":"private-body"}`)
			c.publish("payments.requested", "p-1", `{"payment_id":"private-body"`)
			c.publish(tallyTopic, "t-1", `{"private-body":"panic"}`)
			testenv.Eventually(t, 20*time.Second, func() error {
				return errors.Join(run.counts("oncemill_failures_total", `reason="panic"`, 1),
					run.counts("oncemill_failures_total", `reason="payload-not-json"`, 1),
					run.counts("oncemill_failures_total", `scope="oncemill/email-requested"`, 2))
			})
			status, metrics, err := run.get("/metrics")
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, status)
			run.end()
			said := run.errs.String() + metrics + c.ok("config", "print")
			require.Contains(t, said, "where the handler panicked")
			require.Contains(t, said, host)
			for _, private := range []string{passwordPart, "private-body", "private-subject"} {
				require.NotContains(t, said, private)
			}
			if level == "info" {
				require.NotContains(t, said, "alice@")
				require.NotContains(t, said, "bob@")
				for _, key := range []string{"m-1", "m-2", "p-1", "t-1"} {
					require.NotContains(t, said, fmt.Sprintf("%q", key))
					require.NotContains(t, said, "="+key+" ")
				}
			}
		})
	}
}
