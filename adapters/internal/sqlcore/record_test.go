package sqlcore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	const mine, theirs = "payload:1:a", "payload:1:b"
	key := func(s keystore.State, print string, left time.Duration) *row {
		return &row{Record: keystore.Record{State: s, Fingerprint: print, LeaseLeft: left, Owner: "other"}}
	}
	for name, c := range map[string]struct {
		row      *row
		redriven bool
		owner    string
		want     keystore.Outcome
	}{
		"completed":                   {row: key(keystore.Completed, mine, 0), want: keystore.Duplicate},
		"completed, redriven":         {row: key(keystore.Completed, mine, 0), redriven: true, want: keystore.Duplicate},
		"completed, other payload":    {row: key(keystore.Completed, theirs, 0), want: keystore.Mismatch},
		"failed":                      {row: key(keystore.Failed, mine, 0), want: keystore.Rejected},
		"failed, redriven":            {row: key(keystore.Failed, mine, 0), redriven: true, want: keystore.Fresh},
		"failed, redriven, other":     {row: key(keystore.Failed, theirs, 0), redriven: true, want: keystore.Mismatch},
		"in doubt":                    {row: key(keystore.InDoubt, mine, 0), want: keystore.Doubtful},
		"in doubt, redriven":          {row: key(keystore.InDoubt, mine, 0), redriven: true, want: keystore.Doubtful},
		"lease alive":                 {row: key(keystore.InProgress, mine, time.Second), want: keystore.Busy},
		"lease alive, other payload":  {row: key(keystore.InProgress, theirs, time.Second), want: keystore.Mismatch},
		"lease over":                  {row: key(keystore.InProgress, mine, 0), want: keystore.TakenOver},
		"lease over, other payload":   {row: key(keystore.InProgress, theirs, -time.Hour), want: keystore.Mismatch},
		"the owner's own lease":       {row: key(keystore.InProgress, mine, time.Second), owner: "other", want: keystore.TakenOver},
		"no owner is nobody's":        {row: &row{Record: keystore.Record{State: keystore.InProgress, LeaseLeft: 1}}, want: keystore.Busy},
		"taken without a fingerprint": {row: key(keystore.Completed, "", 0), want: keystore.Duplicate},
		"fingerprint of another kind": {row: key(keystore.Completed, "json:1:b", 0), want: keystore.Duplicate},
	} {
		got := judge(keystore.Claim{Fingerprint: mine, Redriven: c.redriven}, c.row, c.owner)
		require.Equal(t, c.want, got, name)
	}
}

func TestParkedRowsStandInTheWay(t *testing.T) {
	t.Parallel()
	const mine, theirs = "payload:1:a", "payload:1:b"
	own := &parking.Lease{ID: 5}
	for name, c := range map[string]struct {
		waits  *waiting
		parked *parking.Lease
		want   keystore.Outcome
	}{
		"nothing parked":              {want: keystore.Fresh},
		"a copy waits":                {waits: &waiting{rows: []waitingRow{{3, mine}}}, want: keystore.Waits},
		"another payload waits":       {waits: &waiting{rows: []waitingRow{{3, theirs}}}, want: keystore.Mismatch},
		"both wait":                   {waits: &waiting{rows: []waitingRow{{3, theirs}, {4, mine}}}, want: keystore.Waits},
		"its own row":                 {waits: &waiting{rows: []waitingRow{{5, mine}}, head: 5}, parked: own, want: keystore.Fresh},
		"its own row and another":     {waits: &waiting{rows: []waitingRow{{5, mine}, {6, theirs}}}, parked: own, want: keystore.Mismatch},
		"behind, from the broker":     {waits: &waiting{head: 9}, want: keystore.Behind},
		"behind an older row":         {waits: &waiting{head: 4}, parked: own, want: keystore.Behind},
		"before a younger row":        {waits: &waiting{head: 6}, parked: own, want: keystore.Fresh},
		"a copy waits, and is behind": {waits: &waiting{rows: []waitingRow{{3, mine}}, head: 2}, want: keystore.Waits},
	} {
		got := c.waits.verdict(keystore.Claim{Fingerprint: mine, Parked: c.parked})
		require.Equal(t, c.want, got, name)
	}
}

func TestLanesAreSharedFairly(t *testing.T) {
	t.Parallel()
	rows := make([]laneRow, 16)
	for i := range rows {
		rows[i].number = i
		switch {
		case i < 10:
			rows[i].owner, rows[i].token = "me", "t"
		case i < 12:
			rows[i].owner, rows[i].token, rows[i].over = "dead", "t", true
		case i < 14:
			rows[i].owner, rows[i].token = "alive", "t"
		}
	}
	kept, stmts := shareLanes(rows, "me", 8, time.Second)
	require.Len(t, kept, 8)
	require.Len(t, stmts, 10, "eight are renewed, two given up")
	for _, l := range kept {
		require.Equal(t, "t", l.Token)
	}
	all, _ := shareLanes(rows, "me", 16, time.Second)
	require.Len(t, all, 14, "what a live relay holds is not taken")
	for _, l := range all[10:] {
		require.NotEqual(t, "t", l.Token, "what is taken gets a new token")
	}
}
