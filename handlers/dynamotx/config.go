package dynamotx

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/oncemill/oncemill/internal/awsconf"
)

// Config says where the tables are. Credentials are found as every program of Amazon's SDK finds them: variables of the environment, the
// shared files, the role of the container or machine.
type Config struct {
	// Endpoint is the URL of the service where it is not the region's own: a VPC endpoint, an emulator.
	Endpoint string `yaml:"endpoint" doc:"the URL of the service where it is not the region's own"`
	// Region is the AWS region. Where it is not set, the SDK's own settings count (AWS_REGION, the shared files).
	Region string `yaml:"region" doc:"the AWS region; the SDK's own setting unless set"`
	// Prefix begins the name of each table, so that several environments share an account. It is one application's alone: a relay publishes
	// whatever is in its table, to its own broker.
	Prefix string `yaml:"prefix" doc:"begins the name of each table"`
	// Create makes missing tables, billed on demand, and lets the service remove old keys. Without it a missing table is an error that
	// says how the table has to look.
	Create bool `yaml:"create" doc:"whether missing tables are made"`
	// Retention is how long the keys table remembers a message: whole seconds, a minute or more. Set it to at least the binding's own
	// retention. A message that is taken up again later than that after its first attempt is parked in doubt.
	//
	// Defaults to 720h.
	Retention time.Duration `yaml:"retention" doc:"how long the keys table remembers a message; at least the binding's retention"`
}

// Defaults returns the configuration that stands before anything is read, with the tables' prefix.
func Defaults(prefix string) Config {
	return Config{Prefix: prefix, Retention: 30 * 24 * time.Hour}
}

var prefixes = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,200}$`)

// Validate returns all problems, each with the name of its key.
func (c Config) Validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(c.Endpoint != "" && !awsconf.ValidURL(c.Endpoint), "endpoint: write a URL such as https://dynamodb.eu-central-1.amazonaws.com, without user and password")
	refuse(!prefixes.MatchString(c.Prefix), "prefix %.250q: 1 to 200 letters, digits, '_', '.' and '-'", c.Prefix)
	refuse(c.Retention < time.Minute || c.Retention%time.Second != 0, "retention %s: whole seconds, a minute or more", c.Retention)
	return errors.Join(errs...)
}
