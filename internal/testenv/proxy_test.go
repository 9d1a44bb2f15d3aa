package testenv_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

func TestProxy(t *testing.T) {
	t.Parallel()
	p := testenv.Proxy(t, echo(t))

	conn := dial(t, p.Addr)
	require.NoError(t, says(conn, "one"))

	p.Pause()
	_, err := conn.Write([]byte("two"))
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = conn.Read(make([]byte, 3))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	p.Resume()
	require.NoError(t, reads(conn, "two"))
	require.NoError(t, says(conn, "three"))

	p.Cut()
	require.Error(t, says(conn, "four"))
	_, err = net.Dial("tcp", p.Addr)
	require.Error(t, err)
	p.Restore()
	require.NoError(t, says(dial(t, p.Addr), "five"))
}

func TestProxyCutsAfterSoManyBytes(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.Directions {
		for _, n := range []int{0, 3, 8} {
			t.Run(fmt.Sprintf("%d bytes %s", n, d), func(t *testing.T) {
				t.Parallel()
				address, arrived := listening(t)
				p := testenv.Proxy(t, address)
				open := dial(t, p.Addr)
				require.NoError(t, says(open, "before"))
				require.Equal(t, "before", <-arrived)
				require.Zero(t, p.Met())

				p.CutAfter(d, n)
				for i, conn := range []net.Conn{open, dial(t, p.Addr)} {
					_, err := conn.Write([]byte("question"))
					require.NoError(t, err)
					require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
					got, err := io.ReadAll(conn)
					if err != nil { // a reset instead of an end
						require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
					}
					if d == testenv.ToClient {
						require.Equal(t, "question"[:n], string(got))
						require.Equal(t, "question", <-arrived)
					} else if n > 0 {
						require.Equal(t, "question"[:n], <-arrived)
					}
					require.Equal(t, i+1, p.Met())
				}
				p.Resume()
				require.NoError(t, says(dial(t, p.Addr), "after"))
				require.Equal(t, "after", <-arrived, "nothing else came")
			})
		}
	}
}

func TestProxyHoldsOneDirection(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.Directions {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %t", d, lost), func(t *testing.T) {
				t.Parallel()
				address, arrived := listening(t)
				p := testenv.Proxy(t, address)
				conn := dial(t, p.Addr)
				require.NoError(t, says(conn, "before"))
				require.Equal(t, "before", <-arrived)

				p.Hold(d)
				_, err := conn.Write([]byte("held"))
				require.NoError(t, err)
				testenv.Eventually(t, 5*time.Second, func() error {
					if p.Met() != 1 {
						return fmt.Errorf("%d pieces are held", p.Met())
					}
					return nil
				})
				if d == testenv.ToClient {
					require.Equal(t, "held", <-arrived, "the other direction flows")
				}
				require.Empty(t, arrived)
				if lost {
					p.Cut()
					p.Resume()
					p.Restore()
					require.Error(t, reads(conn, "held"))
					conn = dial(t, p.Addr)
				} else {
					p.Resume()
					require.NoError(t, reads(conn, "held"))
					if d == testenv.ToServer {
						require.Equal(t, "held", <-arrived)
					}
				}
				require.NoError(t, says(conn, "after"))
				require.Equal(t, "after", <-arrived)
			})
		}
	}
}

func TestProxyDelaysOneDirection(t *testing.T) {
	t.Parallel()
	const late = 200 * time.Millisecond
	for _, d := range testenv.Directions {
		address, arrived := listening(t)
		p := testenv.Proxy(t, address)
		conn := dial(t, p.Addr)
		p.Delay(d, late)
		began := time.Now()
		require.NoError(t, says(conn, "slow"))
		require.GreaterOrEqual(t, time.Since(began), late)
		require.Equal(t, "slow", <-arrived)
		require.Equal(t, 1, p.Met())
		p.Delay(d, time.Hour)
		_, err := conn.Write([]byte("later"))
		require.NoError(t, err)
		p.Resume()
		require.NoError(t, reads(conn, "later"), "what is under way need not wait for the end of a delay that is over")
	}
}

// A client of Kafka stays behind the proxy after it has learned the broker's address.
func TestKafkaBehindProxy(t *testing.T) {
	t.Parallel()
	server, p := testenv.KafkaBehindProxy(t)
	cfg := sarama.NewConfig()
	cfg.Net.ReadTimeout, cfg.Metadata.Retry.Max = 2*time.Second, 0
	topics := func(address string) error {
		client, err := sarama.NewClient([]string{address}, cfg)
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		b, err := client.Controller()
		if err != nil {
			return err
		}
		_, err = b.ListGroups(&sarama.ListGroupsRequest{})
		return err
	}
	require.NoError(t, topics(p.Addr))
	client, err := sarama.NewClient([]string{p.Addr}, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	require.Len(t, client.Brokers(), 1)
	require.Equal(t, p.Addr, client.Brokers()[0].Addr())
	p.CutAfter(testenv.ToClient, 0)
	require.Error(t, topics(p.Addr))
	require.NoError(t, topics(server.Address), "who goes straight to the server is not disturbed")
}

// listening is an echo that shows what arrives, piece by piece.
func listening(t *testing.T) (address string, arrived <-chan string) {
	pieces := make(chan string, 100)
	return serve(t, func(piece []byte) { pieces <- string(piece) }), pieces
}

// echo serves on a free port and sends back what it reads.
func echo(t *testing.T) string { return serve(t, func([]byte) {}) }

// serve is an echo that calls arrived before it answers.
func serve(t *testing.T, arrived func(piece []byte)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				buffer := make([]byte, 100)
				for {
					n, err := conn.Read(buffer)
					if err != nil {
						return
					}
					arrived(buffer[:n])
					if _, err := conn.Write(buffer[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func says(conn net.Conn, text string) error {
	if _, err := conn.Write([]byte(text)); err != nil {
		return err
	}
	return reads(conn, text)
}

func reads(conn net.Conn, text string) error {
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	buffer := make([]byte, len(text))
	n, err := conn.Read(buffer)
	if err == nil && !bytes.Equal(buffer[:n], []byte(text)) {
		err = fmt.Errorf("got %q", buffer[:n])
	}
	return err
}
