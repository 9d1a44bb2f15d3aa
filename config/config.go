package config

// Config is the whole configuration of an application.
type Config struct {
	// Name of this application: the first part of every binding's scope, and so of its queues and consumer groups.
	// Change it only for another application: under a new name every key is unknown, and messages that were handled run again.
	Service string `yaml:"service"`
	// Broker that messages come from and go to. "embedded" is NATS JetStream in this process, on disk, and needs nothing installed.
	Broker string `yaml:"broker" enum:"embedded,rabbitmq,kafka,nats,sql,sqs" known:"brokers"`
	// Database of effects, outbox, parked messages and, by default, keys. "sqlite" is a file in data_dir and needs nothing installed.
	Database string `yaml:"database" enum:"sqlite,postgres,mysql" known:"databases"`
	// Where idempotency keys are kept: "database" commits them with the effect, and every other place adds to that. "redis" and "dynamodb" hold
	// the leases of handlers whose effect lies outside the database, and hints that spare duplicates a transaction; their settings are below databases. "kafka" commits them with consumed offsets and produced messages in one Kafka transaction.
	Keys string `yaml:"keys" enum:"database,redis,dynamodb,kafka" known:"keys"`
	// Folder for the files of the embedded broker and of SQLite. It is made where it does not exist.
	DataDir string `yaml:"data_dir"`
	// What to do with the tables at start: "auto" brings them up to date, "verify" only checks, and needs no rights to change them.
	Migrate string `yaml:"migrate" enum:"auto,verify"`
	// How long a stop waits for messages in flight. What is left is handed back to the broker.
	ShutdownTimeout Duration `yaml:"shutdown_timeout" check:"positive"`
	// Largest payload of a message, in bytes or with a unit such as 2MiB. The broker must take it too.
	MaxPayload int `yaml:"max_payload" check:"size"`
	// How often a message may be under way when its process dies before it is taken for the cause and becomes a dead letter.
	CrashLimit int `yaml:"crash_limit" check:"positive"`

	// Whether a binding may start at the oldest message although it ran before, where its broker has lost its position: Kafka
	// forgets the offsets of a group that stood still for days, and a new broker never had them. Keys still remove what they know.
	Replay bool `yaml:"replay"`

	Log       Log       `yaml:"log"`
	Admin     Admin     `yaml:"admin"`
	Telemetry Telemetry `yaml:"telemetry"`
	Relay     Relay     `yaml:"relay"`
	Feeder    Feeder    `yaml:"feeder"`
	Retention Retention `yaml:"retention"`

	// Settings of each broker by its name; the adapter documents the names inside. Those of brokers not in use are not read.
	Brokers map[string]Section `yaml:"brokers" known:"brokers"`
	// Settings of each database and key store by its name; the adapter documents the names inside.
	Databases map[string]Section `yaml:"databases" known:"stores"`
	// Plugins by their name.
	Plugins map[string]Plugin `yaml:"plugins" known:"plugins"`
	// Bindings by their name: what is not set here is what the plugin declares, else the default.
	Bindings map[string]Binding `yaml:"bindings" known:"bindings"`

	loaded *loader
}

// Log is what is logged, and how.
type Log struct {
	// Least level that is logged. Payloads are never logged, keys at "debug" only.
	Level string `yaml:"level" enum:"debug,info,warn,error"`
	// Form of a record: "text" for people, "json" for machines.
	Format string `yaml:"format" enum:"text,json"`
}

// Admin is the server of metrics and health.
type Admin struct {
	// Address that serves /metrics, /healthz and /readyz. "off" serves nothing. It has no authentication: keep it inside.
	Listen string `yaml:"listen"`
}

// Telemetry is where traces go.
type Telemetry struct {
	// URL of an OpenTelemetry collector (OTLP over HTTP), such as http://localhost:4318. Without it no traces are sent.
	OTLPEndpoint string `yaml:"otlp_endpoint"`
	// Value of the Authorization header for the collector.
	OTLPAuthorization Secret `yaml:"otlp_authorization"`
	// File that holds the value of the Authorization header.
	OTLPAuthorizationFile string `yaml:"otlp_authorization_file"`
	// Share of new traces that is recorded, from 0 to 1. A trace that a producer began is recorded as it decided.
	SampleRatio float64 `yaml:"sample_ratio"`
}

// Relay publishes the outbox.
type Relay struct {
	// Whether this process publishes the outbox. Some process must.
	Enabled bool `yaml:"enabled"`
	// Most messages in one batch. A crash repeats at most one batch for each lane, under the same identities.
	Batch int `yaml:"batch" check:"positive"`
	// How long an idle relay waits before it looks again. Commits wake it sooner.
	Poll Duration `yaml:"poll" check:"positive"`
	// How often a message is tried before it is set aside. An unreachable broker does not count.
	MaxAttempts int `yaml:"max_attempts" check:"positive"`
}

// Feeder runs parked messages that are due.
type Feeder struct {
	// Most parked messages that run at once.
	Concurrency int `yaml:"concurrency" check:"positive"`
}

// Retention is how long what is not a key is kept. That of keys belongs to each binding.
type Retention struct {
	// How long a dead letter is kept.
	DeadLetters Duration `yaml:"dead_letters" check:"positive"`
	// How often expired keys and dead letters are removed.
	CleanEvery Duration `yaml:"clean_every" check:"positive"`
}

// Plugin is the configuration of one plugin.
type Plugin struct {
	// Whether the plugin's bindings run. Defaults to true, except for a plugin that has to be asked for.
	Enabled *bool `yaml:"enabled"`
	// Settings of the plugin; it documents the names inside.
	Config Section `yaml:"config"`
}

// On reports whether the plugin is enabled, where the configuration does not say otherwise than byDefault.
func (p Plugin) On(byDefault bool) bool {
	if p.Enabled == nil {
		return byDefault
	}
	return *p.Enabled
}

// Decode fills the plugin's own configuration. See Section.Decode.
func (p Plugin) Decode(ptr any) error { return p.Config.Decode(ptr) }

// Binding is the configuration of one binding. A zero field leaves the decision to the plugin, and then to the default.
type Binding struct {
	// Whether the binding runs. Defaults to true.
	Enabled *bool `yaml:"enabled"`
	// Logical topic. Defaults to the plugin's. Another topic with the same scope keeps the keys.
	Topic string `yaml:"topic"`
	// Scope of the keys, in place of one made of service and binding. Set it to the old scope when a binding is renamed, and its keys stay known.
	Scope string `yaml:"scope"`
	// Where this binding's keys are kept. Defaults to the application's.
	Keys string `yaml:"keys" enum:"database,redis,dynamodb,kafka" known:"keys"`
	// How long a completed key is kept. It must outlast the longest redelivery, also one that a person starts. Defaults to the plugin's, else 7d.
	Retention Duration `yaml:"retention" check:"positive"`
	// Most handlers that run at once. Defaults to 8.
	Concurrency int `yaml:"concurrency" check:"positive"`
	// How long one run of the handler may take. A handler that overruns it is abandoned and its transaction rolled back. Defaults to 30s.
	Timeout Duration `yaml:"timeout" check:"positive"`
	// Isolation of the handler's transaction. Defaults to "read committed".
	Isolation string `yaml:"isolation" enum:"read committed,repeatable read,serializable"`
	// Where the idempotency key comes from: metadata:NAME, json:/pointer, cloudevents, amqp-message-id, nats-msg-id,
	// sqs-deduplication-id, kafka-record-key or position. Defaults to metadata:idempotency-key.
	Key string `yaml:"key"`
	// What becomes of a message without a key: "reject" makes it a dead letter, "derive" takes a hash of the payload, "pass" runs
	// it without deduplication. Defaults to "reject".
	MissingKey string `yaml:"missing_key" enum:"reject,derive,pass"`
	// What tells two payloads of one key apart: payload, json, json:/pointer,/pointer or off. Defaults to payload.
	Fingerprint string `yaml:"fingerprint"`
	// What becomes of later messages of an ordering key after a dead letter or a message in doubt: "continue" runs them, "hold" keeps
	// them behind it until a person decides. Defaults to "continue".
	Order string `yaml:"order" enum:"continue,hold"`
	// Whether messages of one ordering key keep their order over all replicas. A broker that cannot promise it refuses to
	// start. Defaults to what the plugin declares.
	Ordered *bool `yaml:"ordered"`
	Retry   Retry `yaml:"retry"`
	// What becomes of an outside call whose outcome is not known: "park" leaves it to a person, "retry" calls again (the provider must
	// deduplicate), "probe" asks the provider. Defaults to the plugin's, else "park".
	UnknownOutcome string `yaml:"unknown_outcome" enum:"park,retry,probe"`
	// What becomes of a duplicate: "skip" acknowledges it, "resend" publishes the first run's messages again, under their same identities: consumers must keep their keys as long as this binding does. It needs the keys in the database. Defaults to "skip".
	OnDuplicate string `yaml:"on_duplicate" enum:"skip,resend"`
	// Settings of the binding; the plugin documents the names inside.
	Config Section `yaml:"config"`
}

// On reports whether the binding is enabled.
func (b Binding) On() bool { return b.Enabled == nil || *b.Enabled }

// Hold reports whether later messages of an ordering key wait behind its dead letter.
func (b Binding) Hold() bool { return b.Order == "hold" }

// Retry is when a failed message is tried again.
type Retry struct {
	// Failures after which the message becomes a dead letter. Defaults to 10.
	Attempts int `yaml:"attempts" check:"positive"`
	// Wait after the first failure; it doubles with each. Defaults to 5s.
	First Duration `yaml:"first" check:"positive"`
	// Longest wait. Defaults to 1h.
	Max Duration `yaml:"max" check:"positive"`
	// How long a message is tried again in the process before it is parked. "0s" parks it at once. Defaults to 1s.
	InProcess *Duration `yaml:"in_process" check:"not-negative"`
}

// Defaults is the configuration where nothing is configured.
func Defaults() *Config {
	return &Config{
		Service:         "oncemill",
		Broker:          "embedded",
		Database:        "sqlite",
		Keys:            "database",
		DataDir:         "./oncemill-data",
		Migrate:         "auto",
		ShutdownTimeout: 30 * Second,
		MaxPayload:      1 << 20,
		CrashLimit:      5,
		Log:             Log{Level: "info", Format: "text"},
		Admin:           Admin{Listen: "127.0.0.1:8480"},
		Telemetry:       Telemetry{SampleRatio: 1},
		Relay:           Relay{Enabled: true, Batch: 100, Poll: Second / 2, MaxAttempts: 20},
		Feeder:          Feeder{Concurrency: 8},
		Retention:       Retention{DeadLetters: 90 * Day, CleanEvery: Minute},
	}
}
