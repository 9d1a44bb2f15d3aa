package dynamostore

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/oncemill/oncemill/internal/awsconf"
)

// Name is what --keys takes.
const Name = "dynamodb"

// Config sets up the store. Credentials are found as every program of Amazon's SDK finds them: variables of the environment, the shared
// files, the role of the container or machine.
type Config struct {
	// Region is the AWS region. Where it is not set, the SDK's own settings count (AWS_REGION, the shared files).
	Region string `yaml:"region"`
	// Endpoint is the URL of the service where it is not the region's own: a VPC endpoint, an emulator.
	Endpoint string `yaml:"endpoint"`
	// Profile is a profile of the SDK's shared files.
	Profile string `yaml:"profile"`
	// Table holds the keys. Two applications may share it, unless their names are the same. Defaults to "oncemill-keys".
	Table string `yaml:"table"`
	// Create makes the table where it is missing, paid by request, and turns on its time to live, which removes expired keys, where that is off. Nothing else of
	// an existing table is changed; it is checked. Defaults to false.
	Create bool `yaml:"create"`
	// AllowLoss lets external handlers start on a global table whose replicas take writes of their own, where another replica can
	// overwrite a lease. A call that was under way then can be made twice, whatever unknown_outcome says. Defaults to false.
	AllowLoss bool `yaml:"allow_loss"`
}

func defaults() Config { return Config{Table: "oncemill-keys"} }

var tableNames = regexp.MustCompile(`^[A-Za-z0-9_.-]{3,255}$`)

// Validate reports all that is wrong, without connecting.
func (c Config) Validate() error {
	var errs []error
	if c.Endpoint != "" && !awsconf.ValidURL(c.Endpoint) {
		errs = append(errs, errors.New("endpoint: write a URL such as https://dynamodb.eu-central-1.amazonaws.com, without user and password"))
	}
	if !tableNames.MatchString(c.Table) {
		errs = append(errs, fmt.Errorf("table %.300q: 3 to 255 letters, digits, '_', '.' and '-'", c.Table))
	}
	return errors.Join(errs...)
}

func load(decode func(any) error) (Config, error) {
	c := defaults()
	if err := decode(&c); err != nil {
		return c, err
	}
	return c, c.Validate()
}
