package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/app/proof"
	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// Times of a trial: leases are short, so that what a dead process held is taken over soon.
const (
	proveLease = 3 * time.Second
	proveHang  = 2 * time.Second // the timeout of handlers
)

// site is what a trial stands on: a service of its own on the configured broker and database.
type site struct {
	app   *App // the producer: it serves the embedded broker and reads the books
	mail  *proof.Mailbox
	dir   string
	spare bool // the folder is temporary
	plan  history.Plan
	start proof.Start
	lines []string
}

// prepare makes the site. What it returns is to be closed also after an error.
func (p *prove) prepare(ctx context.Context) (*site, error) {
	s := &site{dir: p.dir, spare: p.dir == ""}
	var err error
	if s.spare {
		s.dir, err = os.MkdirTemp("", "oncemill-prove-")
	} else {
		err = os.MkdirAll(s.dir, 0o700)
	}
	if err != nil {
		return s, fmt.Errorf("make a folder for the trial: %w", err)
	}
	if s.mail, err = proof.OpenMailbox(); err != nil {
		return s, err
	}
	configured, err := p.cli.load()
	if err != nil {
		return s, withCode(ExitUsage, err)
	}
	flags := trialFlags{p.cli.flags}.isolate(configured.Broker, configured.Database, s.dir, p.cast.Topics())
	for _, plugin := range p.cli.set.Plugins {
		flags.set("plugins."+plugin.Name+".enabled", strconv.FormatBool(slices.Contains(p.cast.Plugins(), plugin.Name)))
	}
	if !p.own() {
		flags.mailTo(s.mail.Port())
	}
	for _, b := range p.cast.Bindings() {
		flags.bind(b)
		if b.Letters && configured.Bindings[b.Name].UnknownOutcome == "" {
			flags.set("bindings."+b.Name+".unknown_outcome", "retry") // the mailbox counts letters by Message-ID
		}
	}
	if s.app, err = p.application(flags.values); err != nil {
		return s, err
	}
	if err := s.plans(p); err != nil {
		return s, err
	}
	if err := within(ctx, commandPatience, s.app, (*App).Open); err != nil {
		return s, err
	}
	if err := s.refuseOthers(ctx, p.besideOthers); err != nil {
		return s, err
	}
	s.start = proof.Start{File: p.cli.file, Flags: flags.values, Lease: proveLease, Hang: proveHang, Lines: s.lines}
	if err := s.app.prepare(ctx); err != nil {
		return s, err
	}
	return s, s.gather(ctx)
}

// own reports that plugins of this program are played that bring a trial of their own.
func (p *prove) own() bool {
	return !p.builtin && slices.ContainsFunc(p.cli.set.Plugins, func(plugin handlers.Plugin) bool { return plugin.Trial != nil })
}

// chooses returns what is played: the plugins that bring a trial of their own, or those that ship.
func (p *prove) chooses() (proof.Cast, error) {
	if !p.own() {
		return proof.Builtin(), nil
	}
	asked := map[string]string{}
	maps.Copy(asked, p.cli.flags)
	for _, plugin := range p.cli.set.Plugins {
		asked["plugins."+plugin.Name+".enabled"] = strconv.FormatBool(plugin.Trial != nil)
	}
	a, err := p.application(asked) // opens nothing: it knows the bindings
	if err != nil {
		return nil, err
	}
	var roles []proof.Role
	for _, b := range a.bindings {
		if b.transform != nil && b.inBroker() {
			return nil, withCode(ExitUsage, fmt.Errorf("binding %s: its keys are in the broker's own transactions, which prove cannot break", b.name))
		}
		roles = append(roles, proof.Role{Plugin: b.plugin, Binding: history.Binding{Name: b.name, Topic: b.topic, External: b.engine.External != nil}})
	}
	return proof.Own(roles), a.Close()
}

// application is this program with those settings.
func (p *prove) application(flags map[string]string) (*App, error) {
	c := &cli{set: p.cli.set, in: p.cli.in, out: p.cli.out, errs: p.cli.errs, env: p.cli.env, file: p.cli.file, flags: flags}
	return c.app()
}

// plans says what the trial is judged by.
func (s *site) plans(p *prove) error {
	cfg := s.app.cfg
	s.plan = history.Plan{Seed: p.seed, Broker: cfg.Broker, Database: cfg.Database, Keys: cfg.Keys, Open: p.own()}
	var missing []string
	for _, b := range p.cast.Bindings() {
		at := slices.IndexFunc(s.app.bindings, func(own binding) bool { return own.name == b.Name })
		if at < 0 {
			missing = append(missing, b.Name)
			continue
		}
		own := s.app.bindings[at]
		b.Scope = own.engine.Scope
		if own.engine.External != nil {
			b.Policy = string(own.engine.External.Unknown)
		}
		s.plan.Bindings = append(s.plan.Bindings, b)
	}
	if len(missing) > 0 {
		return withCode(ExitUsage, fmt.Errorf("this program lacks the bindings %s: a trial runs the plugins payments, email, counters and journal", strings.Join(missing, ", ")))
	}
	if cfg.Database != "sqlite" {
		s.lines = append(s.lines, proof.LineDatabase)
	}
	if cfg.Broker != "sql" && cfg.Broker != "sqs" {
		s.lines = append(s.lines, proof.LineBroker)
	}
	if cfg.Keys == "redis" {
		s.lines = append(s.lines, proof.LineKeys)
	}
	return nil
}

// topology is the application's, with a group for each topic that it publishes to and nobody receives: what a broker can give to nobody stays in the outbox.
func (s *site) topology() map[string][]broker.Subscription {
	topics := s.app.topology()
	for topic, groups := range topics {
		if len(groups) == 0 {
			topics[topic] = []broker.Subscription{{Topic: topic, Group: s.app.cfg.Service + ".audience"}}
		}
	}
	return topics
}

// gather declares the groups that only the trial has.
func (s *site) gather(ctx context.Context) error {
	for topic, groups := range s.topology() {
		if err := s.app.broker.Declare(ctx, topic, groups); err != nil {
			return fmt.Errorf("declare topic %s: %w", topic, err)
		}
	}
	return nil
}

// refuseOthers keeps away from a database in which other services have their keys.
func (s *site) refuseOthers(ctx context.Context, allowed bool) error {
	sets, err := s.app.migrations()
	if err != nil {
		return err
	}
	pending, err := s.app.store.Pending(ctx, sets)
	if err != nil || len(pending) > 0 && slices.ContainsFunc(pending, func(m string) bool { return strings.HasPrefix(m, "store/") }) {
		return err // there is nothing yet
	}
	scopes, err := s.app.store.Keys().Scopes(ctx)
	if err != nil {
		return fmt.Errorf("list the scopes in the database: %w", err)
	}
	var others []string
	for scope := range scopes {
		if !strings.HasPrefix(scope, s.app.cfg.Service+"/") {
			others = append(others, scope)
		}
	}
	if len(others) == 0 || allowed {
		return nil
	}
	slices.Sort(others)
	return withCode(ExitRefused, fmt.Errorf("the database holds keys of %s, and the trial's sums would count their rows: give it another database, or use --beside-other-services", strings.Join(others, ", ")))
}

// remover is a broker that can take back what Declare made.
type remover interface {
	// Remove deletes the topic with all its messages, and what the groups have in it.
	Remove(ctx context.Context, topic string, groups []broker.Subscription) error
}

// close removes what the trial made on servers, unless it is to be kept, and its folder, unless that is to be kept, and closes everything.
func (s *site) close(keep, keepFolder bool) error {
	if s == nil {
		return nil
	}
	var errs []error
	if s.app != nil {
		if !keep && s.app.broker != nil && s.app.store != nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			errs = append(errs, s.remove(ctx))
			cancel()
		}
		errs = append(errs, s.app.Close())
	}
	if s.mail != nil {
		errs = append(errs, s.mail.Close())
	}
	if s.spare && !keepFolder {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

func (s *site) remove(ctx context.Context) error {
	var errs []error
	if b, ok := s.app.broker.(remover); ok {
		for topic, groups := range s.topology() {
			if err := b.Remove(ctx, topic, groups); err != nil {
				errs = append(errs, fmt.Errorf("remove topic %s: %w", topic, err))
			}
		}
	} else if s.app.cfg.Broker != "embedded" {
		s.app.log.Warn("this broker cannot remove topics: delete those of the service", "service", s.app.cfg.Service)
	}
	schema := schemaOf(s.app.cfg.Service)
	for dialect, statement := range map[string]string{
		"postgres": "DROP SCHEMA IF EXISTS " + schema + " CASCADE", "mysql": "DROP DATABASE IF EXISTS " + schema,
	} {
		if s.app.store.Dialect() == dialect {
			if _, err := s.app.store.DB().ExecContext(ctx, statement); err != nil {
				errs = append(errs, fmt.Errorf("remove the tables: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// trialFlags are settings by their paths.
type trialFlags struct{ values map[string]string }

func (f trialFlags) set(path, value string) { f.values[path] = value }

// isolate gives the trial a name and places of its own; what else is configured stays.
func (f trialFlags) isolate(brokerName, database, dir string, topics []string) trialFlags {
	service := "prove-" + uuid.NewString()[:8]
	own := map[string]string{
		"service": service, "data_dir": dir, "admin.listen": "off", "migrate": "auto", "relay.enabled": "true", "shutdown_timeout": "20s", "log.level": "warn",
	}
	switch database {
	case "sqlite":
		own["databases.sqlite.path"] = filepath.Join(dir, "prove.db")
	case "postgres", "mysql":
		own["databases."+database+".schema"] = schemaOf(service)
	}
	switch brokerName {
	case "rabbitmq", "kafka", "nats":
		own["brokers."+brokerName+".topology"] = "declare"
	case "sql":
		own["brokers.sql.schema"], own["brokers.sql.topology"], own["brokers.sql.visibility"] = schemaOf(service), "declare", "3s"
	case "sqs":
		// A prefix may have 14 characters.
		own["brokers.sqs.prefix"], own["brokers.sqs.topology"], own["brokers.sqs.visibility"] = strings.Replace(service, "prove", "p", 1)+"-", "declare", "8s"
	}
	for _, topic := range topics {
		at := "brokers." + brokerName + ".topics." + topic
		switch brokerName {
		case "rabbitmq":
			own[at+".exchange"] = service + "." + topic
		case "kafka":
			own[at+".name"] = service + "." + topic
		case "nats":
			own[at+".stream"], own[at+".subject"] = service+"-"+strings.ReplaceAll(topic, ".", "-"), service+"."+topic
		}
	}
	all := trialFlags{map[string]string{}}
	for _, values := range []map[string]string{f.values, own} {
		for path, value := range values {
			all.set(path, value)
		}
	}
	return all
}

func schemaOf(service string) string { return strings.ReplaceAll(service, "-", "_") }

// bind gives a binding its own topic and scope, and times that fit a trial.
func (f trialFlags) bind(b history.Binding) {
	at := "bindings." + b.Name + "."
	for name, value := range map[string]string{
		"enabled": "true", "topic": b.Topic, "scope": f.values["service"] + "/" + b.Name, "timeout": proveHang.String(), "key": envelope.DefaultKeySource,
		"retry.attempts": "30", "retry.first": "300ms", "retry.max": "2s", "retry.in_process": "100ms",
	} {
		f.set(at+name, value)
	}
}

// mailTo sends letters to the trial's own mailbox, and fixes what the plugins leave for each message.
func (f trialFlags) mailTo(port int) {
	for name, value := range map[string]string{
		"email.config.transport": "smtp", "email.config.from": "trial@example.org", "email.config.smtp.host": "127.0.0.1",
		"email.config.smtp.port": strconv.Itoa(port), "email.config.smtp.tls": "none", "email.config.smtp.username": "", "email.config.announce": "false",
		"email.config.confirmation.to": "{to}@example.org",
		"counters.config.per_payment":  strings.Join(proof.CountedPerPayment, ","),
	} {
		f.set("plugins."+name, value)
	}
}
