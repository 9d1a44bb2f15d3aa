// Package dynamotest gives tests a DynamoDB whose answers they can lose, and looks into its tables.
package dynamotest

import (
	"cmp"
	"encoding/json"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/logging"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// Region is the region of every test.
const Region = "eu-central-1"

// Transact is the operation that commits.
const Transact = "TransactWriteItems"

// Server is a way to the real server that a test can disturb.
type Server struct {
	// Endpoint is its URL.
	Endpoint string

	t      testing.TB
	client *dynamodb.Client // past the disturbances

	mu     sync.Mutex
	counts map[string]int
	before map[string]func(n int)
	lost   map[string]int
	errs   map[string][]Answer
	ahead  time.Duration // of the service's clock
}

// Start returns a way to the server, or skips the test where there is none.
func Start(t testing.TB) *Server {
	t.Helper()
	real := testenv.DynamoDB(t).Endpoint
	settings, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithRegion(Region), awsconfig.WithLogger(logging.Nop{}))
	require.NoError(t, err)
	s := &Server{
		t: t, counts: map[string]int{}, before: map[string]func(int){}, lost: map[string]int{}, errs: map[string][]Answer{},
		client: dynamodb.NewFromConfig(settings, func(o *dynamodb.Options) { o.BaseEndpoint = aws.String(real) }),
	}
	upstream, err := url.Parse(real)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(upstream); r.Out.Host = r.In.Host },
		ModifyResponse: func(r *http.Response) error { r.Header.Set("Date", s.date()); return nil },
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.pass(proxy, w, r) }))
	t.Cleanup(front.Close)
	s.Endpoint = front.URL
	return s
}

// pass forwards a request, unless the test has other plans.
func (s *Server) pass(proxy http.Handler, w http.ResponseWriter, r *http.Request) {
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	s.mu.Lock()
	s.counts[op]++
	before, n := s.before[op], s.counts[op]
	s.mu.Unlock()
	if before != nil {
		before(n)
	}
	if a := s.take(op); a.Code != "" {
		w.Header().Set("Date", s.date())
		a.write(w)
		return
	}
	if !s.loses(op) {
		proxy.ServeHTTP(w, r)
		return
	}
	proxy.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler) // closes the connection without an answer
}

// Answer is an error that the service would give. Status is 400 where it is not set; Reasons are the codes of a cancelled transaction's.
type Answer struct {
	Code    string
	Status  int
	Reasons []string
}

// write answers as the service does.
func (a Answer) write(w http.ResponseWriter) {
	reasons := make([]map[string]string, len(a.Reasons))
	for i, code := range a.Reasons {
		reasons[i] = map[string]string{"Code": code}
	}
	body, err := json.Marshal(map[string]any{
		"__type": "com.amazonaws.dynamodb.v20120810#" + a.Code, "message": "by the test", "CancellationReasons": reasons,
	})
	if err != nil {
		panic(err) // texts alone
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(body)), 10))
	w.WriteHeader(cmp.Or(a.Status, http.StatusBadRequest))
	_, _ = w.Write(body)
}

func (s *Server) take(op string) (a Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answers := s.errs[op]; len(answers) > 0 {
		a, s.errs[op] = answers[0], answers[1:]
	}
	return a
}

func (s *Server) loses(op string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost[op] == 0 {
		return false
	}
	s.lost[op]--
	return true
}

// date is the service's time, as its answers tell it.
func (s *Server) date() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.ahead).UTC().Format(http.TimeFormat)
}

// Advance has the service's clock go on by d.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
}

// Lose has the next n requests of an operation do their work without an answer.
func (s *Server) Lose(op string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost[op] = n
}

// Refuse has the next requests of an operation answered so.
func (s *Server) Refuse(op string, answers ...Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs[op] = answers
}

// Before runs do before each request of an operation reaches the server, with its number.
func (s *Server) Before(op string, do func(n int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before[op] = do
}

// Count is how many requests of an operation there were.
func (s *Server) Count(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[op]
}
