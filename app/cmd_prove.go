package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/app/proof"
	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// prove is one invocation of the command.
type prove struct {
	cli  *cli
	cast proof.Cast

	builtin            bool
	only               string
	length             time.Duration
	replicas           int
	rate               float64
	seed               uint64
	bindings, points   []string
	faults             []string
	disturb            []string
	dir, history       string
	check              string
	keep, besideOthers bool
	patience           time.Duration
}

// Parts of a trial, as --only takes them.
const (
	onlyMatrix = "matrix"
	onlyRandom = "random"
)

func (c *cli) proveCommand() *cobra.Command {
	p := &prove{cli: c}
	cmd := &cobra.Command{
		Use: "prove", Short: "Try on your broker and database whether every effect happens exactly once, under faults", Args: cobra.NoArgs,
		Long: `Run the built-in plugins, or those of this program that bring a trial of their own, on the configured broker, database and keys, in replicas
that are broken on purpose, and judge from the history of all that whether every effect happened exactly once. First every fault (error, panic, deadline, cut connection, kill, rival) at every step of a
message's way, for every binding; then random faults, duplicates, bursts, kills, stops and cuts until the time is over. Where a promise broke, the history of
that one key is the counter-example, and the exit code is 1.

It writes test data: under a service name of its own, with topics, queues and a schema of its own, and removes them afterwards.
Letters go to a mail server inside this command.`,
		Example: `  oncemill prove                                       embedded broker, SQLite: every step, then two minutes at random
  oncemill prove --broker rabbitmq --database postgres --config oncemill.yaml --for 10m
  oncemill prove --config oncemill.yaml --only random --for 1h --disturb "systemctl restart postgresql"
  oncemill prove --check history.jsonl                 the verdict on a history that was written with --history`,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.BoolVar(&p.builtin, "builtin", false, "play the plugins that ship, although plugins of this program bring a trial of their own")
	f.StringVar(&p.only, "only", "", "only this part: matrix (every fault at every step) or random")
	f.DurationVar(&p.length, "for", 2*time.Minute, "how long the random part lasts")
	f.IntVar(&p.replicas, "replicas", 2, "how many processes consume")
	f.Float64Var(&p.rate, "rate", 20, "messages that the random part publishes in a second, on average")
	f.Uint64Var(&p.seed, "seed", uint64(time.Now().UnixNano()), "seed of the random part")
	f.StringSliceVar(&p.bindings, "binding", nil, "of the matrix only this binding, or relay; may be repeated")
	f.StringSliceVar(&p.points, "step", nil, "of the matrix only this step; may be repeated")
	f.StringSliceVar(&p.faults, "fault", nil, "of the matrix only this fault; may be repeated")
	f.StringArrayVar(&p.disturb, "disturb", nil, "a command that the random part runs at random moments, such as a restart of the broker; may be repeated")
	f.StringVar(&p.history, "history", "", "write the history to this file (JSON lines); history.jsonl in the folder of --dir unless set")
	f.StringVar(&p.check, "check", "", "run nothing; judge the history in this file")
	f.StringVar(&p.dir, "dir", "", "folder for logs and local files, which is kept (a temporary one is removed)")
	f.BoolVar(&p.keep, "keep", false, "keep tables, topics and files")
	f.BoolVar(&p.besideOthers, "beside-other-services", false, "go on in a database that cannot give it a schema of its own and that others use")
	f.DurationVar(&p.patience, "settle", 5*time.Minute, "how long everything may take to settle")
	f.BoolVar(&c.json, "json", false, "print the result as JSON")
	complete(cmd, "only", onlyMatrix, onlyRandom)
	cmd.AddCommand(c.proveWorkerCommand())
	return cmd
}

// run judges a file, or runs a trial and judges that.
func (p *prove) run(ctx context.Context) error {
	if p.check != "" {
		return p.checkFile()
	}
	var err error
	if p.cast, err = p.chooses(); err != nil {
		return err
	}
	choice, err := p.choice()
	if err != nil {
		return withCode(ExitUsage, err)
	}
	result, err := p.trial(ctx, choice)
	if len(result.Plan.Bindings) == 0 {
		return err // it came to no verdict
	}
	return errors.Join(p.answer(result), err) // what could not be taken down hides no verdict
}

func (p *prove) checkFile() error {
	file, err := os.Open(p.check)
	if err != nil {
		return err
	}
	defer file.Close()
	events, err := history.Read(file)
	if err != nil {
		return err
	}
	result, err := proof.Judge(events)
	if err != nil {
		return err
	}
	return p.answer(result)
}

// answer prints the result; an error is a broken promise.
func (p *prove) answer(r proof.Result) error {
	if p.cli.json {
		enc := json.NewEncoder(p.cli.out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r); err != nil {
			return err
		}
	} else {
		r.Write(p.cli.out)
	}
	if n := len(r.Verdict.Violations); n > 0 {
		return fmt.Errorf("the promise is broken: %d violations (seed %d)", n, r.Plan.Seed)
	}
	if !p.cli.json {
		fmt.Fprintln(p.cli.out, "\nEvery effect happened exactly once.")
	}
	return nil
}

// choice checks what of the matrix is asked for.
func (p *prove) choice() (c proof.Choice, err error) {
	var errs []error
	known := func(flag, value string, among []string) {
		if !slices.Contains(among, value) {
			errs = append(errs, fmt.Errorf("--%s %q: use one of %s", flag, value, strings.Join(among, ", ")))
		}
	}
	if p.only != "" {
		known("only", p.only, []string{onlyMatrix, onlyRandom})
	}
	if p.replicas < 1 {
		errs = append(errs, errors.New("--replicas: one at least"))
	}
	names, points, faults := []string{proof.Relayed}, []string{}, []string{}
	for _, b := range p.cast.Bindings() {
		names = append(names, b.Name)
	}
	for _, at := range append(faultpoint.Engine(), faultpoint.Relay()...) {
		points = append(points, string(at))
	}
	for _, f := range proof.Faults() {
		faults = append(faults, string(f))
	}
	for _, b := range p.bindings {
		known("binding", b, names)
	}
	for _, at := range p.points {
		known("step", at, points)
		c.Points = append(c.Points, faultpoint.Point(at))
	}
	for _, f := range p.faults {
		known("fault", f, faults)
		c.Faults = append(c.Faults, proof.Fault(f))
	}
	c.Bindings = p.bindings
	return c, errors.Join(errs...)
}

// trial sets a trial up, runs it, and takes it down.
func (p *prove) trial(ctx context.Context, choice proof.Choice) (result proof.Result, err error) {
	site, err := p.prepare(ctx)
	if err != nil {
		return result, errors.Join(err, site.close(p.keep, p.keep))
	}
	broken := false
	defer func() {
		// Logs stay where they say what went wrong; who interrupts the trial knows.
		broken = broken || err != nil && ctx.Err() == nil
		if broken {
			p.say("history and logs are kept in %s", site.dir)
		}
		err = errors.Join(err, site.close(p.keep, p.keep || broken))
	}()
	rec, err := proof.NewRecorder(or(p.history, filepath.Join(site.dir, "history.jsonl")))
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	t := proof.NewTrial(proof.Config{
		Plan: site.plan, Cast: p.cast, Publisher: site.app.broker.Publisher(), DB: site.app.store.DB(), Command: p.worker, Start: site.start,
		Lines: site.lines, Dir: site.dir, Replicas: p.replicas, Patience: p.patience, Say: p.say,
	}, rec, site.mail)
	defer t.Close()
	p.say("%s on %s, keys in %s; service %s; %d replicas; seed %d", site.plan.Broker, site.plan.Database, site.plan.Keys, site.start.Flags["service"], p.replicas, p.seed)
	if err := t.Open(ctx); err != nil {
		return result, err
	}
	var tried proof.Tried
	var untried []proof.Untried
	if p.only != onlyRandom {
		p.say("every fault at every step:")
		if tried, untried, err = t.Matrix(ctx, choice); err != nil {
			return result, err
		}
	}
	if p.only != onlyMatrix {
		p.say("at random for %s:", p.length)
		err = t.Random(ctx, proof.Schedule{For: p.length, Rate: p.rate, Disturb: p.disturb, Environ: p.cli.env})
		if err != nil {
			return result, err
		}
	}
	p.say("waiting until everything is settled")
	if result, err = t.Finish(ctx); err != nil {
		return result, err
	}
	result.Matrix, result.Untried = tried, untried
	broken = !result.Verdict.Holds()
	return result, nil
}

// say tells how far it is, apart from the answer.
func (p *prove) say(format string, args ...any) { fmt.Fprintf(p.cli.errs, format+"\n", args...) }

// worker is the command of a replica: this program.
func (p *prove) worker() (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(program, "prove", "worker")
	cmd.Env = p.cli.env
	return cmd, nil
}
