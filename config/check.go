package config

import (
	"fmt"
	"net"
	"regexp"
	"strings"
)

// Names that become parts of queues, groups and subjects on every broker.
var (
	serviceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$`)
	topicName   = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)
	scopeName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,99}$`)
)

// check looks at values that depend on one another, or whose form no type tells.
func (c *Config) check(p *problems) {
	add := func(path, format string, args ...any) { p.add(c.loaded.origins[path], path, format, args...) }
	if !serviceName.MatchString(c.Service) {
		add("service", "%q must be 1 to 40 letters, digits, '_' or '-', and begin with a letter or digit", c.Service)
	}
	if c.DataDir == "" {
		add("data_dir", "must not be empty")
	}
	if err := c.Admin.check(); err != nil {
		add("admin.listen", "%s", err)
	}
	if c.Telemetry.SampleRatio < 0 || c.Telemetry.SampleRatio > 1 {
		add("telemetry.sample_ratio", "%v is not between 0 and 1", c.Telemetry.SampleRatio)
	}
	if e := c.Telemetry.OTLPEndpoint; e != "" && !strings.HasPrefix(e, "http://") && !strings.HasPrefix(e, "https://") {
		add("telemetry.otlp_endpoint", "must begin with http:// or https://")
	}
	if c.Telemetry.OTLPAuthorization != "" && c.Telemetry.OTLPAuthorizationFile != "" {
		add("telemetry.otlp_authorization", "is given as a value and as a file; keep one")
	}
	for _, name := range sortedKeys(c.Bindings) {
		c.Bindings[name].check("bindings."+name, add)
	}
}

// Address returns the address to listen at, and false where nothing is to be served.
func (a Admin) Address() (string, bool) {
	return a.Listen, a.Listen != "" && a.Listen != "off"
}

func (a Admin) check() error {
	address, on := a.Address()
	if !on {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%q must be host:port such as 127.0.0.1:8480, or off", a.Listen)
	}
	return nil
}

func (b Binding) check(path string, add func(path, format string, args ...any)) {
	if b.Topic != "" && (len(b.Topic) > 45 || !topicName.MatchString(b.Topic)) {
		add(path+".topic", "%q must be at most 45 letters, digits, '.', '_' or '-', with no empty part between dots", b.Topic)
	}
	if b.Scope != "" && !scopeName.MatchString(b.Scope) {
		add(path+".scope", "%q must be at most 100 letters, digits, '.', '_', '/' or '-', and begin with a letter or digit", b.Scope)
	}
	if first, most := b.Retry.First, b.Retry.Max; first > 0 && most > 0 && first > most {
		add(path+".retry.first", "%s is longer than max, %s", first, most)
	}
	if b.Retention > 0 && b.Retention < b.Retry.Total() {
		add(path+".retention", "%s is shorter than the retries of one message can take, %s: a copy that fails for so long would run after its key was forgotten; keep keys longer, or retry for less",
			b.Retention, b.Retry.Total())
	}
}

// Total is how long one message can wait for retries before it is a dead letter, with defaults for what is not set.
func (r Retry) Total() Duration {
	attempts, wait, most := r.Attempts, r.First, r.Max
	if attempts == 0 {
		attempts = 10
	}
	if wait == 0 {
		wait = 5 * Second
	}
	if most == 0 {
		most = Hour
	}
	var total Duration
	for i := 1; i < attempts; i++ {
		if wait = min(wait, most); wait == most {
			return total + Duration(attempts-i)*most
		}
		total += wait
		wait *= 2
	}
	return total
}
