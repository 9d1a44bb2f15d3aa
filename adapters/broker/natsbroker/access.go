package natsbroker

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/adapters/internal/tlsfault"
)

// servers are the addresses out of a URL list, with what gave access taken out, so
// that no error or log can show it.
type servers struct {
	urls     []string
	user     string
	password string
	token    string
}

// parseServers reads a list of server URLs. Its errors show nothing of the list: it may hold a password.
func parseServers(list string) (servers, error) {
	var s servers
	for _, text := range strings.Split(list, ",") {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		if !strings.Contains(text, "://") {
			text = "nats://" + text
		}
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" {
			return servers{}, errors.New("url: not a list of server addresses such as nats://host:4222; a password with special characters must be percent-encoded")
		}
		switch u.Scheme {
		case "nats", "tls", "ws", "wss":
		default:
			return servers{}, errors.New("url: the scheme must be nats, tls, ws or wss")
		}
		s.takeAccess(u)
		if u.Port() == "" && (u.Scheme == "nats" || u.Scheme == "tls") {
			u.Host = net.JoinHostPort(u.Hostname(), "4222")
		}
		s.urls = append(s.urls, u.String())
	}
	if len(s.urls) == 0 {
		return servers{}, errors.New("url: no server is named; set it to something like nats://host:4222")
	}
	return s, nil
}

// takeAccess moves user and password out of u. A user without a password is a token, as it is to every NATS client.
func (s *servers) takeAccess(u *url.URL) {
	if u.User == nil {
		return
	}
	if password, ok := u.User.Password(); ok {
		s.user, s.password = u.User.Username(), password
	} else {
		s.token = u.User.Username()
	}
	u.User = nil
}

// servers reads the addresses, from the file where there is one.
func (c *Config) servers() (servers, error) {
	list := c.URL
	if c.URLFile != "" {
		text, err := readSecret(c.URLFile)
		if err != nil {
			return servers{}, err
		}
		list = text
	}
	return parseServers(list)
}

// accessOptions are the client's options for authentication and TLS. Secrets are fetched for each connection.
func (c *Config) accessOptions(s servers) ([]nats.Option, error) {
	opts := c.tlsOptions()
	switch {
	case c.CredsFile != "":
		return append(opts, nats.UserCredentials(c.CredsFile)), nil
	case c.NKeyFile != "":
		option, err := nats.NkeyOptionFromSeed(c.NKeyFile)
		if err != nil {
			return nil, err
		}
		return append(opts, option), nil
	case c.User != "":
		return append(opts, nats.UserInfoHandler(c.login)), nil
	case s.token != "":
		return append(opts, nats.TokenHandler(func() string {
			now, _ := c.servers()
			return now.token
		})), nil
	case s.user != "":
		return append(opts, nats.UserInfoHandler(func() (string, string) {
			now, _ := c.servers()
			return now.user, now.password
		})), nil
	}
	return opts, nil
}

// login returns user and password. Where the file cannot be read the server refuses the empty password, and the client tries again.
func (c *Config) login() (user, password string) {
	if c.PasswordFile == "" {
		return c.User, c.Password
	}
	password, _ = readSecret(c.PasswordFile)
	return c.User, password
}

func (c *Config) tlsOptions() []nats.Option {
	var opts []nats.Option
	if c.TLS.CA != "" {
		opts = append(opts, nats.RootCAs(c.TLS.CA))
	}
	if c.TLS.Cert != "" {
		opts = append(opts, nats.ClientCert(c.TLS.Cert, c.TLS.Key))
	}
	return opts
}

// explain says what to do where none of the servers lets this client in.
func (c *Config) explain(err error, where servers) error {
	used := c.TLS != TLS{} || strings.Contains(where.list(), "tls://") || strings.Contains(where.list(), "wss://")
	settings := tlsfault.Settings{On: "TLS by tls:// and tls", Used: used, CA: "tls.ca", Client: "tls.cert and tls.key"}
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		return fmt.Errorf("%w; check what gives access: creds_file, nkey_file, user and password, or those in url", err)
	case errors.Is(err, nats.ErrSecureConnWanted), errors.Is(err, nats.ErrSecureConnRequired):
		return fmt.Errorf("%w; write tls:// in url where the server wants TLS, and nats:// where it has none", err)
	}
	if explained := settings.Explain(err); explained != err { //nolint:errorlint // whether it is another value
		return explained
	}
	return fmt.Errorf("%w; check that the server is reachable and that the credentials are right", err)
}

func (s servers) list() string { return strings.Join(s.urls, ",") }
