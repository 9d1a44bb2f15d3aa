package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Config sets up the store.
type Config struct {
	// URL is redis://user:password@host:6379/0, or rediss:// for TLS. Reserved characters in user and password are percent-encoded.
	URL string `yaml:"url"`
	// URLFile is a file that holds the URL instead. User and password are read from it again for each connection; another host or
	// database needs a restart.
	URLFile string `yaml:"url_file"`
	// Cluster are host:port of some nodes of a Redis Cluster, in place of a URL.
	Cluster []string `yaml:"cluster"`
	// Username and Password win over those of a URL.
	Username string `yaml:"username"`
	Password string `yaml:"password"`
	// PasswordFile is a file that holds the password, read again for each connection.
	PasswordFile string `yaml:"password_file"`
	// TLS is for rediss:// and for clusters; empty fields take the system's certificates.
	TLS TLS `yaml:"tls"`
	// Prefix begins every key of this store. Two applications on one server need two, unless their names differ. Defaults to "oncemill:".
	Prefix string `yaml:"prefix"`
	// AllowLoss lets external handlers start on a server that can lose a lease in ordinary operation, by eviction or by a restart without
	// persistence. A call that was under way then can be made twice, whatever unknown_outcome says. Defaults to false.
	AllowLoss bool `yaml:"allow_loss"`
}

// TLS names certificate files, read for each start.
type TLS struct {
	// Enabled turns TLS on for a cluster; the scheme rediss:// does for a URL.
	Enabled bool `yaml:"enabled"`
	// CAFile has the certificate authority of the servers.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile are the client's certificate, for mutual TLS.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ServerName is the name in the server's certificate, where it is not the host's.
	ServerName string `yaml:"server_name"`
}

const defaultPrefix = "oncemill:"

// errURL never carries the URL itself: it may have a password at any place.
var errURL = errors.New("url cannot be understood: write redis://user:password@host:6379/0, or rediss:// for TLS, with the reserved " +
	"characters of the password percent-encoded")

// Validate reports all that is wrong, without connecting.
func (c Config) Validate() error {
	var errs []error
	bad := func(text string) { errs = append(errs, errors.New(text)) }
	ways := 0
	for _, set := range []bool{c.URL != "", c.URLFile != "", len(c.Cluster) > 0} {
		if set {
			ways++
		}
	}
	switch {
	case ways == 0:
		bad("url is missing: write redis://host:6379/0, or set url_file or cluster")
	case ways > 1:
		bad("use only one of url, url_file and cluster")
	}
	if c.URL != "" {
		if opts, err := redis.ParseURL(c.URL); err != nil {
			errs = append(errs, errURL)
		} else if opts.TLSConfig == nil && c.TLS != (TLS{}) {
			bad("tls has settings, but the url has the scheme redis://: write rediss://")
		}
	}
	for _, node := range c.Cluster {
		if host, port, err := net.SplitHostPort(node); err != nil || host == "" || port == "" {
			bad(fmt.Sprintf("cluster: %q is not host:port", node))
		}
	}
	if len(c.Cluster) > 0 && !c.TLS.Enabled && c.TLS != (TLS{}) {
		bad("tls has settings but is off: set tls.enabled to true")
	}
	if c.Password != "" && c.PasswordFile != "" {
		bad("use only one of password and password_file")
	}
	if c.Username != "" && c.Password == "" && c.PasswordFile == "" {
		bad("username: set password or password_file, too")
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		bad("tls: cert_file and key_file belong together")
	}
	if strings.ContainsAny(c.Prefix, "{} \t\r\n") {
		bad("prefix: no braces and no white space")
	}
	return errors.Join(errs...)
}

// parseURL reads the URL, from its file where it is in one.
func (c Config) parseURL() (*redis.Options, error) {
	url := c.URL
	if c.URLFile != "" {
		var err error
		if url, err = readSecret("url_file", c.URLFile); err != nil {
			return nil, err
		}
	}
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, errURL
	}
	return opts, nil
}

// credentials returns user and password for a new connection.
func (c Config) credentials() (user, password string, err error) {
	user, password = c.Username, c.Password
	if c.PasswordFile != "" {
		if password, err = readSecret("password_file", c.PasswordFile); err != nil {
			return "", "", err
		}
	}
	if len(c.Cluster) > 0 || password != "" {
		return user, password, nil
	}
	opts, err := c.parseURL()
	if err != nil {
		return "", "", err
	}
	return opts.Username, opts.Password, nil
}

// readSecret reads a file that holds one secret, without the line's end. Its errors name the file only.
func readSecret(setting, file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", setting, err)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}

// tlsConfig is nil where TLS is off. base is what a URL asked for.
func (c Config) tlsConfig(base *tls.Config) (*tls.Config, error) {
	if base == nil && !c.TLS.Enabled {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.TLS.ServerName}
	if base != nil && conf.ServerName == "" {
		conf.ServerName = base.ServerName
	}
	if c.TLS.CAFile != "" {
		pem, err := os.ReadFile(c.TLS.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read tls.ca_file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("tls.ca_file has no certificate in PEM")
		}
	}
	if c.TLS.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.TLS.CertFile, c.TLS.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read tls.cert_file and tls.key_file: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}
