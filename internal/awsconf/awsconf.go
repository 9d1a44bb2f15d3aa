// Package awsconf is what adapters and handlers on Amazon's services have in common: where the SDK's settings come from, and whom an error blames.
package awsconf

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"
)

// Settings are the ones of an adapter's own section.
type Settings struct {
	// Region and Profile, where empty, are the SDK's own.
	Region, Profile string
	// Section is where they stand, such as "brokers.sqs", for errors; "" where that is not known.
	Section string
	// Connections is how many requests of one process may be on their way without dialling anew.
	Connections int
}

// Load returns the SDK's settings, and their transport as one whose connections the caller can close.
func Load(ctx context.Context, s Settings) (aws.Config, *http.Transport, error) {
	var options []func(*awsconfig.LoadOptions) error
	if s.Region != "" {
		options = append(options, awsconfig.WithRegion(s.Region))
	}
	if s.Profile != "" {
		options = append(options, awsconfig.WithSharedConfigProfile(s.Profile))
	}
	loaded, err := awsconfig.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return aws.Config{}, nil, fmt.Errorf("load the SDK's settings: %w", err)
	}
	if loaded.Region == "" {
		return aws.Config{}, nil, fmt.Errorf("no region is set: set %s, or AWS_REGION", strings.TrimPrefix(s.Section+".region", "."))
	}
	// What the SDK would tell in its own log comes back as an error as well.
	loaded.Logger = logging.Nop{}
	// The SDK's own, with the certificates that its settings name.
	sdk := awshttp.NewBuildableClient()
	if configured, ok := loaded.HTTPClient.(*awshttp.BuildableClient); ok {
		sdk = configured
	}
	transport := sdk.GetTransport()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = s.Connections, s.Connections
	return loaded, transport, nil
}

// ValidURL reports whether text is a URL of http or https without user and password.
func ValidURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.User == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}
